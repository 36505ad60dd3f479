"""The base class of Gymnasium's MuJoCo tasks."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces, tracing
from envs_jax.checks import at_least
from envs_jax.env import Environment
from envs_jax.extras import missing
from envs_jax.physics.c import PhysicsC
from envs_jax.physics.interface import Backend, Moment, Physics, load_model
from envs_jax.physics.mjx import PhysicsMjx
from envs_jax.physics.render import Painter


def uniform(key: jax.Array, size: int, scale: Any) -> jax.Array:
    """float32 `[size]` between `-scale` and `scale`."""
    return jax.random.uniform(key, (size,), jnp.float32, -1.0, 1.0) * scale


def _model_path(xml_file: str) -> Path:
    """The location of a model: a path, or a bare name for one of Gymnasium's, which needs gymnasium."""
    if Path(xml_file).name != xml_file:
        return Path(xml_file)
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise missing(f"{xml_file}, a model of Gymnasium's,", "control", "gymnasium", remedy="name a file")
    return Path(package.origin).parent / "envs" / "mujoco" / "assets" / xml_file


@struct.dataclass
class MujocoState:
    """The physics, the step count, and the observation and flags that an ended episode keeps returning."""

    physics: Any
    """The state of `env.physics`; `env.physics.decode` gives its numbers."""
    obs: jax.Array
    """float32 `[n]`, the observation of this state."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""
    terminated: jax.Array
    """bool `[]`."""
    truncated: jax.Array
    """bool `[]`."""


class MujocoEnv(Environment[MujocoState, Any]):
    """One of Gymnasium's MuJoCo tasks; subclasses define model, start, observation and reward.

    Observation: float32, unbounded. Action: float32 `[nu]` within the model's limits, beyond which only its cost grows.
    An episode that has ended is frozen: a further step returns the same observation and flags, reward and info of 0,
    and costs nothing under C, so the cost of a batch is that of its running episodes.
    """

    xml_file: str
    """The model's file among Gymnasium's."""
    frame_skip: int
    """Time steps of the model per step."""
    read: tuple[str, ...] = ()
    """Fields of `mjData` that `observe` and `judge` need besides positions and velocities."""
    fewest: int = 1
    """Degrees of freedom (`nv`) of the smallest model that `observe` and `judge` can read."""
    camera: Mapping[str, Any] = {}
    """Attributes of the free camera, for a model without a camera named `track`."""

    def __init__(
        self,
        physics: Backend = "auto",
        xml_file: str | None = None,
        frame_skip: int | None = None,
        threads: int | None = None,
    ):
        """**Arguments:** `physics`, `"c"` for C MuJoCo on the host's threads, `"mjx"` for MJX on the device, `"auto"`
        for C if jax computes on a CPU, else MJX; `xml_file`, another model, by its path, or one of Gymnasium's, by its
        name (`"hopper.xml"`); `frame_skip`, another number of time steps per step; `threads`, for C (default: all cores
        of the process).

        **Raises:** `ValueError` for an invalid value; `ModuleNotFoundError` without mujoco or, for its models,
        gymnasium; `FileNotFoundError` if there is no such model.
        """
        options = Backend.__args__  # type: ignore[attr-defined]
        if physics not in options:
            raise ValueError(f"unknown physics {physics!r}; it is one of {', '.join(options)}")
        for name, value in (("frame_skip", frame_skip), ("threads", threads)):
            if value is not None:
                at_least(name, value, 1)
        self.backend, self.threads = physics, threads
        self.model = load_model(_model_path(xml_file or self.xml_file))
        if self.model.nv < self.fewest:
            raise ValueError(
                f"the model {xml_file!r} has {self.model.nv} degrees of freedom (nv); {type(self).__name__} needs at "
                f"least {self.fewest}: give xml_file another model"
            )
        self.frame_skip = frame_skip or self.frame_skip
        self.dt: float = self.model.opt.timestep * self.frame_skip
        """Seconds per step."""

    @cached_property
    def physics(self) -> Physics:
        """The physics, created at first use: until then no device is initialised."""
        backend = self.backend
        if backend == "auto":
            backend = "c" if tracing.platform() == "cpu" else "mjx"
        if backend == "mjx":
            return PhysicsMjx(self.model, self.frame_skip, self.read)
        return PhysicsC(self.model, self.frame_skip, self.read, self.threads)

    def start(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        """Draw the initial positions and velocities: float32 `[nq]` and `[nv]`."""
        raise NotImplementedError

    def pose(self, key: jax.Array, scale: Any) -> jax.Array:
        """Positions drawn within `scale` of the model's `qpos0`: float32 `[nq]`."""
        return jnp.asarray(self.model.qpos0, jnp.float32) + uniform(key, self.model.nq, scale)

    def observe(self, xp: Any, now: Moment) -> Any:
        """The observation of a moment, `[..., n]`. `xp`, here and in `judge`, is as in `physics.Look`."""
        raise NotImplementedError

    def judge(
        self, xp: Any, before: Moment, after: Moment, action: Any, params: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reward, whether the episode terminates, and info, of a step with `action` `[..., nu]`; each `[...]`."""
        raise NotImplementedError

    def look(self, xp: Any, before: Moment, after: Moment, action: Any, params: Any) -> tuple[Any, ...]:
        """The `Look` of the task: observation, reward, terminated, info."""
        return self.observe(xp, after), *self.judge(xp, before, after, action, params)

    def reset(self, key, params):
        qpos, qvel = self.start(key, params)
        physics, obs = self.physics.begin(qpos, qvel, lambda xp, _, now: self.observe(xp, now))
        return obs, MujocoState(physics, obs, jnp.int32(0), jnp.bool_(False), jnp.bool_(False))

    def step(self, key, state, action, params):
        going = ~(state.terminated | state.truncated)
        action, size = jnp.asarray(action, jnp.float32), self.model.nu
        if action.shape != (size,):
            raise ValueError(
                f"an action has the shape {list(action.shape)}; {self.id or type(self).__name__} needs [{size}], a "
                "number for each actuator: take step under vmap for a batch of actions"
            )
        numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
        physics, result = self.physics.advance(state.physics, action, going, self.look, action, numbers)
        obs, reward, terminated, info = result
        time = state.time + going
        obs = jnp.where(going, obs, state.obs)
        terminated = jnp.where(going, terminated, state.terminated)
        truncated = jnp.where(going, time >= params.max_steps, state.truncated)
        reward, info = jax.tree.map(lambda x: jnp.where(going, x, jnp.zeros_like(x)), (reward, info))
        return obs, MujocoState(physics, obs, time, terminated, truncated), reward, terminated, truncated, info

    def observation_space(self, params):
        obs = self.physics.result_shapes(lambda xp, _, now: self.observe(xp, now), ())
        return spaces.Box(-np.inf, np.inf, obs.shape, np.float32)

    def action_space(self, params):
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return spaces.Box(low, high, low.shape, np.float32)

    @cached_property
    def _painter(self) -> Painter:
        return Painter(self.model, self.camera)

    def render(self, state):
        """The scene as Gymnasium shows it, uint8 `[480, 480, 3]`. **Raises** `RuntimeError` without OpenGL."""
        return self._painter.picture(self.physics.decode(state.physics)[: self.model.nq])
