"""The interface to rigid-body physics: how a state is created, advanced and read.

Nothing here is specific to one environment. `envs_jax.physics.c` computes on the host's threads with C MuJoCo,
`envs_jax.physics.mjx` on the device with MJX, and an environment may have its own programs, as CLEVR-Robot
(`envs_jax.clevr.spheres`, `envs_jax.clevr.compiled`); all hold the same numbers in their state.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import extras


Backend = Literal["auto", "c", "mjx"]

Look = Callable[..., Any]
"""`look(xp, before, after, *args) -> pytree`, defined by the task: a function of two `Moment`s and of `args`, arrays.

`xp` is NumPy, with a batch of float64 moments (any number of leading axes), or jax.numpy, with a single moment, float32
or (CLEVR-Robot's own program) float64: so it uses only functions of both, and counts axes from the last. Leaves that
are not bool are returned as float32."""

Edit = Callable[..., Any]
"""`edit(xp, now, *args) -> (qpos, qvel)`, defined by the task: the positions and velocities from which a step starts,
as a function of the `Moment` before it and of the `args` of the `Look`; for a model with mocap bodies
`(qpos, qvel, mocap)`. C works in float64, so nothing is rounded."""


@struct.dataclass
class Moment:
    """Positions, velocities and other fields of the bodies at one time."""

    qpos: Any
    """`[..., nq]`, positions, in metres and radians."""
    qvel: Any
    """`[..., nv]`, velocities."""
    read: Mapping[str, Any]
    """The fields of MuJoCo's `mjData` that the task reads, each `[..., *its shape]`; empty for the moment before a
    step."""
    mocap: Any = None
    """`[..., nmocap, 3]`, the positions of the mocap bodies, in the order of their ids."""


def require(module: str, extra: str = "control") -> Any:
    """Import `mujoco` or a part of it. **Raises** `ModuleNotFoundError`, naming the extra, if it is missing."""
    return extras.require("this world", extra, module)


def load_model(xml_file: str | Path) -> Any:
    """Compile a MuJoCo model.

    **Arguments:** `xml_file`, a path.
    **Returns:** a `mujoco.MjModel`.
    **Raises:** `ModuleNotFoundError` without mujoco, `FileNotFoundError` if there is no such file.
    """
    mujoco = require("mujoco")
    if not Path(xml_file).is_file():
        raise FileNotFoundError(f"there is no MuJoCo model at {xml_file}")
    return mujoco.MjModel.from_xml_path(str(xml_file))


def collides(model: Any) -> bool:
    """Return whether any two geoms of a `mujoco.MjModel` may ever be in contact, by its masks and explicit pairs."""
    pairs = (model.geom_contype[:, None] & model.geom_conaffinity[None, :]) != 0
    np.fill_diagonal(pairs, False)
    return bool(pairs.any() or model.npair or model.nflex)


class Physics:
    """A model, the number of its time steps per step of the environment, and the fields to read.

    A state holds the `size` numbers that determine the next state: positions, velocities, activations of the actuators,
    the accelerations from which the constraint solver starts, and the positions of mocap bodies, in the order of
    MuJoCo's `mj_getState`. Mocap bodies keep the orientation that the model gives them.
    """

    def __init__(self, model: Any, frame_skip: int, read: tuple[str, ...] = (), fresh: bool = False):
        """**Arguments:** `model`, a `mujoco.MjModel`; `frame_skip`, time steps; `read`, the names of fields of
        `mjData` that a `Look` sees; `fresh`, whether the poses among them (`xpos`, `site_xpos`, ...) are those of the
        positions that a step reaches, not those before its last time step, as `mj_step` leaves them."""
        mujoco = require("mujoco")
        flags = mujoco.mjtState
        if not collides(model):  # the collision search takes a quarter of the time of a small model
            model = copy.copy(model)
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        self.model, self.frame_skip, self.fresh = model, frame_skip, fresh
        self.spec = int(flags.mjSTATE_QPOS | flags.mjSTATE_QVEL | flags.mjSTATE_ACT | flags.mjSTATE_WARMSTART)
        if model.nmocap:
            self.spec |= int(flags.mjSTATE_MOCAP_POS)
        self.size: int = mujoco.mj_stateSize(model, self.spec)
        data = mujoco.MjData(model)
        self.read = {name: np.shape(getattr(data, name)) for name in read}

    def begin(
        self, qpos: jax.Array, qvel: jax.Array, look: Look, *args: Any, mocap: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """A state with given positions and velocities, `[nq]` and `[nv]`, and positions of mocap bodies,
        `[nmocap, 3]` (default: the model's own); its other numbers are computed.

        **Returns:** the state, and the result of `look` (`before` and `after` are the same moment).
        **Raises:** `ValueError` for a wrong number of positions or velocities.
        """
        raise NotImplementedError

    def _checked(self, qpos: Any, qvel: Any, mocap: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The arguments of `begin` as float32, their sizes checked: a wrong size would shift all numbers after it."""
        if mocap is None:
            mocap = self.model.body_pos[self.model.body_mocapid >= 0]
        sizes = (self.model.nq,), (self.model.nv,), (self.model.nmocap, 3)
        for name, x, size in zip(("qpos", "qvel", "mocap"), (qpos, qvel, mocap), sizes):
            if jnp.shape(x) != size:
                raise ValueError(
                    f"{name} has the shape {list(jnp.shape(x))}; the model needs {list(size)}: start with model.nq "
                    "places, model.nv speeds and a place for each mocap body"
                )
        return jnp.asarray(qpos, jnp.float32), jnp.asarray(qvel, jnp.float32), jnp.asarray(mocap, jnp.float32)

    def advance(
        self, state: jax.Array, ctrl: jax.Array, going: jax.Array, look: Look, *args: Any, edit: Edit | None = None
    ) -> tuple[jax.Array, Any]:
        """`frame_skip` time steps under constant controls.

        **Arguments:** `state`; `ctrl`, float32 `[nu]`; `going`, bool `[]`: if False, the state is unchanged, at no cost
        under C, and the result of `look` is meaningless; `look` and its `args`; `edit`, what is moved by hand first.
        **Returns:** the state, and the result of `look` for the moments before (and before `edit`) and after.
        """
        raise NotImplementedError

    def encode(self, numbers: np.ndarray) -> Any:
        """A state from its numbers, float64 `[..., size]`, on the host: here uint32 `[..., size, 2]`, their bits."""
        words = np.ascontiguousarray(numbers, np.float64).view(np.uint32)
        return words.reshape(*np.shape(numbers), 2)

    def decode(self, state: Any) -> np.ndarray:
        """The numbers of a state, float64 `[..., size]`, on the host."""
        return np.ascontiguousarray(state, np.uint32).view(np.float64)[..., 0]

    def moment(self, numbers: Any, read: Mapping[str, Any]) -> Moment:
        """The positions and velocities among a state's numbers, and the fields that were read."""
        nq, count = self.model.nq, self.model.nmocap
        mocap = numbers[..., self.size - 3 * count :].reshape(*numbers.shape[:-1], count, 3)
        return Moment(numbers[..., :nq], numbers[..., nq : nq + self.model.nv], read, mocap)

    def result_shapes(self, look: Look, args: tuple[Any, ...]) -> Any:
        """The shapes and dtypes of the result of `look` for one environment, as `jax.ShapeDtypeStruct`s."""
        blank = functools.partial(jax.ShapeDtypeStruct, dtype=np.float32)
        numbers, read = blank((self.size,)), {name: blank(shape) for name, shape in self.read.items()}

        def evaluate(numbers, read, args):
            return look(jnp, self.moment(numbers, {}), self.moment(numbers, read), *args)

        result = jax.eval_shape(evaluate, numbers, read, args)
        return jax.tree.map(lambda x: blank(x.shape, dtype=bool if x.dtype == bool else np.float32), result)
