"""Some tokens of each row, in arrays that are as short as they are few: what only these need costs no more."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped


@struct.dataclass
class Places:
    """The places of some tokens in rows of `L`, up to `K` in each."""

    index: Int[Array, "N K"]
    """In order; behind those of a row with fewer, places of other tokens."""
    mask: Bool[Array, "N L"]
    """Which tokens they are."""

    @staticmethod
    def of(mask: Bool[Array, "N L"], count: int) -> Places:
        """The tokens of a mask. **Arguments:** `count`, `K`; of a row with more, the last ones are left out."""
        length = mask.shape[1]
        places = jnp.arange(length)
        # one sorted word for a token: faster than to sort a mask with its places
        order = jnp.sort(jnp.where(mask, places, places + length), axis=1)[:, :count]
        return Places(order % length, mask)

    @property
    def overflow(self) -> Int[Array, ""]:
        """Tokens of a row that have no place, at most."""
        return jnp.maximum(jnp.max(jnp.sum(self.mask, axis=1)) - self.index.shape[1], 0)

    def take(self, x: Shaped[Array, "N L *d"]) -> Shaped[Array, "N K *d"]:
        """`x` at the places."""
        index = self.index.reshape(self.index.shape + (1,) * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=1)

    def spread(self, x: Float[Array, "N K"]) -> Float[Array, "N L"]:
        """`x`, one number for each place, at the tokens; 0 elsewhere."""
        rank = jnp.clip(jnp.cumsum(self.mask, axis=1) - 1, 0, x.shape[1] - 1)
        return jnp.where(self.mask, jnp.take_along_axis(x, rank, axis=1), 0.0)

    def within(self, other: Places) -> Int[Array, "N K"]:
        """The index of each place in the arrays of `other`, which has all of them."""
        rank = jnp.cumsum(other.mask, axis=1) - 1
        return jnp.clip(jnp.take_along_axis(rank, self.index, axis=1), 0, other.index.shape[1] - 1)
