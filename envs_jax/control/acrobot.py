"""Acrobot-v1 as Gymnasium 1.3 has it (Sutton, 1996), time limit included."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.control.angles import wrap
from envs_jax.control.render import BLACK, TEAL, YELLOW, blank, disc, rod
from envs_jax.env import Environment


@struct.dataclass
class AcrobotParams:
    """Gymnasium's constants, in SI units and radians; link 1 hangs from the ceiling, link 2 from link 1."""

    gravity: Any = 9.8
    length_1: Any = 1.0
    mass_1: Any = 1.0
    mass_2: Any = 1.0
    center_1: Any = 0.5
    """Distance from a link's upper end to its center of mass."""
    center_2: Any = 0.5
    inertia: Any = 1.0
    """Moment of inertia of either link."""
    torque: Any = 1.0
    """Magnitude of the torque on the joint between the links."""
    max_speed_1: Any = 4 * math.pi
    max_speed_2: Any = 9 * math.pi
    dt: Any = 0.2
    """Seconds between steps (one step of Runge-Kutta, order 4)."""
    max_steps: Any = 500
    """Steps until truncation."""


@struct.dataclass
class AcrobotState:
    """The physical state and the step count."""

    physics: jax.Array
    """float32 `[4]`: angle of link 1 from hanging, angle of link 2 from link 1's, both in [-pi, pi]; their speeds."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class Acrobot(Environment[AcrobotState, AcrobotParams]):
    """Swing the lower end of two links one link's length above the ceiling, by a torque on the joint between them.

    Observation: float32 `[6]`, cosine and sine of either angle, and their speeds. Actions: torque -1, 0, 1. Reward:
    -1 per step, 0 for the last. Terminated when the end is high enough; truncated after `max_steps`.
    """

    id = "Acrobot-v1"

    def __init__(self, book_or_nips: str = "book", torque_noise_max: float = 0.0):
        """**Arguments:** those that Gymnasium has as class attributes: `book_or_nips`, the equations of Sutton and
        Barto's book, or those of the paper, which lack a term; `torque_noise_max`, the bound of uniform noise on the
        torque.
        **Raises:** `ValueError` for another `book_or_nips`.
        """
        if book_or_nips not in ("book", "nips"):
            raise ValueError(f"book_or_nips is {book_or_nips!r}; choose 'book' or 'nips'")
        self.book_or_nips, self.torque_noise_max = book_or_nips, torque_noise_max

    @property
    def default_params(self):
        return AcrobotParams()

    def observe(self, state: AcrobotState) -> jax.Array:
        """The observation of a state."""
        theta_1, theta_2, speed_1, speed_2 = (state.physics[i] for i in range(4))
        return jnp.stack([jnp.cos(theta_1), jnp.sin(theta_1), jnp.cos(theta_2), jnp.sin(theta_2), speed_1, speed_2])

    def reset(self, key, params):
        state = AcrobotState(jax.random.uniform(key, (4,), jnp.float32, -0.1, 0.1), jnp.int32(0))
        return self.observe(state), state

    def _change(self, physics, torque, params):
        """The time derivative of the physical state, both tuples of four."""
        theta_1, theta_2, speed_1, speed_2 = physics
        reach = params.mass_2 * params.length_1 * params.center_2
        cos, sin = jnp.cos(theta_2), jnp.sin(theta_2)
        inner = params.mass_2 * params.center_2**2 + params.inertia
        d1 = params.mass_1 * params.center_1**2 + params.mass_2 * params.length_1**2 + params.inertia
        d1 = d1 + inner + 2 * reach * cos
        d2 = inner + reach * cos
        phi_2 = params.mass_2 * params.center_2 * params.gravity * jnp.sin(theta_1 + theta_2)
        pull = (params.mass_1 * params.center_1 + params.mass_2 * params.length_1) * params.gravity * jnp.sin(theta_1)
        phi_1 = pull + phi_2 - reach * speed_2 * (speed_2 + 2 * speed_1) * sin
        missing = reach * speed_1**2 * sin if self.book_or_nips == "book" else 0.0
        change_2 = (torque + d2 / d1 * phi_1 - phi_2 - missing) / (inner - d2**2 / d1)
        change_1 = -(d2 * change_2 + phi_1) / d1
        return speed_1, speed_2, change_1, change_2

    def step(self, key, state, action, params):
        torque = jnp.asarray(action - 1, jnp.float32) * params.torque
        if self.torque_noise_max:
            bound = self.torque_noise_max
            torque = torque + jax.random.uniform(key, (), jnp.float32, -bound, bound)
        start = tuple(state.physics[i] for i in range(4))

        def ahead(seconds, change):
            return tuple(x + seconds * dx for x, dx in zip(start, change))

        k1 = self._change(start, torque, params)
        k2 = self._change(ahead(params.dt / 2, k1), torque, params)
        k3 = self._change(ahead(params.dt / 2, k2), torque, params)
        k4 = self._change(ahead(params.dt, k3), torque, params)
        mean = tuple(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4))
        theta_1, theta_2, speed_1, speed_2 = ahead(params.dt / 6, mean)
        theta_1, theta_2 = wrap(theta_1), wrap(theta_2)
        speed_1 = jnp.clip(speed_1, -params.max_speed_1, params.max_speed_1)
        speed_2 = jnp.clip(speed_2, -params.max_speed_2, params.max_speed_2)
        terminated = -jnp.cos(theta_1) - jnp.cos(theta_1 + theta_2) > 1.0
        state = AcrobotState(jnp.stack([theta_1, theta_2, speed_1, speed_2]).astype(jnp.float32), state.time + 1)
        reward = jnp.where(terminated, 0.0, -1.0).astype(jnp.float32)
        return self.observe(state), state, reward, terminated, state.time >= params.max_steps, {}

    def observation_space(self, params):
        high = spaces.bounds(1.0, 1.0, 1.0, 1.0, params.max_speed_1, params.max_speed_2)
        return spaces.Box(-high, high, (6,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def action_names(self):
        return ("torque -1", "no torque", "torque 1")

    def render(self, state):
        """The two links from the front, and the target height, as uint8 `[240, 240, 3]`."""
        theta_1, theta_2 = np.asarray(state.physics[:2], np.float64)
        top, scale = np.array([120.0, 120.0]), 50
        middle = top + scale * np.array([np.sin(theta_1), np.cos(theta_1)])
        end = middle + scale * np.array([np.sin(theta_1 + theta_2), np.cos(theta_1 + theta_2)])
        picture = blank(240, 240)
        picture[120 - scale] = BLACK
        for start, stop in ((top, middle), (middle, end)):
            rod(picture, start, stop, 10, TEAL)
            disc(picture, start, 5, YELLOW)
        return picture
