"""CartPole-v1 as Gymnasium 1.3 has it (Barto, Sutton and Anderson, 1983), time limit included."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.env import Environment


@struct.dataclass
class CartPoleParams:
    """Gymnasium's constants, in SI units and radians."""

    gravity: Any = 9.8
    mass_cart: Any = 1.0
    mass_pole: Any = 0.1
    half_length: Any = 0.5
    """Half the length of the pole."""
    force: Any = 10.0
    """Magnitude of the force of a push."""
    tau: Any = 0.02
    """Seconds between steps (explicit Euler)."""
    theta_limit: Any = 12 * 2 * math.pi / 360
    """The episode terminates beyond this angle of the pole."""
    x_limit: Any = 2.4
    """The episode terminates beyond this position of the cart."""
    max_steps: Any = 500
    """Steps until truncation."""


@struct.dataclass
class CartPoleState:
    """The physical state and the step count."""

    physics: jax.Array
    """float32 `[4]`: position, velocity, angle, angular velocity."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class CartPole(Environment[CartPoleState, CartPoleParams]):
    """Keep a pole upright by pushing its cart left (0) or right (1).

    Observation: float32 `[4]`, the physical state. Reward: 1 per step; with `sutton_barto_reward` 0 per step, and -1 on
    termination. Terminated when the pole falls or the cart leaves the track; truncated after `max_steps`.
    """

    id = "CartPole-v1"

    def __init__(self, sutton_barto_reward: bool = False):
        """**Arguments:** `sutton_barto_reward`, as Gymnasium's option of the same name."""
        self.sutton_barto_reward = sutton_barto_reward

    @property
    def default_params(self):
        return CartPoleParams()

    def reset(self, key, params):
        physics = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return physics, CartPoleState(physics, jnp.int32(0))

    def step(self, key, state, action, params):
        x, x_dot, theta, theta_dot = (state.physics[i] for i in range(4))
        force = jnp.where(action == 1, params.force, -params.force)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        total = params.mass_cart + params.mass_pole
        moment = params.mass_pole * params.half_length
        push = (force + moment * theta_dot**2 * sin) / total
        theta_acc = (params.gravity * sin - cos * push) / (
            params.half_length * (4.0 / 3.0 - params.mass_pole * cos**2 / total)
        )
        x_acc = push - moment * theta_acc * cos / total
        change = jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
        physics = (state.physics + params.tau * change).astype(jnp.float32)
        time = state.time + 1
        terminated = (jnp.abs(physics[0]) > params.x_limit) | (jnp.abs(physics[2]) > params.theta_limit)
        truncated = time >= params.max_steps
        reward = jnp.where(terminated, -1.0, 0.0) if self.sutton_barto_reward else jnp.float32(1)
        return physics, CartPoleState(physics, time), reward.astype(jnp.float32), terminated, truncated, {}

    def observation_space(self, params):
        high = spaces.bounds(2 * params.x_limit, np.inf, 2 * params.theta_limit, np.inf)
        return spaces.Box(-high, high, (4,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(2)

    @property
    def action_names(self):
        return ("push left", "push right")

    def render(self, state):
        """The cart and its pole from the side, 80 pixels per metre, as uint8 `[200, 480, 3]`."""
        x, _, theta, _ = np.asarray(state.physics, np.float64)
        picture = np.full((200, 480, 3), 255, np.uint8)
        picture[160] = 0
        rows, columns = np.mgrid[:200, :480]
        dx, dy = columns - (240 + 80 * x), 145 - rows
        picture[(np.abs(dx) < 25) & (np.abs(dy + 5) < 10)] = (0, 0, 0)
        along, offset = dx * np.sin(theta) + dy * np.cos(theta), dx * np.cos(theta) - dy * np.sin(theta)
        picture[(np.abs(offset) < 4) & (along > 0) & (along < 80)] = (202, 152, 101)
        return picture
