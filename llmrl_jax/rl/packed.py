"""A small pytree as one vector, so that an optimiser's step is one operation and not one for every leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.flatten_util import ravel_pytree


PACK_BELOW = 100_000
"""Numbers, in all, up to which a tree is packed: above it, copying costs more than operations do."""


class Packed:
    """The two ways between a tree of parameters and what gradient steps see of it."""

    def __init__(self, params: Any, *, allowed: bool = True):
        """**Arguments:** `params`; `allowed`, False to leave every tree as it is (on a mesh its leaves lie in different
        places). A large tree, or one of several dtypes, is left as it is too."""
        leaves = jax.tree.leaves(params)
        alike = len({x.dtype for x in leaves}) == 1
        self.packs = allowed and alike and sum(x.size for x in leaves) <= PACK_BELOW
        self._tree = ravel_pytree(params)[1] if self.packs else None

    def one(self, tree: Any) -> Any:
        """What gradient steps see: the vector."""
        return ravel_pytree(tree)[0] if self.packs else tree

    def tree(self, vector: Any) -> Any:
        """Back to the tree."""
        return self._tree(vector) if self._tree else vector

    def each(self, change: Callable, opt_state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Adam's moments, changed alike."""
        return opt_state._replace(mu=change(opt_state.mu), nu=change(opt_state.nu))
