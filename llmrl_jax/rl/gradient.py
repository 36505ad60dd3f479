"""Gradient steps, as every learner takes them: in microbatches, clipped by their global norm, by Adam."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float


Sums = TypeVar("Sums")


def traced_floats(config: Any) -> dict[str, jax.Array]:
    """The float fields of a configuration by name, as float32 `[]`: part of a learner's state, so that they can differ
    between the rows of a vmap and change without a compilation."""
    floats = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.type == "float"}
    return {name: jnp.float32(x) for name, x in floats.items()}


def in_parts(tree: Any, count: int, axis: int = 0) -> Any:
    """The rows of a batch in `count` parts, as a new leading axis.

    Part `j` takes the rows `j, j + count, ...`, so that over a mesh each part lies on all devices.

    **Arguments:** `tree`, leaves with rows along `axis`; `count`, which divides them.
    **Returns:** leaves `[count, ...]` with `rows / count` rows along the following `axis`.
    """

    def part(x):
        before, rows, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        return jnp.moveaxis(x.reshape(*before, rows // count, count, *after), axis + 1, 0)

    return jax.tree.map(part, tree)


def accumulate(part: Callable[[Any], tuple[Sums, Any]], zero: Sums, parts: Any) -> tuple[Sums, Any]:
    """Gradients of the parts of a batch, computed one after the other so that one part's activations exist at once.

    **Arguments:** `part`, from the rows of one part to what is added up (gradients, and the loss if it is a sum over
    rows) and to what is kept apart; `zero`, a tree of zeros like the first; `parts`, see `in_parts`.
    **Returns:** the sums, and what is kept apart with a leading axis of parts.
    """

    def add(total, rows):
        found, apart = part(rows)
        return jax.tree.map(jnp.add, total, found), apart

    return jax.lax.scan(add, zero, parts)


def clip(grads: Any, limit: Any) -> Any:
    """Gradients scaled to a global norm of at most `limit` (Pascanu et al., 1211.5063); inf leaves them as they are."""
    scale = jnp.minimum(1.0, limit / jnp.maximum(optax.tree.norm(grads), 1e-12))
    return jax.tree.map(lambda g: g * scale, grads)


def clipped_adam(hparams: dict[str, Any]) -> optax.GradientTransformation:
    """Adam (Kingma & Ba, 1412.6980) on gradients that `clip` has scaled; its state is Adam's alone.

    **Arguments:** `hparams`, with `max_grad_norm`, `adam_b1`, `adam_b2` and `adam_eps`; they may be traced.
    """
    adam = optax.scale_by_adam(hparams["adam_b1"], hparams["adam_b2"], hparams["adam_eps"])

    def update(grads, state, params=None):
        return adam.update(clip(grads, hparams["max_grad_norm"]), state, params)

    return optax.GradientTransformation(adam.init, update)


def descend(
    optimizer: optax.GradientTransformation, params: Any, grads: Any, opt_state: Any, learning_rate: Any
) -> tuple[Any, Any, Float[Array, ""]]:
    """One gradient step: `params - learning_rate * direction`.

    **Arguments:** `optimizer`, from gradients to a direction (`clipped_adam`, a chain of optax); `params`, `grads`,
    `opt_state`; `learning_rate`, a float or a float32 `[]`.
    **Returns:** the parameters, each in its own dtype, the optimiser's state, and the norm of the gradients as given.
    """
    norm = optax.tree.norm(grads)
    direction, opt_state = optimizer.update(grads, opt_state, params)
    params = jax.tree.map(lambda p, d: p - (learning_rate * d).astype(p.dtype), params, direction)
    return params, opt_state, norm


def linear_decay(update: Any, updates: Any) -> Float[Array, ""]:
    """What is left of a step size at an update: from 1 at the first linearly to 0 at `updates`, and 0 from there on."""
    return jnp.maximum(0.0, 1 - update / updates)


FLATTEN_BELOW = 100_000
"""Numbers, in all, up to which a tree is flattened: above it, copying costs more than operations do."""


class FlatTree:
    """A small tree of parameters as one vector, so that an optimiser's step is one operation and not one per leaf."""

    def __init__(self, params: Any, *, allowed: bool = True):
        """**Arguments:** `params`; `allowed`, False to leave every tree as it is (on a mesh its leaves lie in different
        places). A large tree, or one of several dtypes, is left as it is too."""
        leaves = jax.tree.leaves(params)
        one_dtype = len({x.dtype for x in leaves}) == 1
        self.flattens = allowed and one_dtype and sum(x.size for x in leaves) <= FLATTEN_BELOW
        self._restore = ravel_pytree(params)[1] if self.flattens else None

    def flatten(self, tree: Any) -> Any:
        """The vector that gradient steps see."""
        return ravel_pytree(tree)[0] if self.flattens else tree

    def restore(self, vector: Any) -> Any:
        """Back to the tree."""
        return self._restore(vector) if self._restore else vector

    def flatten_moments(self, opt_state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Adam's moments as vectors."""
        return opt_state._replace(mu=self.flatten(opt_state.mu), nu=self.flatten(opt_state.nu))

    def restore_moments(self, opt_state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        """Adam's moments as trees."""
        return opt_state._replace(mu=self.restore(opt_state.mu), nu=self.restore(opt_state.nu))
