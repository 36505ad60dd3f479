"""Writes of keys and values into slots of rows that are at different positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from envs_jax import tracing
from llmrl_jax.parallel.partition import mesh_of


class Tokens(NamedTuple):
    """Keys, or values, of `S` more tokens of one row in each of `R` groups of successive rows."""

    new: Array
    """`[R, ...]`: the shape of one row, with `S` slots."""
    start: Int[Array, "R"]
    """The first slot; slots `start` to `start + S - 1` exist."""
    row: Int[Array, "R"] | None = None
    """The row of each group; None: groups have one."""


def write_slots(old: Array, writes: Sequence[Tokens], axis: int, layer: Sequence[Any] = ()) -> Array:
    """`old` with the tokens of several writes, one after the other.

    **Arguments:** `old`, `[B, ...]`, or with `layer`, a number, `[L, B, ...]`; `axis`, that of the slots, negative.
    """
    # the mesh of arrays in a program is that of the weights they come from
    if tracing.platform() == "cpu" and mesh_of(old) is None:
        form = _one_by_one
    else:
        form = _selected if tracing.platform() == "tpu" else _scattered
    writes = [x._replace(new=x.new.astype(old.dtype)) for x in writes]
    return form(old, writes, axis, tuple(layer))


def _one_by_one(old: Array, writes: Sequence[Tokens], axis: int, layer: tuple) -> Array:
    """For CPUs, where a scatter copies the stack of all layers."""
    for new, start, row in writes:
        size = old.shape[len(layer)] // len(new)

        def body(i, x, new=new, start=start, row=row, size=size):
            starts: list[Any] = [jnp.int32(0)] * x.ndim
            starts[: len(layer)] = layer
            starts[len(layer)] = i * size + (0 if row is None else row[i])
            starts[axis] = start[i]
            update = jax.lax.dynamic_index_in_dim(new, i)
            return jax.lax.dynamic_update_slice(x, update[None] if layer else update, starts)

        old = tracing.fori_loop(0, len(new), body, old)
    return old


def _scattered(old: Array, writes: Sequence[Tokens], axis: int, layer: tuple) -> Array:
    """For GPUs: only the slots that change are written."""
    lead = len(layer)
    for new, start, row in writes:
        index = jnp.stack(jnp.broadcast_arrays(*layer, 0 if row is None else row, start), axis=-1)
        groups = grouped(old, len(new), lead)
        # written out, since `vmap` would move the axis of groups to the front: copies of all layers
        numbers = jax.lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(1, new.ndim)),
            inserted_window_dims=(*range(lead), lead + 1),
            scatter_dims_to_operand_dims=(*range(lead), lead + 1, groups.ndim + axis),
            operand_batching_dims=(lead,),
            scatter_indices_batching_dims=(0,),
        )
        options: Any = {"indices_are_sorted": True, "unique_indices": True, "mode": "promise_in_bounds"}
        old = jax.lax.scatter(groups, index, new, numbers, **options).reshape(old.shape)
    return old


def _selected(old: Array, writes: Sequence[Tokens], axis: int, layer: tuple) -> Array:
    """For TPUs, on which a scatter is a loop over its rows: all slots of a layer are written."""
    x = jax.lax.dynamic_index_in_dim(old, *layer, keepdims=False) if layer else old
    places = jnp.arange(x.shape[axis])
    for new, start, row in writes:
        size = new.shape[axis]
        here = places == start[:, None, None] + jnp.arange(size)[:, None]  # [R, S, T]
        if size == 1:
            spread = new
        else:
            last = jnp.moveaxis(new, axis, -1)
            product = jnp.einsum("r...s,rst->r...t", last, here.astype(new.dtype), precision=jax.lax.Precision.HIGHEST)
            spread = jnp.moveaxis(product, -1, axis)
        groups = grouped(x, len(new))
        mask = jnp.any(here, axis=1)[:, None]
        if row is not None:
            mask = mask & (jnp.arange(groups.shape[1])[:, None] == row[:, None, None])
        shape = [1] * groups.ndim
        shape[0], shape[1], shape[axis] = *mask.shape[:2], len(places)
        x = jnp.where(mask.reshape(shape), spread[:, None], groups).reshape(x.shape)
    return jax.lax.dynamic_update_index_in_dim(old, x, layer[0], 0) if layer else x


def grouped(x: Array, groups: int, axis: int = 0) -> Array:
    """`x` with an axis in groups of successive rows."""
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
