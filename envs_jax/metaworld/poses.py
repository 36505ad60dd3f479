"""Quantities read from the bodies of a scene: the frame of the observation, and what rewards need besides."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import struct

from envs_jax.metaworld.tasks import ENTITIES, Task


READ = ("xpos", "xquat")
"""The fields of `mjData` that are needed."""
FRAME = 18
"""Numbers of one frame: hand, opening of the gripper, and place and orientation of two objects."""
ENTITY = 7 + 7 * len(ENTITIES)
"""Numbers of the entity observation."""
HAND_LOW, HAND_HIGH = np.array([-0.525, 0.348, -0.0525]), np.array([0.525, 1.025, 0.7])
"""The bounds to which the hand is clipped in observations after a step."""

FIXED = ("hand", "rightclaw", "leftclaw", "rightpad", "leftpad")
TIPS = ("rightEndEffector", "leftEndEffector")


@struct.dataclass
class Reading:
    """The quantities read at one moment."""

    frame: Any
    """`[..., 18]`, not clipped."""
    tcp: Any
    """`[..., 3]`, the middle between the finger tips."""
    left: Any
    """`[..., 3]`, the left pad."""
    right: Any
    lock: Any
    """`[..., 3]`, the hinge of the lock; zeros without one."""
    joints: Any
    """`[..., S]`, the joint of each stage; 0 for a stage without one."""
    wall: Any
    """`[..., 7]`, place and orientation of the wall; zeros without one."""


def rotate(xp: Any, quat: Any, vector: Any) -> Any:
    """A vector `[..., 3]` turned by a unit quaternion `[..., 4]`, w first."""
    axis = quat[..., 1:]
    turned = xp.cross(axis, vector)
    return vector + 2 * (quat[..., :1] * turned + xp.cross(axis, turned))


def multiply(xp: Any, a: Any, b: Any) -> Any:
    """The product of two quaternions `[..., 4]`, w first."""
    v, w = a[..., 1:], b[..., 1:]
    real = a[..., :1] * b[..., :1] - (v * w).sum(axis=-1, keepdims=True)
    return xp.concatenate([real, a[..., :1] * w + b[..., :1] * v + xp.cross(v, w)], axis=-1)


def last(xp: Any, quat: Any) -> Any:
    """A quaternion, w first, as one of SciPy from a matrix: w last, and its largest component positive."""
    moved = xp.concatenate([quat[..., 1:], quat[..., :1]], axis=-1)
    size = xp.abs(moved)
    largest = xp.argmax(size, axis=-1)
    chosen = np.arange(4) == largest[..., None]
    return moved * xp.where(xp.where(chosen, moved, 0).sum(axis=-1, keepdims=True) < 0, -1, 1)


class Reader:
    """Reads one task from the poses of the bodies of its scene."""

    def __init__(self, model: Any, task: Task):
        """**Arguments:** `model`, a `mujoco.MjModel` of the task's scene; `task`."""
        self.task = task
        names = {model.body(i).name for i in range(model.nbody)}
        bodies, local = [model.body(name).id for name in FIXED], [np.zeros(3)] * len(FIXED)

        def add(kind: str, name: str) -> None:
            element = getattr(model, kind)(name)
            bodies.append(element.id if kind == "body" else int(element.bodyid[0]))
            local.append(np.zeros(3) if kind == "body" else np.array(element.pos))

        for name in TIPS:
            add("site", name)
        for part in task.parts:
            add(part.kind, part.place)
        self.first, self.lock, self.wall = len(FIXED) + len(TIPS), "lock_link" in names, "wall" in names
        if self.lock:
            add("body", "lock_link")
        self.bodies, self.local = np.array(bodies), np.array(local)
        self.wall_body = model.body("wall").id if self.wall else 0
        self.turns = [self._turn(model, *part.turn) for part in task.parts]
        self.joints = [joint(model, stage.joint)[0] if stage.joint else None for stage in task.stages]

    @staticmethod
    def _turn(model: Any, kind: str, name: str) -> tuple[str, int, np.ndarray | None]:
        """The source of an orientation: the kind, the body, and the orientation on it."""
        if kind == "geom":
            geom = model.geom(name)
            return kind, int(geom.bodyid[0]), np.array(geom.quat)
        return kind, model.body(name).id if name else 0, None

    def __call__(self, xp: Any, now: Any) -> Reading:
        """The quantities of a `Moment`. `xp` as in `physics.Look`."""
        places, turns = now.read["xpos"][..., self.bodies, :], now.read["xquat"]
        places = places + rotate(xp, turns[..., self.bodies, :], self.local)
        hand, rightclaw, leftclaw, right, left, *tips = (places[..., i, :] for i in range(self.first))
        opening = xp.sqrt(xp.square(rightclaw - leftclaw).sum(axis=-1, keepdims=True))
        parts = [hand, xp.clip(opening / 0.1, 0, 1)]
        for i, (part, turn) in enumerate(zip(self.task.parts, self.turns)):
            parts += [places[..., self.first + i, :] + np.array(part.offset), self._orientation(xp, turns, *turn)]
        frame = xp.concatenate(parts, axis=-1)
        batch = frame.shape[:-1]
        padding = xp.zeros((*batch, FRAME - frame.shape[-1]), frame.dtype)
        zeros = xp.zeros((*batch, 7), frame.dtype)
        joints = [now.qpos[..., i] if i is not None else zeros[..., 0] for i in self.joints]
        wall = zeros
        if self.wall:
            read = (now.read[name][..., self.wall_body, :] for name in READ)
            wall = xp.concatenate(list(read), axis=-1)
        return Reading(
            frame=xp.concatenate([frame, padding], axis=-1),
            tcp=(tips[0] + tips[1]) / 2,
            left=left,
            right=right,
            lock=places[..., -1, :] if self.lock else zeros[..., :3],
            joints=xp.stack(joints, axis=-1),
            wall=wall,
        )

    def _orientation(self, xp: Any, turns: Any, kind: str, body: int, local: np.ndarray | None) -> Any:
        quat = turns[..., body, :]
        if kind == "body":
            return quat
        if kind == "matrix":
            return last(xp, quat)
        if kind == "geom":
            return last(xp, multiply(xp, quat, xp.broadcast_to(xp.asarray(local, quat.dtype), quat.shape)))
        return xp.zeros_like(quat) + np.array([kind == "identity", 0, 0, 0], quat.dtype)


