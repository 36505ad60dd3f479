"""Sets of cells as words of bits: uint32 `[..., W]`, bit y of word x for the cell (x, y).

A border of walls is assumed, as BabyAI's grids have one: steps wrap around at the edge, onto cells that no path uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing


STRIDE = 8
"""Steps of a search between two checks for its end: over many environments a check costs as much as a step. They run in
an inner loop, as XLA's CPU compiler fuses unrolled steps, and recomputes each one for the next."""


def words(mask: jax.Array) -> jax.Array:
    """A bool mask `[..., W, H]` as a set of cells."""
    bits = np.uint32(1) << np.arange(mask.shape[-1], dtype=np.uint32)
    return jnp.sum(jnp.where(mask, bits, np.uint32(0)), axis=-1, dtype=jnp.uint32)


def marked(x: jax.Array, y: jax.Array, mask: jax.Array, width: int) -> jax.Array:
    """The cells `x`, `y`, integers `[N]`, where `mask` bool `[N]` holds, as a set; a cell may occur more than once."""
    bits = jnp.where(mask, np.uint32(1) << y.astype(jnp.uint32), np.uint32(0))

    def mark(x, bits):
        column = np.arange(width).reshape(-1, *[1] * (x.ndim - 1))
        empty = jnp.zeros((width, *x.shape[1:]), jnp.uint32)
        return tracing.fori_loop(
            0, x.shape[0], lambda i, cells: cells | jnp.where(column == x[i], bits[i], np.uint32(0)), empty
        )

    return worlds_last(mark)(x, bits)


def single(x: jax.Array, y: jax.Array, width: int) -> jax.Array:
    """The set of one cell, integers `[]`."""
    return jnp.where(np.arange(width) == x, np.uint32(1) << y.astype(jnp.uint32), np.uint32(0))


def holds(cells: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return whether the cells `x`, `y`, integers `[N]` or `[]`, are in sets `[..., W]`: bool `[..., N]` or `[...]`."""
    return jnp.take(cells, x, axis=-1, mode="clip") >> y.astype(jnp.uint32) & 1 == 1


def predecessors(cells: jax.Array, heading: int, axis: int = -1) -> jax.Array:
    """The cells from which one step in a heading enters a set; `axis` is that of its words."""
    if heading % 2 == 0:
        return jnp.roll(cells, -1 if heading == 0 else 1, axis)
    return cells >> 1 if heading == 1 else cells << 1


def around(cells: jax.Array, axis: int = -1) -> jax.Array:
    """The four neighbours of each cell of a set."""
    return (
        predecessors(cells, 0, axis)
        | predecessors(cells, 1, axis)
        | predecessors(cells, 2, axis)
        | predecessors(cells, 3, axis)
    )


def worlds_last(search: Callable[..., Any]) -> Callable[..., Any]:
    """`search` with the batch axis last instead of first under `vmap`.

    A step onto the next word is then a shift by a whole batch, which vectorises. A loop in `search` is shared by all
    environments: it runs until the last one is finished, and must not change the results of the others.

    **Arguments:** `search`, a function of arrays with any number of extra trailing axes, which depends on no other
    traced value.
    """
    batched = jax.custom_batching.custom_vmap(search)

    @batched.def_vmap
    @tracing.standard_promotion
    def rule(size, mapped, *args):
        last = [
            jnp.moveaxis(a, 0, -1) if m else jnp.broadcast_to(a[..., None], (*a.shape, size))
            for a, m in zip(args, mapped)
        ]
        result = batched(*last)
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), result), jax.tree.map(lambda _: True, result)

    return batched


def flood(start: jax.Array, passable: jax.Array) -> jax.Array:
    """The cells that are reached from a set by steps onto the cells of `passable`, the set included."""
    axis = start.ndim - 1

    def search(start, passable):
        def step(_, cells):
            return cells | around(cells, axis) & passable

        def body(carry):
            cells, _ = carry
            grown = tracing.fori_loop(0, STRIDE, step, cells)
            return grown, jnp.any(grown != cells)

        return tracing.while_loop(lambda carry: carry[1], body, (start, jnp.bool_(True)))[0]

    return worlds_last(search)(start, passable)
