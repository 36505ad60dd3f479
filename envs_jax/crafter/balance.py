"""The balance of creatures: in every chunk some appear and some vanish, by ground and daylight (`Env._balance_chunk`).

Every world is balanced every tenth step. Only the rows of a batch whose balance is due are computed, in blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax import tracing
from envs_jax.crafter import constants as c
from envs_jax.crafter.chunks import chunk_of
from envs_jax.crafter.state import cell_of, distance, kind_of, word


ALL_CHUNKS = c.CHUNKS * c.CHUNKS
MAX_SLOTS = 254
"""Slots that a lottery among the creatures of a chunk can number."""
_SIDE = np.minimum(np.arange(1, c.CHUNKS + 1) * c.CHUNK, c.AREA) - np.arange(c.CHUNKS) * c.CHUNK
WIDTH, HEIGHT = np.repeat(_SIDE, c.CHUNKS), np.tile(_SIDE, c.CHUNKS)
"""Cells per chunk in x and y, int `[36]`: 12, and 4 in the last column and row."""
LEFT, TOP = (c.CHUNK * axis.reshape(-1) for axis in np.mgrid[: c.CHUNKS, : c.CHUNKS])
"""The first cell of each chunk."""


class Rule(NamedTuple):
    """The rule by which one kind of creature is balanced."""

    kind: int
    ground: int
    """The material that it appears on: 0 for grass, 1 for path, the order of `State.room`."""
    spawn_distance: int
    """The L1 distance from the player from which on it appears."""
    despawn_distance: int
    spawn: float
    """Probability that one appears in a chunk with fewer than the least number."""
    despawn: float
    """Probability that one vanishes in a chunk with more than the largest number."""
    space: int
    """Cells of its ground without which the least number is 0."""


RULES = (
    Rule(c.ZOMBIE, 0, 6, 0, 0.3, 0.4, 50),
    Rule(c.SKELETON, 1, 7, 7, 0.1, 0.1, 6),
    Rule(c.COW, 0, 5, 5, 0.01, 0.1, 30),
)


def limits(rule: Rule, daylight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least and the largest number of creatures per chunk (with enough space), whole numbers as int32."""
    if rule.kind == c.ZOMBIE:
        limit = 3.5 - 3 * daylight
        return limit.astype(jnp.int32), limit.astype(jnp.int32)
    if rule.kind == c.SKELETON:
        return jnp.full(daylight.shape, 1), jnp.full(daylight.shape, 2)
    return jnp.full(daylight.shape, 1), (1.5 + daylight).astype(jnp.int32)


