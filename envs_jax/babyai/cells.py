"""Sets of cells as words of bits: uint32 `[..., W]`, bit y of word x for the cell (x, y).

A border of walls is assumed, as BabyAI's grids have one: steps wrap around at the edge, onto cells that no path uses.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def words(mask: jax.Array) -> jax.Array:
    """A bool mask `[..., W, H]` as a set of cells."""
    bits = np.uint32(1) << np.arange(mask.shape[-1], dtype=np.uint32)
    return jnp.sum(jnp.where(mask, bits, np.uint32(0)), axis=-1, dtype=jnp.uint32)


def marked(x: jax.Array, y: jax.Array, mask: jax.Array, width: int) -> jax.Array:
    """The cells `x`, `y`, integers `[N]`, where `mask` bool `[N]` holds, as a set; a cell may occur more than once."""
    bits = jnp.where(mask, np.uint32(1) << y.astype(jnp.uint32), np.uint32(0))
    own = x == np.arange(width)[:, None]
    return jax.lax.reduce(jnp.where(own, bits, np.uint32(0)), np.uint32(0), jax.lax.bitwise_or, (1,))


def single(x: jax.Array, y: jax.Array, width: int) -> jax.Array:
    """The set of one cell, integers `[]`."""
    return jnp.where(np.arange(width) == x, np.uint32(1) << y.astype(jnp.uint32), np.uint32(0))


def holds(cells: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Whether the cells `x`, `y`, integers `[N]` or `[]`, are in sets `[..., W]`: bool `[..., N]` or `[...]`."""
    return jnp.take(cells, x, axis=-1, mode="clip") >> y.astype(jnp.uint32) & 1 == 1


def behind(cells: jax.Array, heading: int) -> jax.Array:
    """The cells from which one step in a heading leads into a set."""
    if heading % 2 == 0:
        return jnp.roll(cells, -1 if heading == 0 else 1, -1)
    return cells >> 1 if heading == 1 else cells << 1


def around(cells: jax.Array) -> jax.Array:
    """The cells beside those of a set, on its four sides."""
    return behind(cells, 0) | behind(cells, 1) | behind(cells, 2) | behind(cells, 3)


def flood(start: jax.Array, through: jax.Array) -> jax.Array:
    """What is reached from a set, itself included, by steps onto the cells of `through`."""

    def body(carry):
        cells, _ = carry
        grown = cells | around(cells) & through
        grown = grown | around(grown) & through
        return grown, jnp.any(grown != cells)

    return jax.lax.while_loop(lambda carry: carry[1], body, (start, jnp.bool_(True)))[0]
