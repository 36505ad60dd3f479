"""Random permutations, by a sort that is fast on every backend."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def permutations(key: jax.Array, count: int, n: int) -> Int[Array, "{count} {n}"]:
    """`count` random permutations of `0 .. n - 1`, int32.

    Each number is packed with random bits above it into one uint32, and the words are sorted: XLA sorts one operand
    several times faster than the two of `jax.random.permutation`. The cost is that the bits may tie, and then the
    smaller number comes first: for `n` = 1,000 one permutation in eight has such a pair.

    **Raises:** `ValueError` for an `n` that leaves fewer than 8 random bits.
    """
    low = max(n - 1, 1).bit_length()
    if low > 24:
        raise ValueError(f"cannot shuffle {n} numbers: at most {2**24} leave enough random bits in a word")
    bits = jax.random.bits(key, (count, n), jnp.uint32)
    words = (bits >> low << low) | jnp.arange(n, dtype=jnp.uint32)
    return (jnp.sort(words, axis=-1) & jnp.uint32(2**low - 1)).astype(jnp.int32)
