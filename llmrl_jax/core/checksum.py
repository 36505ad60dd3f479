"""A checksum of an array's bits, computed on its devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from envs_jax.hashing import mixed_bits


def words(x: jax.Array) -> UInt32[Array, "*S"]:
    """The bits of an array as uint32, one or two words for each element."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    width = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32)


def checksum(x: jax.Array) -> UInt32[Array, ""]:
    """The sum modulo 2^32 of an array's words, each weighted by a hash of its position in row-major order.

    It does not depend on the number of devices or the order of addition. Weights are odd, so a change of one word
    always changes the sum. They are not an affine function of the position: with such weights, two rows with equal
    sums could be exchanged without a change of the checksum.
    """
    bits = words(x)
    position, stride = jnp.full(bits.shape, np.uint32(0x9E3779B9)), 1
    for axis in reversed(range(bits.ndim)):
        iota = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        position, stride = position + np.uint32(stride % 2**32) * iota, stride * bits.shape[axis]
    return jnp.sum(bits * (mixed_bits(position) | np.uint32(1)), dtype=jnp.uint32)
