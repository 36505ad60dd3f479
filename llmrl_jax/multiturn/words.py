"""Trees as words of 32 bits: packed, so that one write keeps a whole tree, and hashed to a number."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from envs_jax.hashing import mixed_bits


def pack(tree: Any) -> Int[Array, "N F"]:
    """Leaves `[N, ...]` of up to 32 bits as words, so that one write keeps them all."""

    def words(x: jax.Array) -> jax.Array:
        x = x.reshape(len(x), -1)
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
        return x.astype(jnp.int32)

    return jnp.concatenate([words(x) for x in jax.tree.leaves(tree)], axis=1)


def unpack(words: Int[Array, "N T F"], like: Any) -> Any:
    """The tree of leaves `[N, T, ...]` that `pack` made words of. **Arguments:** `like`, its leaves at one token."""
    leaves, tree = jax.tree.flatten(like)
    unpacked, start = [], 0
    for leaf in leaves:
        size = math.prod(leaf.shape[1:])
        x = words[..., start : start + size].reshape(*words.shape[:2], *leaf.shape[1:])
        start += size
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            x = jax.lax.bitcast_convert_type(x, jnp.float32)
        unpacked.append(x.astype(leaf.dtype))
    return jax.tree.unflatten(tree, unpacked)


def number_of(obs: Any) -> Int[Array, " N"]:
    """A number of each row's observation, equal for equal ones: its parts hashed as MurmurHash3 ends. int32."""
    leaves = jax.tree.leaves(obs)
    value = jnp.zeros(len(leaves[0]), jnp.uint32)
    for leaf in leaves:
        flat = jnp.asarray(leaf).reshape(len(leaf), -1)
        if jnp.issubdtype(flat.dtype, jnp.floating):
            flat = jax.lax.bitcast_convert_type(flat.astype(jnp.float32), jnp.int32)
        flat = flat.astype(jnp.uint32)
        places = np.arange(flat.shape[1], dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(0x7F4A7C15)
        value = mixed_bits(value ^ jnp.sum(mixed_bits(flat ^ places), axis=1, dtype=jnp.uint32))
    return jax.lax.bitcast_convert_type(value, jnp.int32)
