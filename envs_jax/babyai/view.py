"""The agent's 7x7 view with MiniGrid's occlusion (`Grid.process_vis` of `minigrid.core.grid`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.babyai.constants import DOOR, DX, DY, OPEN, VIEW, WALL
from envs_jax.babyai.state import (
    COLOR_MASK,
    COLOR_SHIFT,
    EMPTY_CELL,
    STATE_MASK,
    STATE_SHIFT,
    TYPE_MASK,
    WALL_CELL,
    state_of,
    type_of,
)


ROW = (1 << VIEW) - 1
"""A row of the view as bits: bit i is column i."""

AGENT_I, AGENT_J = VIEW // 2, VIEW - 1


FAR_ROWS = 4
"""The seven rows of a view are stored in two words of bits: the farthest four, and the nearest three."""


def _cell_bits() -> tuple[np.ndarray, np.ndarray]:
    """The bit of each cell (numbered column by column, as in the image) in the two words: uint32 `[49]` each."""
    i, j = np.divmod(np.arange(VIEW * VIEW), VIEW)
    bit = np.uint32(1) << (i + VIEW * np.where(j < FAR_ROWS, j, j - FAR_ROWS)).astype(np.uint32)
    return np.where(j < FAR_ROWS, bit, 0).astype(np.uint32), np.where(j < FAR_ROWS, 0, bit).astype(np.uint32)


_BITS = _cell_bits()


def front(position: jax.Array, direction: jax.Array) -> jax.Array:
    """The cell in front of a pose: int32 `[2]`."""
    return position + jnp.stack([_lookup(DX, direction), _lookup(DY, direction)])


def _lookup(table: tuple[int, ...], index: jax.Array) -> jax.Array:
    """The table entry of a heading, by comparisons, which vectorise, unlike a gather."""
    return jnp.asarray(sum((index == i) * value for i, value in enumerate(table) if value), jnp.int32)


def _spread(seeds: jax.Array, transparent: jax.Array, sign: int) -> jax.Array:
    """Bits of a row reached from `seeds` by stepping towards higher (`sign` 1) or lower bits, stepping only from cells
    in `transparent`; the seeds included."""

    def shift(x, n):
        return x << n if sign > 0 else x >> n

    sources, span = seeds & transparent, transparent
    for n in (1, 2, 4):
        sources = sources | span & shift(sources, n)
        span = span & shift(span, n)
    return seeds | shift(sources, 1) & ROW


def visible(clear: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """MiniGrid's visibility sweep on rows of bits.

    **Arguments:** `clear`, the two words of a view: the transparent cells.
    **Returns:** two words: the lit cells. Rows are swept from the agent's outwards, left to right and then right to
    left; a lit, transparent cell lights its neighbour in the direction of the sweep, the cell ahead of it and the one
    ahead of that neighbour.

    A loop instead of seven copies of its body, so that XLA's CPU compiler computes the words once: it fuses code
    without a loop into every consumer, element by element.
    """

    def row(k, carry):
        lit, lit_far, lit_near = carry
        j = VIEW - 1 - k
        shift = (VIEW * jnp.where(j < FAR_ROWS, j, j - FAR_ROWS)).astype(jnp.uint32)
        transparent = jnp.where(j < FAR_ROWS, clear[0], clear[1]) >> shift & ROW
        right = _spread(lit, transparent, 1)
        swept = _spread(right, transparent, -1)
        lit_far, lit_near = (
            lit_far | jnp.where(j < FAR_ROWS, swept << shift, 0),
            lit_near | jnp.where(j < FAR_ROWS, 0, swept << shift),
        )
        going_right, going_left = right & transparent, swept & transparent
        ahead = (going_right | going_right << 1 | going_left | going_left >> 1) & ROW
        return ahead, lit_far, lit_near

    zeros = jnp.zeros_like(clear[0])
    _, lit_far, lit_near = tracing.fori_loop(0, VIEW, row, (jnp.full_like(zeros, 1 << AGENT_I), zeros, zeros))
    return lit_far, lit_near


def window(grid: jax.Array, position: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The contents of the 49 cells of the view, and which of them are visible.

    **Arguments:** `grid`, int16 `[W, H]` of packed cells; `position`, int32 `[2]`; `direction`, int32 `[]`.
    **Returns:** packed cells, int32 `[49]`, walls outside of the grid; bool `[49]`. Column by column, far to near.
    """
    width, height = grid.shape
    ahead = np.repeat(AGENT_J - np.arange(VIEW)[None], VIEW, 0).reshape(-1).astype(np.int32)
    aside = np.repeat(np.arange(VIEW)[:, None] - AGENT_I, VIEW, 1).reshape(-1).astype(np.int32)
    dx, dy = _lookup(DX, direction), _lookup(DY, direction)
    x = position[0] + dx * ahead - dy * aside
    y = position[1] + dy * ahead + dx * aside
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    cells = jnp.take(grid.reshape(-1), x * height + y, mode="clip")
    cells = jnp.where(inside, cells, WALL_CELL).astype(jnp.int32)

    kind = type_of(cells)
    clear = (kind != WALL) & ((kind != DOOR) | (state_of(cells) == OPEN))
    words = [jnp.sum(jnp.where(clear, bits, np.uint32(0)), dtype=jnp.uint32) for bits in _BITS]
    lit_far, lit_near = visible((words[0], words[1]))
    return cells, (jnp.where(_BITS[0] > 0, lit_far, lit_near) & (_BITS[0] | _BITS[1])) != 0


def view(grid: jax.Array, position: jax.Array, direction: jax.Array, carrying: jax.Array) -> jax.Array:
    """The observed image.

    **Arguments:** as in `window`; `carrying`, int16 `[]`, packed, 0 for nothing.
    **Returns:** uint8 `[7, 7, 3]`: type, colour, state of the cell at column i (left to right), row j (far to near);
    zeros if unseen. The agent's own cell shows the object that it carries.
    """
    cells, lit = window(grid, position, direction)
    is_agent = np.arange(VIEW * VIEW) == AGENT_I * VIEW + AGENT_J
    cells = jnp.where(is_agent, jnp.where(carrying > 0, carrying, EMPTY_CELL).astype(jnp.int32), cells)
    cells = jnp.where(lit, cells, 0)
    # one shift and one mask per channel, not a stack of three arrays: XLA vectorises this one
    image = cells[:, None] >> np.array([0, COLOR_SHIFT, STATE_SHIFT]) & np.array([TYPE_MASK, COLOR_MASK, STATE_MASK])
    return image.astype(jnp.uint8).reshape(VIEW, VIEW, 3)
