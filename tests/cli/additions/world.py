"""Two doors: one of two actions is right, always the same. A whole world in one folder, for `test_additions.py`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.env import Environment


@struct.dataclass
class TwoDoorsParams:
    length: Any
    """Steps of an episode."""


class TwoDoors(Environment[Any, TwoDoorsParams]):
    """Action 1 is worth 1, action 0 nothing. The best return of an episode is its length."""

    @property
    def default_params(self):
        return TwoDoorsParams(length=5)

    @property
    def action_names(self):
        return ("left door", "right door")

    def reset(self, key, params):
        return jnp.ones(1, jnp.float32), jnp.int32(0)

    def step(self, key, state, action, params):
        state = state + 1
        reward = jnp.float32(action == 1)
        return jnp.ones(1, jnp.float32), state, reward, jnp.bool(False), state >= params.length, {}

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(2)
