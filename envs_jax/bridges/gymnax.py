"""Our environments as gymnax 1.0's (`make`), and gymnax's as ours (`from_gymnax`).

gymnax is imported at the first call, not with this module: its import initialises a device.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import envs_jax
from envs_jax import spaces
from envs_jax.bridges.arrays import narrow
from envs_jax.checks import nearest
from envs_jax.env import Environment
from envs_jax.extras import require


@struct.dataclass
class GymnaxState:
    """The state of an environment under gymnax's interface."""

    time: jax.Array
    """int32 `[]`, steps of the episode; gymnax's states have one."""
    env: Any
    """The environment's own state."""
    truncated: jax.Array
    """bool `[]`, whether the last step truncated the episode."""


def _gymnax() -> Any:
    """The package. **Raises:** `ImportError` if it, or a dependency, is not installed, or is older than 1.0."""
    package = require("the bridge to gymnax", "control", "gymnax")
    version = importlib.metadata.version("gymnax")
    if int(version.partition(".")[0]) < 1:
        raise ImportError(f"the bridge to gymnax needs version 1.0 or newer (six values a step), not {version}")
    return package


def _space_to_gymnax(space: spaces.Space) -> Any:
    theirs = _gymnax().environments.spaces
    if isinstance(space, spaces.Dict):
        return theirs.Dict({name: _space_to_gymnax(inner) for name, inner in space.spaces.items()})
    if isinstance(space, spaces.Discrete):
        return theirs.Discrete(space.n)
    if isinstance(space, spaces.Box):
        return theirs.Box(space.low, space.high, tuple(space.shape), space.dtype)
    raise TypeError(f"gymnax has no space for {space!r}")


def _space_from_gymnax(space: Any) -> spaces.Space:
    theirs = _gymnax().environments.spaces
    if isinstance(space, theirs.Dict):
        return spaces.Dict({name: _space_from_gymnax(inner) for name, inner in space.spaces.items()})
    if isinstance(space, theirs.Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, theirs.Box):
        low, high = (_infinite(np.asarray(bound)) for bound in (space.low, space.high))
        return spaces.Box(low, high, tuple(space.shape), np.dtype(space.dtype))
    raise TypeError(f"no space here is like {space!r}")


def _infinite(bound: np.ndarray) -> np.ndarray:
    """A bound of gymnax, with the largest number of its type replaced by infinity."""
    if not np.issubdtype(bound.dtype, np.floating):
        return bound
    return np.where(np.abs(bound) == np.finfo(bound.dtype).max, np.sign(bound) * np.inf, bound).astype(bound.dtype)


@functools.cache
def _to_gymnax_class() -> Any:
    base: Any = _gymnax().environments.environment.Environment

    class ToGymnax(base):
        """An environment under gymnax's interface, whose `reset` and `step` (with automatic reset) call these hooks.

        `params` are those of the environment."""

        def __init__(self, env: Environment):
            self.env = env

        @property
        def name(self) -> str:
            return self.env.id

        @property
        def default_params(self) -> Any:
            return self.env.default_params

        @property
        def num_actions(self) -> int:
            space = self.env.action_space(self.env.default_params)
            return space.n if isinstance(space, spaces.Discrete) else int(np.prod(space.shape))  # type: ignore

        def reset_env(self, key, params):
            obs, state = self.env.reset(key, params)
            return obs, GymnaxState(jnp.int32(0), state, jnp.bool(False))

        def step_env(self, key, state, action, params):
            obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params)
            return obs, GymnaxState(state.time + 1, env, truncated), reward, terminated, info

        def is_truncated(self, state, params):
            return state.truncated

        def observation_space(self, params):
            return _space_to_gymnax(self.env.observation_space(params))

        def action_space(self, params=None):
            return _space_to_gymnax(self.env.action_space(self.default_params if params is None else params))

    return ToGymnax


def to_gymnax(env: Environment) -> Any:
    """An environment as a `gymnax.environments.environment.Environment`: `reset(key, params)`, and `step(key, state,
    action, params)`, which resets automatically and keeps `info["final_observation"]`."""
    return _to_gymnax_class()(env)


def make(id: str, **options: Any) -> tuple[Any, Any]:
    """One of our environments as `gymnax.make` would return it. **Arguments:** as of `envs_jax.make`.

    **Returns:** `(env, params)`; see `to_gymnax`.
    """
    env, params = envs_jax.make(id, **options)
    return to_gymnax(env), params


class FromGymnax(Environment):
    """A gymnax environment under our interface: its `step_env` and its time limit, without its automatic reset."""

    def __init__(self, env: Any):
        """**Arguments:** `env`, a `gymnax.environments.environment.Environment` of version 1.0 or newer."""
        self.env = env
        self.id = f"gymnax/{env.name}"

    @property
    def default_params(self):
        return self.env.default_params

    def reset(self, key, params):
        return narrow(self.env.reset_env(key, params))

    def step(self, key, state, action, params):
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        truncated = self.env.is_truncated(state, params)
        obs, state, info = narrow((obs, state, dict(info)))
        reward, terminated, truncated = jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated)
        return obs, state, reward.astype(jnp.float32), terminated.astype(bool), truncated.astype(bool), info

    def observation_space(self, params):
        with jax.ensure_compile_time_eval():  # gymnax makes the bounds with jax.numpy
            return _space_from_gymnax(self.env.observation_space(params))

    def action_space(self, params):
        with jax.ensure_compile_time_eval():
            return _space_from_gymnax(self.env.action_space(params))


def from_gymnax(name: str, **options: Any) -> tuple[FromGymnax, Any]:
    """An environment of gymnax's registry as ours. **Arguments:** as of `gymnax.make`.

    **Returns:** `(env, params)`, as `envs_jax.make` does.
    """
    names = sorted(_gymnax().registered_envs)
    if name not in names:
        raise KeyError(f"gymnax has no environment {name!r}{nearest(name, names)} (it has {', '.join(names)})")
    env, params = _gymnax().make(name, **options)
    return FromGymnax(env), params


def world(name: str, **options: Any) -> FromGymnax:
    """The same without its parameters: what `envs_jax.make("gymnax/<name>?<option>=<value>")` builds."""
    return from_gymnax(name, **options)[0]
