"""Random worlds: rooms, free cells, poses, reachability, and the objects that a descriptor matches."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import tracing
from envs_jax.babyai.cells import around, flood, single, words
from envs_jax.babyai.constants import DOOR, DX, DY, EMPTY, WALL
from envs_jax.babyai.mission import ANY, LOCATIONS, NO_CLAUSE, PUT_NEXT, SINGLE, Mission
from envs_jax.babyai.state import EMPTY_CELL, WALL_CELL, pack, type_of
from envs_jax.babyai.verify import members, object_set


@dataclass(frozen=True)
class Rooms:
    """A grid of square rooms that share walls (`minigrid.core.roomgrid`); cells are numbered `x * height + y`."""

    size: int
    """Side of a room, walls included."""
    rows: int = 1
    columns: int = 1

    @property
    def width(self) -> int:
        return (self.size - 1) * self.columns + 1

    @property
    def height(self) -> int:
        return (self.size - 1) * self.rows + 1

    @property
    def cells(self) -> int:
        return self.width * self.height

    @property
    def xy(self) -> tuple[np.ndarray, np.ndarray]:
        """The x and y of every cell: int32 `[cells]` each."""
        index = np.arange(self.cells, dtype=np.int32)
        return index // self.height, index % self.height

    @property
    def walls(self) -> np.ndarray:
        """bool `[cells]`."""
        x, y = self.xy
        return (x % (self.size - 1) == 0) | (y % (self.size - 1) == 0)

    def interior(self, column: int, row: int) -> np.ndarray:
        """The floor of one room: bool `[cells]`."""
        x, y = self.xy
        return ~self.walls & (x // (self.size - 1) == column) & (y // (self.size - 1) == row)

    @property
    def centre(self) -> tuple[int, int]:
        """The position that minigrid assumes for the agent until it is placed: the middle of the middle room."""
        return tuple(n // 2 * (self.size - 1) + self.size // 2 for n in (self.columns, self.rows))  # type: ignore


def distant_cells(rooms: Rooms, position, distance: int = 2):
    """Cells at least `distance` steps (Manhattan) from `position`: bool `[cells]`."""
    x, y = rooms.xy
    return abs(x - position[0]) + abs(y - position[1]) >= distance


class Rng:
    """The random numbers of one attempt at a world, from one call of the generator: every call adds a loop to compile
    and run. Without bits it only counts the words that are used, in `used`."""

    def __init__(self, bits: jax.Array | None = None):
        self._bits, self.used = bits, 0

    def bits(self, n: int) -> jax.Array:
        """`n` fresh words: uint32 `[n]`."""
        first, self.used = self.used, self.used + n
        return jnp.zeros(n, jnp.uint32) if self._bits is None else self._bits[first : self.used]

    def integers(self, end, n: int | None = None) -> jax.Array:
        """Integers from 0 to `end - 1`, uniform up to `end / 2**32`: int32 `[]`, or `[n]`."""
        drawn = (self.bits(n or 1) % jnp.asarray(end, jnp.uint32)).astype(jnp.int32)
        return drawn if n else drawn[0]

    def cells(self, allowed: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
        """`k` different indices, uniform among the allowed, in random order: the distribution of minigrid's repeated
        tries.

        **Arguments:** `allowed`, bool `[n]`.
        **Returns:** int32 `[k]`, and whether there were enough allowed ones, bool `[]`.
        """
        tickets = (self.bits(allowed.shape[0]) >> 1).astype(jnp.int32)
        tickets = jnp.where(allowed, tickets, -1)

        # the result of `top_k`, in less than a fifth of its time, as XLA's CPU compiler turns `top_k` into a sort
        def best(tickets, _):
            index = jnp.argmax(tickets).astype(jnp.int32)
            return jnp.where(np.arange(allowed.shape[0]) == index, -2, tickets), index

        return tracing.scan(best, tickets, None, k)[1], jnp.sum(allowed) >= k

    def choice(self, allowed: jax.Array) -> jax.Array:
        """One index, uniform among the allowed, from one word: int32 `[]`; 0 if none is allowed.

        **Arguments:** `allowed`, bool `[n]`.
        """
        rank = jnp.cumsum(allowed.astype(jnp.int32))
        return jnp.sum(rank <= self.integers(jnp.maximum(rank[-1], 1)), dtype=jnp.int32) % allowed.shape[0]

    def pick(self, n: int, k: int) -> jax.Array:
        """`k` of `n` indices in random order: int32 `[k]`."""
        return self.cells(jnp.ones(n, bool), k)[0]


def draw_pose(rng: Rng, rooms: Rooms, grid: jax.Array, allowed: jax.Array):
    """A uniform pose on an empty allowed cell that faces an empty cell or a wall: minigrid's `place_agent`.

    **Arguments:** `grid`, int16 `[cells]` of packed cells; `allowed`, bool `[cells]`, without the grid's border.
    **Returns:** position int32 `[2]`, direction int32 `[]`, and whether there was such a pose.
    """
    kind = type_of(grid).reshape(rooms.width, rooms.height)
    ahead = jnp.stack([jnp.roll(kind, (-DX[d], -DY[d]), (0, 1)).reshape(-1) for d in range(4)], axis=1)
    free = (allowed & (type_of(grid) == EMPTY))[:, None] & ((ahead == EMPTY) | (ahead == WALL))
    pose, fits = rng.cells(free.reshape(-1), 1)
    cell, direction = pose[0] // 4, pose[0] % 4
    return jnp.stack([cell // rooms.height, cell % rooms.height]), direction, fits


@struct.dataclass
class Layout:
    """A drawn world: its objects, the agent's pose, and whether minigrid would have accepted it so far."""

    kind: jax.Array
    """int32 `[O]`, type ids, 0 for an object left out."""
    color: jax.Array
    """int32 `[O]`."""
    lock: jax.Array
    """int32 `[O]`, door states, 0 for other objects."""
    cell: jax.Array
    """int32 `[O]`, -1 for an object left out."""
    position: jax.Array
    direction: jax.Array
    accepted: jax.Array
    """bool `[]`."""

    def packed(self) -> jax.Array:
        """The objects as packed cells: int32 `[O]`, 0 for an object left out."""
        return jnp.where(self.kind > 0, pack(self.kind, self.color, self.lock, np.arange(self.kind.shape[0])), 0)