def joint(model: Any, body: str) -> tuple[int, int]:
    """The indices of a body's joint among positions and velocities."""
    number = model.body(body).jntadr[0]
    return int(model.jnt_qposadr[number]), int(model.jnt_dofadr[number])


def joined(xp: Any, *parts: Any) -> Any:
    """Arrays joined along their last axis, their leading axes broadcast."""
    batch = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return xp.concatenate([xp.broadcast_to(part, (*batch, part.shape[-1])) for part in parts], axis=-1)


def stacked(xp: Any, frame: Any, previous: Any, goal: Any) -> Any:
    """The 39-d observation: two frames and the goal."""
    return joined(xp, frame, previous, goal)


def clipped(xp: Any, frame: Any) -> Any:
    """A frame with the hand within its bounds, as it is observed after a step."""
    return xp.concatenate([xp.clip(frame[..., :3], HAND_LOW, HAND_HIGH), frame[..., 3:]], axis=-1)


def entities(xp: Any, task: Task, frame: Any, goal: Any, wall: Any) -> Any:
    """The 91-d entity observation: gripper, target, and a block for each entity, zeros if it is absent."""
    blocks = {part.name: frame[..., 4 + 7 * i : 11 + 7 * i] for i, part in enumerate(task.parts)}
    zeros = xp.zeros_like(wall)
    poses = [wall if name == "wall" else blocks.get(name, zeros) for name in ENTITIES]
    return joined(xp, frame[..., :4], goal, *poses)
