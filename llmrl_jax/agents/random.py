"""The random agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from llmrl_jax.rl.policy import over_offered


@dataclass(frozen=True)
class RandomPolicy:
    """Uniformly random available actions; without parameters or a value function."""

    num_actions: int

    def init(self, key: jax.Array, obs: Any) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def initial_carry(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        return over_offered(jnp.zeros((rows, self.num_actions)), obs), jnp.zeros(rows), carry
