"""Functions on pytrees of arrays: leaves by name, placement, checksums, finiteness."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from llmrl_jax.core.checksum import checksum, words
from llmrl_jax.parallel import Placement


def is_key(x: Any) -> bool:
    """Return whether an array (or its abstract value) holds typed PRNG keys."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their dotted names, in the tree's order.

    **Raises:** `ValueError` if two leaves have the same name.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in leaves:
            raise ValueError(f"two leaves of the state are named {name!r}; a checkpoint needs distinct names")
        leaves[name] = leaf
    return leaves


def mesh_of(tree: Any) -> jax.sharding.Mesh | None:
    """The mesh of the leaves; None if all are on single devices."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(getattr(leaf, "sharding", None), NamedSharding) and leaf.sharding.mesh.size > 1:
            return leaf.sharding.mesh
    return None


def settle(state: Any) -> Any:
    """A state whose types and placement are the same from call to call.

    Weak types become strong, and leaves outside the mesh of the others are replicated over it, so that one compiled
    program accepts its own output.
    """

    def strong(x):
        if not isinstance(x, jax.Array):
            x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype) if not is_key(x) and x.weak_type else x

    return Placement(mesh_of(state)).device_put(jax.tree.map(strong, state))


def _affine_checksum(x: jax.Array) -> jax.Array:
    """The checksum of format 1, whose weights are an affine function of the position."""
    bits = words(x)
    weight = jnp.ones(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        even = np.uint32((2 * 2654435761 + 4 * axis) % 2**32)
        weight = weight + even * jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    return jnp.sum(bits * weight, dtype=jnp.uint32)


@functools.partial(jax.jit, static_argnums=1)
def _checksums(leaves: list[jax.Array], version: int) -> list[jax.Array]:
    checksum_of = _affine_checksum if version == 1 else checksum
    return [checksum_of(x) for x in leaves]


CHECKSUMS = 2
"""The current version of `checksums`: 2 weights words by a hash of their position, 1 by the position itself."""


def checksums(leaves: dict[str, jax.Array], version: int = CHECKSUMS) -> dict[str, int]:
    """A 32-bit checksum of the bits of each array, computed on its devices: `llmrl_jax.core.checksum`.

    **Arguments:** `leaves`; `version`, 1 to compare with the checksums of checkpoints of format 1.
    """
    return dict(zip(leaves, (int(x) for x in jax.device_get(_checksums(list(leaves.values()), version)))))


@jax.jit
def _finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves])


def non_finite(tree: Any) -> list[str]:
    """The names of the floating leaves that hold a nan or an infinity."""
    leaves = {n: x for n, x in named_leaves(tree).items() if jnp.issubdtype(x.dtype, jnp.floating) and x.size}
    if not leaves:
        return []
    return [name for name, ok in zip(leaves, np.asarray(_finite(list(leaves.values())))) if not ok]
