"""Import of the state of a live environment of Gymnasium, gym_navigation or ProPS, also in mid-episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.control.acrobot import Acrobot, AcrobotState
from envs_jax.control.cartpole import CartPole, CartPoleState
from envs_jax.control.mountain_car import MountainCar, MountainCarContinuous, MountainCarState
from envs_jax.control.navigation import NavigationState, NavigationTrack
from envs_jax.control.pendulum import Pendulum, PendulumState
from envs_jax.control.pong import Pong, PongState
from envs_jax.env import Environment
from envs_jax.reference import elapsed_steps


def _floats(values: Any) -> jax.Array:
    return jnp.asarray(np.asarray(values, np.float64), jnp.float32)


def _cartpole(inner: Any, env: CartPole, time: jax.Array) -> tuple[jax.Array, CartPoleState]:
    physics = _floats(inner.state)
    return physics, CartPoleState(physics, time)


def _mountain_car(inner: Any, env: Environment, time: jax.Array) -> tuple[jax.Array, MountainCarState]:
    physics = _floats(inner.state)
    return physics, MountainCarState(physics, time)


def _pendulum(inner: Any, env: Pendulum, time: jax.Array) -> tuple[jax.Array, PendulumState]:
    theta, speed = inner.state  # their theta is not wrapped, ours is
    state = PendulumState(_floats([np.arctan2(np.sin(theta), np.cos(theta)), speed]), time)
    return env.observe(state), state


def _acrobot(inner: Any, env: Acrobot, time: jax.Array) -> tuple[jax.Array, AcrobotState]:
    state = AcrobotState(_floats(inner.state), time)
    return env.observe(state), state


def _pong(inner: Any, env: Pong, time: jax.Array) -> tuple[jax.Array, PongState]:
    names = ("paddle1_y", "paddle2_y", "ball_x", "ball_y", "ball_dx", "ball_dy")
    state = PongState(_floats([getattr(inner, name) for name in names]), jnp.int32(inner.step_count))
    return env.observe(state), state


def _navigation(inner: Any, env: NavigationTrack, time: jax.Array) -> tuple[jax.Array, NavigationState]:
    pose, position = inner._pose, inner._pose.position
    state = NavigationState(_floats([position.x_coordinate, position.y_coordinate, pose.yaw]), time)
    return _floats(inner._ranges), state


READERS: dict[type[Environment], tuple[str, str, Callable]] = {
    CartPole: ("CartPoleEnv", "state", _cartpole),
    MountainCar: ("MountainCarEnv", "state", _mountain_car),
    MountainCarContinuous: ("Continuous_MountainCarEnv", "state", _mountain_car),
    Pendulum: ("PendulumEnv", "state", _pendulum),
    Acrobot: ("AcrobotEnv", "state", _acrobot),
    NavigationTrack: ("NavigationTrack", "_pose", _navigation),
    Pong: ("PongEnv", "step_count", _pong),
}
"""For each of our environments: the class of its original, an attribute that the original has after its first reset,
and the function that reads it."""


def import_state(gymnasium_env: Any, env: Environment, params: Any) -> tuple[jax.Array, Any]:
    """Import the state of a live environment: the original of `env`, possibly wrapped, reset at least once.

    **Arguments:** `gymnasium_env`, made by `gymnasium.make`, or gym_navigation's or ProPS's own class; `env`, one of
    this package's, possibly wrapped; `params`, its parameters.
    **Returns:** `(obs, state)` as the innermost `env.reset` would, for the same point in the episode.
    **Raises:** `TypeError` for another environment, `ValueError` before its first reset.
    """
    env = env.unwrapped
    if type(env) not in READERS:
        names = ", ".join(world.__name__ for world in READERS)
        raise TypeError(f"{type(env).__name__} has no original to take over; these have: {names}")
    name, attribute, read = READERS[type(env)]
    inner = gymnasium_env.unwrapped
    if type(inner).__name__ != name:
        raise TypeError(f"{type(inner).__name__} is not {name}, the original of {env.id}")
    if getattr(inner, attribute, None) is None:
        raise ValueError(f"the {name} has no state yet; call its reset first")
    return read(inner, env, jnp.int32(elapsed_steps(gymnasium_env)))
