"""Random permutations, by a sort that is fast on every backend."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


PACKED_BELOW = 2**12
"""Largest size that is sorted in packed words: 20 random bits are left, and fewer than 0.4% of the numbers tie."""


def permutations_reference(key: jax.Array, count: int, n: int) -> Int[Array, "{count} {n}"]:
    """`permutations` by all 32 random bits of every number: for small `n` too, where it may differ in ties."""
    bits = jax.random.bits(key, (count, n), jnp.uint32)
    numbers = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 1)
    # stable, so that ties do not depend on the backend
    return jax.lax.sort((bits, numbers), dimension=1, is_stable=True, num_keys=1)[1]


def permutations(key: jax.Array, count: int, n: int) -> Int[Array, "{count} {n}"]:
    """`count` random permutations of `0 .. n - 1`, int32.

    Every number gets random bits, and the numbers are sorted by them. Where bits tie, the smaller number comes first.
    Up to `PACKED_BELOW` numbers, each is packed below its bits into one uint32: XLA sorts one operand 2 to 4 times
    faster than two. More numbers would leave too few bits (12 of them at 2^20, so that equal bits put long stretches
    of numbers into their order). There all 32 bits are the key, and the number is a second operand: at 2^20, one number
    in 4,000 ties.

    **Raises:** `ValueError` for an `n` beyond int32.
    """
    if n >= 2**31:
        raise ValueError(f"cannot shuffle {n} numbers: at most {2**31 - 1} fit int32")
    if n > PACKED_BELOW:
        return permutations_reference(key, count, n)
    bits = jax.random.bits(key, (count, n), jnp.uint32)
    low = max(n - 1, 1).bit_length()
    words = (bits >> low << low) | jnp.arange(n, dtype=jnp.uint32)
    return (jnp.sort(words, axis=-1) & jnp.uint32(2**low - 1)).astype(jnp.int32)
