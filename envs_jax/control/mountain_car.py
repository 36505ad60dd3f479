"""MountainCar-v0 and MountainCarContinuous-v0 as Gymnasium 1.3 has them (Moore, 1990), time limits included."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.control.render import BLACK, GRAY, YELLOW, blank, rod
from envs_jax.env import Environment


@struct.dataclass
class MountainCarParams:
    """Gymnasium's constants for discrete actions; lengths in the units of the track, time in steps."""

    min_position: Any = -1.2
    """Position of the wall on the left, which stops the car."""
    max_position: Any = 0.6
    max_speed: Any = 0.07
    goal_position: Any = 0.5
    goal_velocity: Any = 0.0
    """The smallest velocity with which the car must reach the goal."""
    force: Any = 0.001
    """Acceleration at full throttle (`power` in Gymnasium's continuous version)."""
    gravity: Any = 0.0025
    max_steps: Any = 200
    """Steps until truncation."""


@struct.dataclass
class MountainCarState:
    """The physical state of the car and the step count."""

    physics: jax.Array
    """float32 `[2]`: position, velocity."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class _Valley(Environment[MountainCarState, MountainCarParams]):
    """A car between two hills, too weak to climb out without swinging back and forth.

    Observation: float32 `[2]`, position and velocity. Terminated at the goal; truncated after `max_steps`.
    """

    def __init__(self, goal_velocity: float = 0.0):
        """**Arguments:** `goal_velocity`, as Gymnasium's option of the same name."""
        self.goal_velocity = goal_velocity

    def reset(self, key, params):
        position = jax.random.uniform(key, (), jnp.float32, -0.6, -0.4)
        position = jnp.clip(position, params.min_position, params.max_position).astype(jnp.float32)
        physics = jnp.stack([position, jnp.zeros_like(position)])
        return physics, MountainCarState(physics, jnp.int32(0))

    def _drive(self, state, throttle, params):
        """One step of the car under `throttle` in [-1, 1]: the state after it, terminated, truncated."""
        position, velocity = state.physics[0], state.physics[1]
        velocity = velocity + (throttle * params.force - params.gravity * jnp.cos(3 * position))
        velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
        position = jnp.clip(position + velocity, params.min_position, params.max_position)
        velocity = jnp.where((position == params.min_position) & (velocity < 0), 0.0, velocity)
        terminated = (position >= params.goal_position) & (velocity >= params.goal_velocity)
        state = MountainCarState(jnp.stack([position, velocity]).astype(jnp.float32), state.time + 1)
        return state, terminated, state.time >= params.max_steps

    def observation_space(self, params):
        low = spaces.bounds(params.min_position, -params.max_speed)
        high = spaces.bounds(params.max_position, params.max_speed)
        return spaces.Box(low, high, (2,), np.float32)

    def render(self, state):
        """The valley from the side, with the car and the goal's flag, as uint8 `[320, 480, 3]`."""
        params, position = self.default_params, float(state.physics[0])
        scale = 480 / (params.max_position - params.min_position)

        def pixel(x, lift=0.0):
            height = 0.45 * np.sin(3 * x) + 0.55 + lift
            return np.array([(x - params.min_position) * scale, 310 - height * scale])

        picture = blank(320, 480)
        ground = pixel(params.min_position + np.arange(480) / scale)[1]
        picture[np.arange(320)[:, None] >= ground] = GRAY
        tilt = np.arctan(3 * 0.45 * np.cos(3 * position))
        ahead, normal = np.array([np.cos(tilt), -np.sin(tilt)]), np.array([-np.sin(tilt), -np.cos(tilt)])
        middle = pixel(position) + 8 * normal
        rod(picture, middle - 16 * ahead, middle + 16 * ahead, 14, BLACK)
        flag = pixel(params.goal_position, 0.15)
        rod(picture, pixel(params.goal_position), flag, 2, BLACK)
        rod(picture, flag, flag + [20, 0], 10, YELLOW)
        return picture


class MountainCar(_Valley):
    """Drive the car up the right hill with full throttle to the left (0), no throttle (1) or full throttle to the right
    (2).

    Observation: float32 `[2]`, position and velocity. Reward: -1 per step. Terminated at the goal; truncated after
    `max_steps`.
    """

    id = "MountainCar-v0"

    @property
    def default_params(self):
        return MountainCarParams(goal_velocity=self.goal_velocity)

    def step(self, key, state, action, params):
        state, terminated, truncated = self._drive(state, jnp.asarray(action - 1, jnp.float32), params)
        return state.physics, state, jnp.float32(-1), terminated, truncated, {}

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def action_names(self):
        return ("accelerate left", "coast", "accelerate right")


class MountainCarContinuous(_Valley):
    """Drive the car up the right hill with a continuous throttle, at a small cost.

    Observation: float32 `[2]`, position and velocity. Action: float32 `[1]`, the throttle, clipped to [-1, 1]. Reward:
    -0.1 times the square of the action before clipping, and 100 for reaching the goal. Terminated at the goal;
    truncated after `max_steps`.
    """

    id = "MountainCarContinuous-v0"

    @property
    def default_params(self):
        return MountainCarParams(goal_position=0.45, goal_velocity=self.goal_velocity, force=0.0015, max_steps=999)

    def step(self, key, state, action, params):
        throttle = action[0]
        state, terminated, truncated = self._drive(state, jnp.clip(throttle, -1.0, 1.0), params)
        reward = jnp.where(terminated, 100.0, 0.0) - 0.1 * throttle**2
        return state.physics, state, reward.astype(jnp.float32), terminated, truncated, {}

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
