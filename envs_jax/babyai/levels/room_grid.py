"""Rooms joined by doors: possible doors, doors that connect all rooms, and placement of objects and agents in rooms
(`minigrid.core.roomgrid`).

Rooms are numbered row by row; the sides of a room are 0 right, 1 down, 2 left, 3 up. An edge is a wall that two rooms
share: numbered by room, the right one before the lower one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import tracing
from envs_jax.babyai.constants import CLOSED, COLORS, DOOR, DX, DY, EMPTY, LOCKED, WALL
from envs_jax.babyai.levels.layout import Layout, Rng, Rooms, fill
from envs_jax.babyai.state import type_of


@dataclass(frozen=True)
class RoomGrid(Rooms):
    """Rooms with tables of their shared walls."""

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def room(self, column: int, row: int) -> int:
        """The number of a room."""
        return row * self.columns + column

    @cached_property
    def edges(self) -> tuple[tuple[int, int, int], ...]:
        """Every edge: its first room, its second, and the side of the first on which it lies, 0 or 1."""
        edges = []
        for row in range(self.rows):
            for column in range(self.columns):
                room = self.room(column, row)
                if column < self.columns - 1:
                    edges.append((room, room + 1, 0))
                if row < self.rows - 1:
                    edges.append((room, room + self.columns, 1))
        return tuple(edges)

    @cached_property
    def ends(self) -> np.ndarray:
        """The two rooms of every edge: int32 `[E, 2]`."""
        return np.array([edge[:2] for edge in self.edges], np.int32).reshape(-1, 2)

    @cached_property
    def edge_of(self) -> np.ndarray:
        """The edge on each side of each room, -1 for an outer wall: int32 `[R, 4]`."""
        table = np.full((self.count, 4), -1, np.int32)
        for e, (first, second, side) in enumerate(self.edges):
            table[first, side], table[second, side + 2] = e, e
        return table

    @cached_property
    def slots(self) -> np.ndarray:
        """The cells of every edge in which a door can be: int32 `[E, size - 2]`."""
        step = self.size - 1
        cells = []
        for first, _, side in self.edges:
            x, y = first % self.columns * step, first // self.columns * step
            for k in range(1, step):
                i, j = (x + step, y + k) if side == 0 else (x + k, y + step)
                cells.append(i * self.height + j)
        return np.array(cells, np.int32).reshape(len(self.edges), self.size - 2)

    @cached_property
    def inside(self) -> np.ndarray:
        """The floor of every room: int32 `[R, (size - 2)**2]`."""
        rooms = [self.interior(r % self.columns, r // self.columns) for r in range(self.count)]
        return np.stack([np.flatnonzero(room) for room in rooms]).astype(np.int32)

    @cached_property
    def room_cells(self) -> np.ndarray:
        """Every room with its walls: int32 `[R, size**2]`."""
        x, y = self.xy
        step, squares = self.size - 1, []
        for r in range(self.count):
            left, top = r % self.columns * step, r // self.columns * step
            square = (x >= left) & (x < left + self.size) & (y >= top) & (y < top + self.size)
            squares.append(np.flatnonzero(square))
        return np.stack(squares).astype(np.int32)

    @property
    def middle(self) -> int:
        """The room that minigrid assumes for the agent until it is placed."""
        return self.room(self.columns // 2, self.rows // 2)


@struct.dataclass
class Doors:
    """The doors on the `E` edges."""

    present: jax.Array
    """bool `[E]`."""
    cell: jax.Array
    """int32 `[E]`, the cell of the door, if present."""
    color: jax.Array
    """int32 `[E]`."""
    lock: jax.Array
    """int32 `[E]`, door states."""


def closed_doors(rng: Rng, rooms: RoomGrid, present) -> Doors:
    """Closed doors of random colours in random slots.

    **Arguments:** `present`, bool `[E]`.
    """
    count = len(rooms.edges)
    cell = jnp.asarray(rooms.slots)[np.arange(count), rng.integers(rooms.size - 2, count)]
    color = rng.integers(len(COLORS), count)
    return Doors(jnp.asarray(present, bool), cell, color, jnp.full(count, CLOSED, jnp.int32))


def locked(doors: Doors, edge, color) -> Doors:
    """The same with a locked door of color `color` on one edge (int32 `[]`)."""
    is_edge = np.arange(doors.present.shape[0]) == edge
    return Doors(
        doors.present | is_edge,
        doors.cell,
        jnp.where(is_edge, color, doors.color),
        jnp.where(is_edge, LOCKED, doors.lock),
    )


def connect(rng: Rng, rooms: RoomGrid, present, sealed=None) -> jax.Array:
    """minigrid's `connect_all`: adds doors on walls in random order, until every room can be reached from every other.

    **Arguments:** `present`, bool `[E]`, edges that are open or have a door; `sealed`, bool `[R]`, rooms that get no
    further doors.
    **Returns:** bool `[E]`, all edges with a passage afterwards.
    """
    if not rooms.edges:  # a loop of no rounds is traced too, and would look up an edge
        return jnp.asarray(present)
    first, second = rooms.ends[:, 0], rooms.ends[:, 1]
    count = len(rooms.edges)
    allowed = ~jnp.asarray(present)
    if sealed is not None:
        allowed &= ~(sealed[first] | sealed[second])
    order = jnp.argsort(jnp.where(allowed, rng.bits(count) >> 1, np.uint32(0xFFFFFFFF)))
    # existing doors come first, then the others in random order
    numbers = np.arange(rooms.count)
    side = jnp.asarray(rooms.ends)

    def join(label, edge, enabled):
        a, b = side[edge, 0], side[edge, 1]
        of_a = jnp.sum(jnp.where(numbers == a, label, 0), dtype=jnp.int32)
        of_b = jnp.sum(jnp.where(numbers == b, label, 0), dtype=jnp.int32)
        return jnp.where(enabled & (label == of_b), of_a, label)

    label = tracing.fori_loop(
        0, count, lambda e, label: join(label, e, jnp.asarray(present)[e]), jnp.asarray(numbers, jnp.int32)
    )

    def add(k, carry):
        label, passage = carry
        edge = order[k]
        joins = jnp.any(label != label[0]) & allowed[edge]
        return join(label, edge, joins), passage | (joins & (np.arange(count) == edge))

    return tracing.fori_loop(0, count, add, (label, jnp.asarray(present)))[1]


def scatter(rng: Rng, rooms: RoomGrid, room: jax.Array, free: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Different cells for `K` objects, each uniform among the free floor of its room: minigrid's `place_in_room`, one
    object after the other.

    **Arguments:** `room`, int32 `[K]`; `free`, bool `[cells]`.
    **Returns:** int32 `[K]`, and whether there was room for all.
    """
    inside = rooms.inside
    count, size = inside.shape
    tickets = jnp.where(free[inside], (rng.bits(count * size) >> 1).reshape(count, size).astype(jnp.int32), -1)
    # the rank of each cell among its room's tickets; comparing is cheaper than sorting at this size
    rank = jnp.sum(tickets[:, None, :] > tickets[:, :, None], axis=2, dtype=jnp.int32)
    ids = np.arange(room.shape[0])
    nth = jnp.sum((room[None] == room[:, None]) & (ids[None] < ids[:, None]), axis=1, dtype=jnp.int32)
    chosen = (rank[room] == nth[:, None]) & (tickets[room] >= 0)
    cell = jnp.sum(jnp.where(chosen, jnp.asarray(inside)[room], 0), axis=1, dtype=jnp.int32)
    return cell, jnp.all(jnp.sum(chosen, axis=1) == 1)


