"""The KV cache: keys and values of the tokens so far, in arrays of a fixed capacity."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.lm.config import LlamaConfig


@struct.dataclass
class Cache:
    """`T` slots for each of `B` rows. All rows write the same slot; `positions` says what a row holds there."""

    keys: Float[Array, "L B T K h"]
    values: Float[Array, "L B T K h"]
    positions: Int[Array, "B T"]
    """The position of the token in each slot; -1 where there is none (not yet written, or padding)."""
    index: Int[Array, ""]
    """The next slot to write."""

    @staticmethod
    def create(config: LlamaConfig, batch_size: int, capacity: int, dtype: Any = jnp.float32) -> Cache:
        """An empty cache for `capacity` tokens a row, padding included."""
        shape = (config.num_hidden_layers, batch_size, capacity, config.kv_heads, config.size)
        return Cache(
            keys=jnp.zeros(shape, dtype),
            values=jnp.zeros(shape, dtype),
            positions=jnp.full((batch_size, capacity), -1, jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    @property
    def capacity(self) -> int:
        """Slots a row, `T`."""
        return self.positions.shape[1]

    def lengths(self) -> Int[Array, "B"]:
        """The position that each row's next token takes."""
        return self.positions.max(axis=1) + 1

    def append(self, positions: Int[Array | np.ndarray, "B S"]) -> Cache:
        """The cache with the next `S` slots taken by `positions`; their keys and values follow layer by layer."""
        at = jax.lax.dynamic_update_slice(self.positions, jnp.asarray(positions, jnp.int32), (0, self.index))
        return dataclasses.replace(self, positions=at, index=self.index + positions.shape[1])
