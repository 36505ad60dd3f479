"""The `Level` class, and shared functions for drawing levels (`minigrid.envs.babyai.core.roomgrid_level`).

Each level has minigrid's distribution (GLAM's levels: that of its fork). If minigrid's tries for one object amount to a
uniform draw from the allowed cells, this draw is made directly; a world that minigrid rejects as a whole is rejected
here too, and redrawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BOX, COLORS, KEY
from envs_jax.babyai.levels.layout import (
    Layout,
    Rng,
    Rooms,
    distant_cells,
    draw_pose,
    fill,
    word,
)
from envs_jax.babyai.mission import (
    ANY,
    NO_CLAUSE,
    SINGLE,
)
from envs_jax.babyai.state import MAX_OBJECTS, MAX_SIDE, Params
from envs_jax.checks import between
from envs_jax.rejection import first_accepted


LOOSE = (KEY, BALL, BOX)
"""The types that `add_distractors` draws from."""

Sample = tuple[Layout, jax.Array, Any]
"""A layout, its grid of packed cells int16 `[cells]`, and the mission with its object sets."""


@dataclass(frozen=True)
class Level:
    """The static data of a level."""

    rooms: Rooms
    num_objects: int
    """Objects in a world, doors included: `O`."""
    tasks: tuple[str, ...]
    kinds: frozenset[int]
    """The clause kinds of its missions."""
    clauses: tuple[int, ...]
    """The clauses that its missions use."""
    attempt: Callable[[Rng, jax.Array], Sample]
    """`(rng, task) -> sample`: one try; the layout says whether it is accepted."""
    rooms_used: Callable[[jax.Array], Any] | None = None
    """`task -> rooms`, for the step limit; None: all of them."""
    max_steps: int | None = None
    """The step limit, if it does not follow from the rooms and the mission."""
    boxed: tuple[tuple[int, int], ...] = ()
    """Pairs of objects: a box, and its content."""
    in_hand: bool = False
    """Whether the agent starts with the object of its mission in hand."""
    located: bool = False
    """Whether its missions may name the location of an object at the start ("on your left")."""


def attempts(level: Level) -> Callable[..., tuple[jax.Array, Sample]]:
    """The tries of a level: `(number, key, task) -> (accepted, sample)`."""
    count = Rng()
    jax.eval_shape(lambda task: level.attempt(count, task), jnp.int32(0))

    def attempt(number, key, task):
        bits = jax.random.bits(jax.random.fold_in(key, number), (count.used,), jnp.uint32)
        sampled = level.attempt(Rng(bits), task)
        return sampled[0].accepted, sampled

    return attempt


def draw(level: Level, key: jax.Array, params: Params) -> tuple[Sample, jax.Array]:
    """An accepted world of a level, and its task int32 `[]`."""
    task = jnp.int32(0)
    if len(level.tasks) > 1:
        weights = jnp.cumsum(jnp.asarray(params.task_weights, jnp.float32))
        uniform = jax.random.uniform(jax.random.fold_in(key, 0), (), jnp.float32) * weights[-1]
        task = jnp.sum(uniform >= weights[:-1], dtype=jnp.int32)
    return first_accepted(attempts(level), key, task), task


def descriptors(*clauses: tuple[int, list]) -> tuple[jax.Array, ...]:
    """Arrays for `word`: clauses are `(index, [(type, color, location), ...])`."""
    table: list = [[[ANY] * 3, [ANY] * 3] for _ in range(4)]
    for index, named in clauses:
        for k, descriptor in enumerate(named):
            table[index][k] = list(descriptor)
    rows = jnp.stack([jnp.stack([jnp.stack([jnp.asarray(v, jnp.int32) for v in d]) for d in c]) for c in table])
    return rows[..., 0], rows[..., 1], rows[..., 2]


def single(rooms: Rooms, layout: Layout, kind, *named, strict: bool = False):
    """A mission of one clause, about one or two `(type, color, location)`."""
    type, color, location = descriptors((0, list(named)))
    kinds = jnp.stack([jnp.asarray(kind, jnp.int32), *[jnp.int32(NO_CLAUSE)] * 3])
    return word(rooms, layout, kinds, SINGLE, type, color, location, [strict, False, False, False])


def random_objects(rng: Rng, n: int) -> tuple[jax.Array, jax.Array]:
    """Types and colours of `n` loose objects, uniform and independent: int32 `[n]` each."""
    look = rng.integers(len(LOOSE) * len(COLORS), n)
    return LOOSE[0] + look // len(COLORS), look % len(COLORS)


def unique_objects(rng: Rng, n: int) -> tuple[jax.Array, jax.Array]:
    """The same, without repetition."""
    look = rng.pick(len(LOOSE) * len(COLORS), n)
    return LOOSE[0] + look // len(COLORS), look % len(COLORS)


def agent_first(rng: Rng, rooms: Rooms, kind, color, walls=None):
    """One room: the agent anywhere, then the objects at least two steps from it."""
    floor = rooms.interior(0, 0)
    pose = jnp.asarray(np.flatnonzero(floor).astype(np.int32))[rng.integers(floor.sum())]
    position = jnp.stack([pose // rooms.height, pose % rooms.height])
    direction = rng.integers(4)
    cell, fits = rng.cells(floor & distant_cells(rooms, position), kind.shape[0])
    cell = jnp.where(kind > 0, cell, -1)
    layout = Layout(kind, color, jnp.zeros_like(kind), cell, position, direction, fits)
    return layout, fill(rooms.walls if walls is None else walls, layout.packed(), cell)


def objects_first(rng: Rng, rooms: Rooms, kind, color):
    """One room: the objects at least two steps from its centre, then the agent, facing no object."""
    floor = rooms.interior(0, 0)
    cell, fits = rng.cells(jnp.asarray(floor & distant_cells(rooms, rooms.centre)), kind.shape[0])
    layout = Layout(kind, color, jnp.zeros_like(kind), cell, jnp.zeros(2, jnp.int32), jnp.int32(0), fits)
    grid = fill(rooms.walls, layout.packed(), cell)
    position, direction, has_pose = draw_pose(rng, rooms, grid, floor)
    return layout.replace(position=position, direction=direction, accepted=fits & has_pose), grid


TRIES = 4096
"""The number of random rooms to try; a level is refused if no room has all objects within reach."""


def check_room(name: str, room_size: int, count: int, *, agent_first: bool = True, unique: bool = False) -> Rooms:
    """The room of a level; refuses one that can never hold its objects."""
    between(f"{name}: room_size", room_size, 4, MAX_SIDE, remedy="walls included")
    between(f"{name}: the number of objects", count, 1, MAX_OBJECTS)
    rooms = Rooms(room_size)
    floor = rooms.interior(0, 0)
    corner = (1, 1) if agent_first else rooms.centre
    places = int((floor & distant_cells(rooms, corner)).sum())
    if count > places:
        raise ValueError(
            f"{name}: {count} objects cannot all lie two steps from the agent in a room of size {room_size}: its floor "
            f"has {floor.sum()} cells, {places} of them far enough; take a larger room_size or fewer objects"
        )
    if unique and count > len(LOOSE) * len(COLORS):
        raise ValueError(f"{name}: {count} different objects; there are {len(LOOSE) * len(COLORS)}")
    if 3 * count > floor.sum() and not reachable_rooms(rooms, count, agent_first).any():
        raise ValueError(
            f"{name}: {count} objects on the {floor.sum()} cells of a room of size {room_size} shut one another in (in "
            f"{TRIES} of {TRIES} random rooms), and a reset would search without end; take a larger room_size or fewer "
            "objects"
        )
    return rooms


def reachable_rooms(rooms: Rooms, count: int, agent_first: bool) -> np.ndarray:
    """Return whether the agent reaches every object, in `TRIES` rooms drawn as `agent_first` or `objects_first`
    draw."""
    cells = np.flatnonzero(rooms.interior(0, 0))
    x, y = cells // rooms.height, cells % rooms.height
    distant = np.abs(x[:, None] - x) + np.abs(y[:, None] - y) >= 2
    rng = np.random.default_rng(0)
    places = rng.random((TRIES, len(cells)))
    agent = rng.integers(len(cells), size=TRIES)
    allowed = (
        distant[agent] if agent_first else np.broadcast_to(distant_cells(rooms, rooms.centre)[cells], places.shape)
    )
    fits = allowed.sum(1) >= count
    order = np.argsort(np.where(allowed, places, 2), axis=1)
    occupied = np.zeros(places.shape, bool)
    np.put_along_axis(occupied, order[:, :count], True, axis=1)
    if not agent_first:
        agent = np.argmax(np.where(occupied, -1, rng.random(places.shape)), axis=1)
    side = math.isqrt(len(cells))
    grid = np.pad((np.arange(len(cells)) == agent[:, None]).reshape(TRIES, side, side), ((0, 0), (1, 1), (1, 1)))
    reached, blocked = grid[:, 1:-1, 1:-1], occupied.reshape(TRIES, side, side)
    before = 0
    while before < (before := int(reached.sum())):
        free = grid.copy()
        free[:, 1:-1, 1:-1] &= ~blocked
        reached |= free[:, :-2, 1:-1] | free[:, 2:, 1:-1] | free[:, 1:-1, :-2] | free[:, 1:-1, 2:]
    return fits & np.all(reached | ~blocked, axis=(1, 2))