def pose_in(rng: Rng, rooms: RoomGrid, grid: jax.Array, room) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A uniform pose in a room, on an empty cell and facing an empty cell or a wall: minigrid's `place_agent`.

    **Arguments:** `grid`, int16 `[cells]`; `room`, int32 `[]`.
    **Returns:** position int32 `[2]`, direction int32 `[]`, and whether there was such a pose.
    """
    cells = jnp.asarray(rooms.room_cells)[room]
    kind = type_of(grid)
    steps = np.array([dx * rooms.height + dy for dx, dy in zip(DX, DY)], np.int32)
    ahead = jnp.take(kind, cells[:, None] + steps, mode="clip")
    free = (kind[cells] == EMPTY)[:, None] & ((ahead == EMPTY) | (ahead == WALL))
    pose = rng.choice(free.reshape(-1))
    cell = cells[pose // 4]
    return jnp.stack([cell // rooms.height, cell % rooms.height]), pose % 4, jnp.any(free)


def pose_anywhere(rng: Rng, rooms: RoomGrid, room=None) -> tuple[jax.Array, jax.Array]:
    """A uniform pose in empty rooms, or in one of them: position int32 `[2]`, direction int32 `[]`."""
    room = rng.integers(rooms.count) if room is None else room
    cell = jnp.asarray(rooms.inside)[room, rng.integers(rooms.inside.shape[1])]
    return jnp.stack([cell // rooms.height, cell % rooms.height]), rng.integers(4)


def assemble(
    rooms: RoomGrid, kind, color, cell, doors: Doors, position, direction, accepted, walls=None
) -> tuple[Layout, jax.Array]:
    """Objects, then doors on all edges, as a layout and its grid.

    **Arguments:** `kind`, `color`, `cell`, int32 `[K]` of the loose objects; `walls`, bool `[cells]`, if some were
    removed.
    """
    layout = Layout(
        kind=jnp.concatenate([jnp.asarray(kind, jnp.int32), jnp.where(doors.present, DOOR, 0)]),
        color=jnp.concatenate([jnp.asarray(color, jnp.int32), jnp.where(doors.present, doors.color, 0)]),
        lock=jnp.concatenate([jnp.zeros(len(kind), jnp.int32), jnp.where(doors.present, doors.lock, 0)]),
        cell=jnp.concatenate([jnp.asarray(cell, jnp.int32), jnp.where(doors.present, doors.cell, -1)]),
        position=position,
        direction=direction,
        accepted=accepted,
    )
    return layout, fill(rooms.walls if walls is None else walls, layout.packed(), layout.cell)
