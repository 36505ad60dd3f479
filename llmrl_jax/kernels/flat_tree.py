"""A small tree of parameters as one vector for an optimiser, whose step is then one operation and not one per leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree


FLATTEN_BELOW = 100_000
"""Total size up to which a tree is flattened: above it, the copies cost more than the operations that they save."""


class FlatTree:
    """The vectors of a tree of parameters and of Adam's moments, and the trees of such vectors."""

    def __init__(self, params: Any, *, allowed: bool = True):
        """**Arguments:** `params`; `allowed`, False to leave every tree unchanged (on a mesh its leaves have different
        shardings). A large tree, or one of several dtypes, is left unchanged too."""
        leaves = jax.tree.leaves(params)
        one_dtype = len({x.dtype for x in leaves}) == 1
        self.flattens = allowed and one_dtype and sum(x.size for x in leaves) <= FLATTEN_BELOW
        self._restore: Any = None
        self._restore_moment: Any = None
        if self.flattens:
            self._restore = ravel_pytree(params)[1]
            self._restore_moment = ravel_pytree(jax.tree.map(lambda x: x.astype(jnp.float32), params))[1]

    def flatten(self, tree: Any) -> Any:
        """The vector used in gradient steps."""
        return ravel_pytree(tree)[0] if self.flattens else tree

    def restore(self, vector: Any) -> Any:
        """The tree of a vector."""
        return self._restore(vector) if self._restore else vector

    def flatten_moments(self, opt_state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Adam's moments as vectors."""
        return opt_state._replace(mu=self.flatten(opt_state.mu), nu=self.flatten(opt_state.nu))

    def restore_moments(self, opt_state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Adam's moments as trees."""
        if self._restore_moment is None:
            return opt_state
        return opt_state._replace(mu=self._restore_moment(opt_state.mu), nu=self._restore_moment(opt_state.nu))
