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
    platform, alone = tracing.platform(), mesh_of(old) is None
    for x in writes:
        if platform == "tpu" and x.new.shape[axis] == 1:
            form = _selected
        # on a TPU one by one is written out, for the rows of groups, which are few
        elif alone and (platform == "cpu" or (platform == "tpu" and x.row is not None)):
            form = _one_by_one
        else:
            form = _scattered
        old = form(old, x._replace(new=x.new.astype(old.dtype)), axis, tuple(layer))
    return old


def _one_by_one(old: Array, write: Tokens, axis: int, layer: tuple) -> Array:
    """For CPUs, where a scatter copies the stack of all layers, and TPUs, where it is a slower loop over its rows."""
    new, start, row = write
    size = old.shape[len(layer)] // len(new)

    def body(i, x):
        starts: list[Any] = [jnp.int32(0)] * x.ndim
        starts[: len(layer)] = layer
        starts[len(layer)] = i * size + (0 if row is None else row[i])
        starts[axis] = start[i]
        update = jax.lax.dynamic_index_in_dim(new, i)
        return jax.lax.dynamic_update_slice(x, update[None] if layer else update, starts)

    return tracing.fori_loop(0, len(new), body, old, unroll=tracing.platform() == "tpu")


def _scattered(old: Array, write: Tokens, axis: int, layer: tuple) -> Array:
    """For GPUs and meshes: only the slots that change are written."""
    (new, start, row), lead = write, len(layer)
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
    return jax.lax.scatter(groups, index, new, numbers, **options).reshape(old.shape)


def _selected(old: Array, write: Tokens, axis: int, layer: tuple) -> Array:
    """For TPUs, where many rows have one slot each: all slots of a layer are written."""
    new, start, row = write
    x = jax.lax.dynamic_index_in_dim(old, *layer, keepdims=False) if layer else old
    groups = grouped(x, len(new))
    mask = (jnp.arange(x.shape[axis]) == start[:, None])[:, None]
    if row is not None:
        mask = mask & (jnp.arange(groups.shape[1])[:, None] == row[:, None, None])
    shape = [1] * groups.ndim
    shape[0], shape[1], shape[axis] = mask.shape
    x = jnp.where(mask.reshape(shape), new[:, None], groups).reshape(x.shape)
    return jax.lax.dynamic_update_index_in_dim(old, x, layer[0], 0) if layer else x


def grouped(x: Array, groups: int, axis: int = 0) -> Array:
    """`x` with an axis in groups of successive rows."""
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
