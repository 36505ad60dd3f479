"""Rooms for Sokoban, made as gym-sokoban makes them: a random walk digs the floor, and boxes are pulled from targets.

The topology and the placement are gym-sokoban's. Its depth-first search for the best reverse play (up to 300,000 rooms)
is a random reverse walk here, which has a fixed size; rooms are compared by the same score. Every room can be solved.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import tracing
from envs_jax.rejection import first_accepted


WALL, FLOOR, TARGET = 0, 1, 2

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right, as (rows, columns)."""

TURN = 0.35
"""The probability that the walk that digs the floor draws a new direction."""

DUG = np.array([0b000111000, 0b010010010, 0b010011000, 0b011011000, 0b010110000], np.int32)
"""The cells that a step of this walk digs, as one of five shapes: bit `3 r + c` is the cell at row `r`, column `c` of
the 3 x 3 cells around the walker."""

REVERSE_STEPS = 100
"""Steps of the reverse walk."""


@struct.dataclass
class Room:
    """Cells are numbered row by row."""

    fixed: jax.Array
    """uint32 `[(H W + 15) // 16]`: `WALL`, `FLOOR` or `TARGET` of each cell, packed by `pack`. Resets from a pool copy
    a state per row in every step, so a small one is faster."""
    player: jax.Array
    """int32 `[]`, the player's cell."""
    boxes: jax.Array
    """int32 `[B]`, the cells of the boxes."""


SHIFTS = 2 * np.arange(16, dtype=np.uint32)
"""Where a word of `Room.fixed` has its sixteen cells."""


def pack(fixed: jax.Array) -> jax.Array:
    """Numbers 0 to 3 of all cells, `[N]`, as uint32 `[(N + 15) // 16]`, two bits a cell."""
    padded = jnp.pad(fixed.astype(jnp.uint32), (0, -len(fixed) % 16)).reshape(-1, 16)
    return jnp.sum(padded << SHIFTS, axis=1, dtype=jnp.uint32)


def unpack(packed: jax.Array, count: int) -> jax.Array:
    """The numbers of the first `count` cells: int8 `[count]`."""
    return ((packed[:, None] >> SHIFTS) & 3).astype(jnp.int8).reshape(-1)[:count]


def look_up(packed: jax.Array, cells: jax.Array) -> jax.Array:
    """The numbers of some cells: int32, of the shape of `cells`."""
    word = jnp.take(packed, cells // 16, mode="clip")
    return (word >> (2 * (cells % 16)).astype(jnp.uint32)).astype(jnp.int32) & 3


def _floor(key: jax.Array, height: int, width: int) -> jax.Array:
    """The cells that the walk digs, without the outer walls: bool `[H * W]`."""
    steps = int(1.7 * (height + width))
    start, first, turns, directions, shapes = jax.random.split(key, 5)
    high = jnp.array([height, width], jnp.int32)
    position = jax.random.randint(start, (2,), 1, high, jnp.int32)
    direction = jax.random.randint(first, (), 0, 4, jnp.int32)
    turn = jax.random.uniform(turns, (steps,), jnp.float32) < TURN
    new_direction = jax.random.randint(directions, (steps,), 0, 4, jnp.int32)
    moves = jnp.array(MOVES, jnp.int32)

    def walk(carry, sampled):
        position, direction = carry
        direction = jnp.where(sampled[0], sampled[1], direction)
        position = jnp.clip(position + moves[direction], 1, high - 2)
        return (position, direction), position

    _, positions = tracing.scan(walk, (position, direction), (turn, new_direction))
    dug = jnp.array(DUG)[jax.random.randint(shapes, (steps,), 0, len(DUG), jnp.int32)]
    row, column = (jnp.array(x.reshape(-1), jnp.int32) for x in np.mgrid[:height, :width])
    r, c = row - positions[:, :1] + 1, column - positions[:, 1:] + 1
    nearby = (r >= 0) & (r < 3) & (c >= 0) & (c < 3)
    bit = (dug[:, None] >> jnp.where(nearby, 3 * r + c, 31)) & 1
    inside = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    return jnp.any(nearby & (bit > 0), axis=0) & inside


def _distinct(key: jax.Array, allowed: jax.Array, count: int) -> jax.Array:
    """`count` different cells among those that are `allowed`, in random order: int32 `[count]`."""
    rank = jnp.where(allowed, jax.random.uniform(key, allowed.shape, jnp.float32), -1.0)
    cells = []
    for _ in range(count):
        cells.append(jnp.argmax(rank).astype(jnp.int32))
        rank = rank.at[cells[-1]].set(-1.0)
    return jnp.stack(cells)


def _pulled(key: jax.Array, floor: jax.Array, player: jax.Array, targets: jax.Array, width: int) -> tuple:
    """The best room of a random reverse walk, in which the player moves and pulls boxes from the targets.

    The score is gym-sokoban's: the pulls so far times the sum of the distances of boxes from their targets, and 0 where
    a box or the player is on a target. Of equal scores the last counts, so that the player may walk away from the box.
    **Returns:** its score int32 `[]`, player, and boxes."""
    offsets = jnp.array([dr * width + dc for dr, dc in MOVES], jnp.int32)

    def step(carry, action):
        player, boxes, pulls, best = carry
        offset = offsets[action % 4]
        ahead = player + offset
        moves = floor[ahead] & ~jnp.any(boxes == ahead)
        follows = (boxes == player - offset) & moves & (action < 4)
        boxes, player = jnp.where(follows, player, boxes), jnp.where(moves, ahead, player)
        pulls = pulls + jnp.any(follows)
        distances = jnp.abs(boxes // width - targets // width) + jnp.abs(boxes % width - targets % width)
        open_ = ~jnp.any(boxes[:, None] == targets) & ~jnp.any(player == targets)
        score = jnp.where(open_, pulls * jnp.sum(distances, dtype=jnp.int32), 0)
        better = score >= best[0]
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (score, player, boxes), best)
        return (player, boxes, pulls, best), None

    actions = jax.random.randint(key, (REVERSE_STEPS,), 0, 8, jnp.int32)
    start = (player, targets, jnp.int32(0), (jnp.int32(0), player, targets))
    return tracing.scan(step, start, actions)[0][3]


def draw_room(key: jax.Array, height: int, width: int, boxes: int) -> Room:
    """A random room in which every target can be reached, no box is on a target, and neither is the player.

    **Arguments:** `key`; `height` and `width` of the room, outer walls included; `boxes`, their number."""

    def attempt(number, key):
        dig, placement, pull = jax.random.split(jax.random.fold_in(key, number), 3)
        floor = _floor(dig, height, width)
        player, *targets = _distinct(placement, floor, boxes + 1)
        score, player, pulled = _pulled(pull, floor, player, jnp.stack(targets), width)
        fixed = pack(floor.astype(jnp.int32).at[jnp.stack(targets)].set(TARGET))
        enough = jnp.sum(floor, dtype=jnp.int32) > boxes + 1
        return enough & (score > 0), Room(fixed, player, pulled)

    return first_accepted(attempt, key)
