"""Starts of episodes: the scene at rest with the hand in its place, computed once, and what a reset puts into it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.metaworld.poses import READ, Reader, Reading, joint
from envs_jax.metaworld.state import Start
from envs_jax.metaworld.tasks import Drawn, Task
from envs_jax.physics.interface import Moment, require


SETTLING = 50
"""Steps in which the hand moves to its start, with the gripper open."""
ZEROED = slice(9, 15)
"""The velocities that are set to 0 with a placed object. Where a mug has the first ones, these are the arm's."""


@struct.dataclass
class RestState:
    """The scene at rest: float32 `[...]`, with the leading axes of what was drawn."""

    qpos: Any
    qvel: Any
    mocap: Any
    tcp: Any
    """`[3]`, the middle between the finger tips when the hand had settled."""
    hand: Any
    """`[4]`, the hand and the opening of the gripper before the last time step."""
    height: Any
    """`[]`, the z of the first part of the observation."""
    handle: Any
    """`[3]`, the first part of the observation, from the base; for windows."""


def _position(xp: Any, spec: Drawn, drawn: Any, height: Any = None) -> Any:
    """A place of the start, `[3]`, from the drawn vector and the height of an object at rest."""
    offset = xp.asarray(spec.offset, drawn.dtype)
    if spec.first is None:
        return offset
    position = drawn[spec.first : spec.first + 3] + offset
    return xp.concatenate([position[:2], height[None]]) if spec.resting else position


class Starts:
    """Positions, velocities, mocap bodies and the memory of rewards, from a drawn vector.

    The package lets the hand settle at every reset. Where things come to rest does not depend on what is drawn, unless
    the arm meets something, so in most tasks they settle once here.
    """

    def __init__(self, model: Any, task: Task, reader: Reader, frame_skip: int):
        """**Arguments:** `model`, a `mujoco.MjModel` of the task's scene; `reader`, of the same task."""
        self.model, self.task, self.reader, self.frame_skip = model, task, reader, frame_skip
        self.hand = int(model.body("mocap").mocapid[0])
        self.base = int(model.body(task.base[0]).mocapid[0]) if task.base else None
        self.free = joint(model, task.free[0])[0] if task.free else None
        self.joint = joint(model, task.joint[0]) if task.joint else None
        self.rest_state = self.settle((np.array(task.low) + np.array(task.high)) / 2)

    def settle(self, drawn: np.ndarray) -> RestState:
        """The scene at rest, on the host; see `RestState`. **Arguments:** `drawn`, `[3]` or `[6]`."""
        mujoco, task, model = require("mujoco"), self.task, self.model
        data = mujoco.MjData(model)
        data.mocap_pos[self.hand] = task.hand
        if task.base:
            data.mocap_pos[self.base] = _position(np, task.base[1], np.asarray(drawn, np.float64))
        data.ctrl[:] = -1, 1
        mujoco.mj_step(model, data, SETTLING * self.frame_skip)
        tcp = self._read(data).tcp
        mujoco.mj_step(model, data, task.settle)
        reading = self._read(data)
        part = reading.frame[4:7]
        handle = part - data.mocap_pos[self.base] if task.base else part
        settled = RestState(data.qpos, data.qvel, data.mocap_pos, tcp, reading.frame[:4], part[2], handle)
        return jax.tree.map(np.float32, settled)

    def _read(self, data: Any) -> Reading:
        read = {name: np.array(getattr(data, name)) for name in READ}
        return self.reader(np, Moment(np.array(data.qpos), np.array(data.qvel), read))

    def _settled(self, drawn: Any, going: Any) -> RestState:
        drawn, going = np.asarray(drawn), np.asarray(going)
        batch = np.broadcast_shapes(drawn.shape[:-1], going.shape)
        drawn, going = np.broadcast_to(drawn, (*batch, drawn.shape[-1])), np.broadcast_to(going, batch).ravel()
        rows = [
            self.settle(row) if active else self.rest_state
            for row, active in zip(drawn.reshape(-1, drawn.shape[-1]), going)
        ]
        return jax.tree.map(lambda *x: np.reshape(x, (*drawn.shape[:-1], *np.shape(x[0]))), *rows)

    def __call__(self, drawn: jax.Array, going: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Start]:
        """A start.

        **Arguments:** `drawn`, float32 `[3]` or `[6]`; `going`, bool `[]`: if False, nothing settles on the host.
        **Returns:** float32 positions `[nq]`, velocities `[nv]`, places of mocap bodies `[nmocap, 3]`, the hand and the
        opening of the gripper before the last time step, `[4]`, and the start.
        """
        task, rest_state = self.task, jax.tree.map(jnp.asarray, self.rest_state)
        if task.meets:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), rest_state)
            rest_state = jax.pure_callback(self._settled, shapes, drawn, going, vmap_method="expand_dims")
        qpos, qvel, mocap = rest_state.qpos, rest_state.qvel, rest_state.mocap
        base = jnp.zeros(3, jnp.float32)
        if task.base:
            base = _position(jnp, task.base[1], drawn)
            mocap = mocap.at[self.base].set(base)
        item = drawn[:3]
        if task.free and self.free is not None:
            item = _position(jnp, task.free[1], drawn, rest_state.height)
            qpos, qvel = qpos.at[self.free : self.free + 3].set(item), qvel.at[ZEROED].set(0)
        if task.joint and self.joint:
            qpos_index, qvel_index = self.joint
            qpos, qvel = qpos.at[qpos_index].set(task.joint[1]), qvel.at[qvel_index].set(0)
        start = Start(
            targets=jnp.stack([_position(jnp, stage.target, drawn, rest_state.height) for stage in task.stages]),
            object=item,
            tcp=rest_state.tcp,
            handle=rest_state.handle + base + np.array([task.lag, 0, 0], np.float32),
        )
        return qpos, qvel, mocap, rest_state.hand, start