def daylight_at(step: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Daylight in [0, 1], float32."""
    progress = (step % c.DAY).astype(jnp.float32) / c.DAY + 0.3
    return 1 - jnp.abs(jnp.cos(np.float32(math.pi) * progress)) ** 3


class Balanced(NamedTuple):
    """The parts of the state that a balance changes, for `B` rows."""

    slots: UInt32[Array, "B S"]
    used: Int[Array, " B"]
    touched: UInt32[Array, "B 2"]
    lost: Int[Array, " B"]


def balance(
    keys: jax.Array,
    due: Bool[Array, " B"],
    material: UInt8[Array, "B 4096"],
    slots: UInt32[Array, "B S"],
    used: Int[Array, " B"],
    touched: UInt32[Array, "B 2"],
    room: UInt8[Array, "B 72"],
    player: Int[Array, " B"],
    daylight: Float[Array, " B"],
    margin: int,
) -> Balanced:
    """Balance the rows that are due; close the gaps in their slots, and in those of rows with few slots left.

    **Arguments:** `keys`, one per row; `player`, its cell; `margin`, empty slots that a row needs for its next step.
    """
    rows, capacity = slots.shape
    tidy = due | (used > capacity - margin)
    number = jnp.sum(tidy)
    block = max(1, min(rows, -(-rows // 8)))
    padded = -(-rows // block) * block
    order = jnp.nonzero(tidy, size=padded, fill_value=rows)[0]

    def balance_block(carry):
        start, state = carry
        index = jax.lax.dynamic_slice_in_dim(order, start, block)
        clipped = jnp.minimum(index, rows - 1)
        selected = jax.tree.map(lambda x: x[clipped], state)
        fixed = (keys, due, material, room, player, daylight)
        new = _balanced(selected, *(x[clipped] for x in fixed))
        return start + block, jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), state, new)

    state = Balanced(slots, used, touched, jnp.zeros(rows, jnp.int32))
    return tracing.while_loop(lambda carry: carry[0] < number, balance_block, (jnp.int32(0), state))[1]


def _closed(slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Slots `[R, S]` without gaps, in order, and the number of objects, int32 `[R]`."""
    alive = kind_of(slots) > 0
    count, ranks = tracing.scan(lambda n, row: (n + row, n), jnp.zeros(slots.shape[0], jnp.int32), alive.T)
    position = jnp.where(alive, ranks.T, slots.shape[1])
    rows = jnp.arange(slots.shape[0])[:, None]
    return jnp.zeros_like(slots).at[rows, position].set(slots, mode="drop", unique_indices=True), count


def _balanced(
    state: Balanced,
    keys: jax.Array,
    due: jax.Array,
    material: jax.Array,
    room: jax.Array,
    player: jax.Array,
    daylight: jax.Array,
) -> Balanced:
    """`balance` for a block of `R` rows."""
    capacity = state.slots.shape[1]
    slots, used = _closed(state.slots)
    draws = 3 * ALL_CHUNKS
    bits = jax.vmap(lambda key: jax.random.bits(key, (len(RULES) * draws + capacity,), jnp.uint32))(keys)
    priority = bits[:, len(RULES) * draws :]
    state = state._replace(slots=slots, used=used)
    words = jnp.arange(ALL_CHUNKS)
    live = (state.touched[:, words // 32] >> (words % 32).astype(jnp.uint32)) & 1 > 0  # chunks of this balance
    for i, rule in enumerate(RULES):
        dice = bits[:, i * draws : (i + 1) * draws].reshape(-1, 3, ALL_CHUNKS)
        state = _balance_kind(rule, state, dice, priority, live & due[:, None], material, room, player, daylight)
    return state


def _balance_kind(
    rule: Rule,
    state: Balanced,
    dice: jax.Array,
    priority: jax.Array,
    live: jax.Array,
    material: jax.Array,
    room: jax.Array,
    player: jax.Array,
    daylight: jax.Array,
) -> Balanced:
    """One kind in every chunk. `dice`, random words `[R, 3, 36]`; `priority`, `[R, S]`, who vanishes."""
    slots = state.slots
    rows, capacity = slots.shape
    row = jnp.arange(rows)[:, None]
    cells = cell_of(slots)
    chunk = jnp.where(kind_of(slots) == rule.kind, chunk_of(cells), ALL_CHUNKS)
    counts = jnp.zeros((rows, ALL_CHUNKS), jnp.int32).at[row, chunk].add(1, mode="drop")
    space = room.reshape(rows, 2, ALL_CHUNKS)[:, rule.ground].astype(jnp.int32)
    lowest, largest = limits(rule, daylight)
    lowest = jnp.where(space < rule.space, 0, lowest[:, None])
    chance = (dice[:, 0] >> 8).astype(jnp.float32) * np.float32(2.0**-24)
    appears = live & (counts < lowest) & (chance < rule.spawn)
    vanishes = live & (counts > largest[:, None]) & (chance < rule.despawn)

    # who vanishes: the creature of the chunk with the largest random number
    slot = jnp.arange(capacity, dtype=jnp.uint32)
    ticket = (priority & np.uint32(0xFFFFFF00)) | (slot + np.uint32(1))
    winner = jnp.zeros((rows, ALL_CHUNKS), jnp.uint32).at[row, chunk].max(ticket, mode="drop")
    chosen = jnp.where(vanishes & (winner > 0), (winner & 255).astype(jnp.int32) - 1, capacity)
    away = (
        distance(jnp.take_along_axis(cells, jnp.minimum(chosen, capacity - 1), axis=1), player[:, None])
        >= rule.despawn_distance
    )
    slots = slots.at[row, jnp.where(away, chosen, capacity)].set(jnp.uint32(0), mode="drop")

    # where one appears: a random cell of the ground, if it is empty and far enough away
    cell = _random_cells(appears, dice[:, 1], rule, material, space)
    occupied = _occupied(appears, cell, slots)
    appears &= ~occupied & (distance(cell, player[:, None]) >= rule.spawn_distance)
    _, ranks = tracing.scan(lambda n, x: (n + x, n), state.used, appears.T)
    index = jnp.where(appears, ranks.T, capacity)
    new = word(cell, rule.kind, c.HEALTH_OF[rule.kind], 0)
    slots = slots.at[row, index].set(new, mode="drop")
    used = state.used + jnp.sum(appears, axis=1, dtype=jnp.int32)
    lost = state.lost + jnp.maximum(used - capacity, 0)
    return Balanced(slots, jnp.minimum(used, capacity), state.touched, lost)


EVENTS = 64
"""Events that are looked at together."""


def _by_events(flags: jax.Array, function, fill: int) -> jax.Array:
    """`function(row, chunk)` where `flags` `[R, 36]` are set, `[EVENTS]` at a time, and `fill` elsewhere; int32."""
    size = flags.size
    padded = -(-size // EVENTS) * EVENTS
    order = jnp.nonzero(flags.reshape(-1), size=padded, fill_value=size)[0]
    number = jnp.sum(flags)

    def apply_block(carry):
        start, result = carry
        index = jax.lax.dynamic_slice_in_dim(order, start, EVENTS)
        clipped = jnp.minimum(index, size - 1)
        values = function(clipped // flags.shape[1], clipped % flags.shape[1])
        return start + EVENTS, result.at[index].set(values.astype(jnp.int32), mode="drop")

    result = jnp.full(size, fill, jnp.int32)
    return tracing.while_loop(lambda x: x[0] < number, apply_block, (jnp.int32(0), result))[1].reshape(flags.shape)


def _random_cells(flags: jax.Array, dice: jax.Array, rule: Rule, material: jax.Array, space: jax.Array) -> jax.Array:
    """A uniformly random cell of a rule's ground in each flagged chunk."""
    ground = (c.GRASS, c.PATH)[rule.ground]
    dx, dy = np.divmod(np.arange(c.CHUNK * c.CHUNK), c.CHUNK)

    def find(row, chunk):
        x, y = jnp.asarray(LEFT)[chunk][:, None] + dx, jnp.asarray(TOP)[chunk][:, None] + dy
        inside = (dx < jnp.asarray(WIDTH)[chunk][:, None]) & (dy < jnp.asarray(HEIGHT)[chunk][:, None])
        cells = jnp.minimum(x, c.AREA - 1) * c.AREA + jnp.minimum(y, c.AREA - 1)
        fits = inside & (material[row[:, None], cells] == ground)
        fraction = (dice[row, chunk] >> 8).astype(jnp.float32) * np.float32(2.0**-24)
        target = jnp.minimum((fraction * space[row, chunk]).astype(jnp.int32), space[row, chunk] - 1)
        index = jnp.argmax(jnp.cumsum(fits, axis=1) > target[:, None], axis=1)
        return jnp.take_along_axis(cells, index[:, None], axis=1)[:, 0]

    return _by_events(flags, find, 0)


def _occupied(flags: jax.Array, cell: jax.Array, slots: jax.Array) -> jax.Array:
    """Return whether an object is in the cell of each flagged chunk, bool; the player is never near enough to be."""

    def is_occupied(row, chunk):
        words = slots[row]
        matches = (cell_of(words) == cell[row, chunk][:, None]) & (kind_of(words) > 0)
        return jnp.any(matches, axis=1).astype(jnp.int32)

    return _by_events(flags, is_occupied, 0) > 0