def fill(walls: jax.Array, packed: jax.Array, cells: jax.Array) -> jax.Array:
    """A grid of packed cells int16 `[cells]`: walls, and objects where they lie (negative: nowhere)."""
    grid = jnp.where(walls, WALL_CELL, EMPTY_CELL).astype(jnp.int16)
    return grid.at[jnp.where(cells < 0, grid.size, cells)].set(packed.astype(jnp.int16), mode="drop")


def all_reachable(rooms: Rooms, grid: jax.Array, position: jax.Array) -> jax.Array:
    """minigrid's `check_objs_reachable`: every object can be reached by walking over empty cells and through doors in
    any state, without moving anything."""
    kind = type_of(grid).reshape(rooms.width, rooms.height)
    start = single(position[0], position[1], rooms.width)
    reach = flood(start, words((kind == EMPTY) | (kind == DOOR)))
    objects = words((kind != EMPTY) & (kind != WALL))
    return jnp.all(objects & ~(around(reach) | reach) == 0)


def matches(rooms: Rooms, layout: Layout, type, color, location) -> jax.Array:
    """minigrid's `find_matching_objs` at the start of an episode.

    **Arguments:** `type`, `color`, `location`, integer arrays `[...]` as in `Mission`.
    **Returns:** bool `[..., O]`. Locations apply only in the agent's room, its walls included.
    """
    type, color, location = (jnp.asarray(a)[..., None] for a in (type, color, location))
    x, y = layout.cell // rooms.height, layout.cell % rooms.height
    dx = jnp.asarray(DX, jnp.int32)[layout.direction]
    dy = jnp.asarray(DY, jnp.int32)[layout.direction]
    vx, vy = x - layout.position[0], y - layout.position[1]
    forward, right = vx * dx + vy * dy, vy * dx - vx * dy
    top = layout.position // (rooms.size - 1) * (rooms.size - 1)
    inside = (x >= top[0]) & (x < top[0] + rooms.size) & (y >= top[1]) & (y < top[1] + rooms.size)
    sides = dict(zip(("left", "right", "front", "behind"), (right < 0, right > 0, forward > 0, forward < 0)))
    in_location = location == ANY
    for i, name in enumerate(LOCATIONS):
        in_location |= (location == i) & sides[name] & inside
    alike = ((type == ANY) | (type == layout.kind)) & ((color == ANY) | (color == layout.color))
    return alike & in_location & (layout.kind > 0) & (layout.cell >= 0)


def word(rooms: Rooms, layout: Layout, kind, order=SINGLE, type=None, color=None, location=None, strict=None):
    """A mission about a layout, with the objects that it refers to.

    **Arguments:** `kind`, int32 `[4]`; `order`, int32 `[]`; `type`, `color`, `location`, int32 `[4, 2]` (entries of
    absent clauses are ignored; None: no locations); `strict`, bool `[4]`, None: no clause is strict.
    **Returns:** the mission, and the sets `mover` and `fixed`, uint32 `[4, S]`.
    """
    kind = jnp.asarray(kind, jnp.int32)
    present = jnp.stack([kind != NO_CLAUSE, kind == PUT_NEXT], axis=1)
    location = jnp.full((4, 2), ANY) if location is None else location
    type, color, location = (jnp.where(present, a, ANY).astype(jnp.int8) for a in (type, color, location))
    named = matches(rooms, layout, type, color, location) & present[..., None]
    sets = object_set(named)
    mission = Mission(
        kind=kind.astype(jnp.int8),
        order=jnp.asarray(order, jnp.int8),
        type=type,
        color=color,
        location=location,
        many=jnp.sum(named, axis=-1) > 1,
        strict=jnp.zeros(4, bool) if strict is None else jnp.asarray(strict, bool),
    )
    return mission, sets[:, 0], sets[:, 1]


def adjacent(rooms: Rooms, layout: Layout, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return whether some object of the set `a` lies one step from some object of `b`: bool `[...]` for sets `[...,
    S]`."""
    x, y = layout.cell // rooms.height, layout.cell % rooms.height
    neighbors = (abs(x[:, None] - x) + abs(y[:, None] - y) == 1) & (layout.cell >= 0) & (layout.cell >= 0)[:, None]
    n = layout.cell.shape[0]
    return jnp.any(neighbors & members(a, n)[..., :, None] & members(b, n)[..., None, :], axis=(-2, -1))
