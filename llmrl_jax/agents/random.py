"""Random agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from envs_jax.spaces import Box, Discrete, Space
from llmrl_jax.rl.distributions import Uniform
from llmrl_jax.rl.policy import masked_categorical


class _Chance:
    """What random agents share: they have no parameters and no memory."""

    def init(self, key: jax.Array, obs: Any) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def initial_carry(self, batch_size: int) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class RandomPolicy(_Chance):
    """Uniformly random available actions; without parameters or a value function."""

    num_actions: int

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        return masked_categorical(jnp.zeros((rows, self.num_actions)), obs), jnp.zeros(rows), carry


@dataclass(frozen=True)
class RandomBox(_Chance):
    """Uniformly random actions of a box; without parameters or a value function."""

    space: Box
    """Of actions; its bounds are finite."""

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        low, high = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), (rows, *self.space.shape))
            for x in (self.space.low, self.space.high)
        )
        return Uniform(low, high), jnp.zeros(rows), carry


def drawable(space: Space) -> bool:
    """Whether actions of a space have a uniform distribution: a discrete space, or a box with finite bounds."""
    finite = isinstance(space, Box) and bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
    return isinstance(space, Discrete) or finite


def random_policy(space: Space) -> RandomPolicy | RandomBox:
    """The random agent of a space of actions. **Raises:** `ValueError` for a space that is neither discrete nor a box
    with finite bounds."""
    if isinstance(space, Discrete):
        return RandomPolicy(space.n)
    if isinstance(space, Box) and drawable(space):
        return RandomBox(space)
    raise ValueError(f"actions are {space}; numbers from 0 on, or a box with finite bounds, can be drawn at random")
