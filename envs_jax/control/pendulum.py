"""Pendulum-v1 as Gymnasium 1.3 has it, time limit included."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.control.angles import wrap
from envs_jax.control.render import BLACK, RED, blank, disc, rod
from envs_jax.env import Environment


@struct.dataclass
class PendulumParams:
    """Gymnasium's constants, in SI units and radians."""

    gravity: Any = 10.0
    mass: Any = 1.0
    length: Any = 1.0
    """Length of the rod, whose mass is uniformly distributed."""
    max_speed: Any = 8.0
    max_torque: Any = 2.0
    dt: Any = 0.05
    """Seconds between steps (semi-implicit Euler)."""
    max_steps: Any = 200
    """Steps until truncation."""


@struct.dataclass
class PendulumState:
    """The physical state and the step count."""

    physics: jax.Array
    """float32 `[2]`: angle from upright, counter-clockwise, in [-pi, pi]; angular velocity."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class Pendulum(Environment[PendulumState, PendulumParams]):
    """Swing a pendulum up, and keep it upright, with a torque too small to lift it at once.

    Observation: float32 `[3]`, cosine and sine of the angle from upright, and angular velocity. Action: float32 `[1]`,
    the torque, clipped to `max_torque`. Reward: minus (angle^2 + 0.1 speed^2 + 0.001 torque^2), of the state before the
    step. Never terminated; truncated after `max_steps`.
    """

    id = "Pendulum-v1"

    def __init__(self, g: float = 10.0):
        """**Arguments:** `g`, gravity in m/s^2, as Gymnasium's option of the same name."""
        self.g = g

    @property
    def default_params(self):
        return PendulumParams(gravity=self.g)

    def observe(self, state: PendulumState) -> jax.Array:
        """The observation of a state."""
        theta, speed = state.physics[0], state.physics[1]
        return jnp.stack([jnp.cos(theta), jnp.sin(theta), speed])

    def reset(self, key, params):
        high = np.array([math.pi, 1.0], np.float32)
        theta, speed = jax.random.uniform(key, (2,), jnp.float32, -high, high)
        speed = jnp.clip(speed, -params.max_speed, params.max_speed)
        physics = jnp.stack([theta, speed]).astype(jnp.float32)
        state = PendulumState(physics, jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        theta, speed = state.physics[0], state.physics[1]
        torque = jnp.clip(action[0], -params.max_torque, params.max_torque)
        cost = theta**2 + 0.1 * speed**2 + 0.001 * torque**2
        lift = 1.5 * params.gravity / params.length * jnp.sin(theta)
        push = 3.0 / (params.mass * params.length**2) * torque
        speed = jnp.clip(speed + (lift + push) * params.dt, -params.max_speed, params.max_speed)
        theta = wrap(theta + speed * params.dt)
        state = PendulumState(jnp.stack([theta, speed]).astype(jnp.float32), state.time + 1)
        truncated = state.time >= params.max_steps
        return self.observe(state), state, (-cost).astype(jnp.float32), jnp.bool(False), truncated, {}

    def observation_space(self, params):
        high = spaces.bounds(1.0, 1.0, params.max_speed)
        return spaces.Box(-high, high, (3,), np.float32)

    def action_space(self, params):
        return spaces.Box(-params.max_torque, params.max_torque, (1,), np.float32)

    def render(self, state):
        """The pendulum from the front, as uint8 `[240, 240, 3]`."""
        theta = float(state.physics[0])
        picture = blank(240, 240)
        rod(picture, (120, 120), (120 - 90 * np.sin(theta), 120 - 90 * np.cos(theta)), 16, RED)
        disc(picture, (120, 120), 4, BLACK)
        return picture
