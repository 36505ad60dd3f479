"""BabyAI's level generator: every mission of its language (`minigrid.envs.babyai.core.levelgen`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BOX, COLORS, DOOR, KEY, LOCKED
from envs_jax.babyai.levels.layout import Layout, Rng, adjacent, all_reachable, matches, word
from envs_jax.babyai.levels.level import Level, random_objects
from envs_jax.babyai.levels.locks import agent_outside, elsewhere, locked_room
from envs_jax.babyai.levels.multi_room import check_room_grid, check_worlds, clear
from envs_jax.babyai.levels.room_grid import RoomGrid, closed_doors, connect, locked, scatter
from envs_jax.babyai.mission import (
    AFTER,
    ANY,
    BEFORE,
    GO_TO,
    LOCATIONS,
    NO_CLAUSE,
    OPEN_DOOR,
    PICK_UP,
    PUT_NEXT,
    SINGLE,
)
from envs_jax.checks import at_least


KINDS = (GO_TO, PICK_UP, OPEN_DOOR, PUT_NEXT)

NAMED = (BOX, BALL, KEY, DOOR)
"""The object types that a mission may name."""

FORMS = ("action", "and", "seq")


def _descriptors(located: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every descriptor, repeated in proportion to its probability in minigrid, as types, colours and locations: int32
    `[D]` each. Six in seven name a colour; if the level uses locations, half of the descriptors name one."""
    places = [ANY] * len(LOCATIONS) + list(range(len(LOCATIONS))) if located else [ANY]
    grids = np.meshgrid(NAMED, [ANY, *range(len(COLORS))], places, indexing="ij")
    types, colors, locations = (grid.reshape(-1).astype(np.int32) for grid in grids)
    return types, colors, locations


def _inside(rooms: RoomGrid, layout: Layout, room) -> jax.Array:
    """Objects that lie in a room or on its walls: bool `[O]`."""
    step = rooms.size - 1
    left, top = room % rooms.columns * step, room // rooms.columns * step
    x, y = layout.cell // rooms.height, layout.cell % rooms.height
    return (x >= left) & (x < left + rooms.size) & (y >= top) & (y < top + rooms.size)


def _clauses(rng: Rng, kinds: tuple[int, ...], forms: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """The kinds of four clauses, some absent, int32 `[4]`, and the order of the halves, int32 `[]`."""
    form = jnp.asarray(np.array([FORMS.index(f) for f in forms], np.int32))[rng.integers(len(forms))]
    pairs = rng.integers(2, 2) == 0
    kind = jnp.asarray(np.array(kinds, np.int32))[rng.integers(len(kinds), 4)]
    seq = form == FORMS.index("seq")
    present = jnp.stack([jnp.bool_(True), jnp.where(seq, pairs[0], form == FORMS.index("and")), seq, seq & pairs[1]])
    order = jnp.where(seq, jnp.where(rng.integers(2) == 0, BEFORE, AFTER), SINGLE)
    return jnp.where(present, kind, NO_CLAUSE), order


def generator(
    name: str,
    *,
    room_size: int = 8,
    num_rows: int = 3,
    num_cols: int = 3,
    num_dists: int = 18,
    locked_room_prob: float = 0.5,
    locations: bool = True,
    unblocking: bool = True,
    implicit_unlock: bool = True,
    kinds: tuple[int, ...] = KINDS,
    forms: tuple[str, ...] = FORMS,
) -> Level:
    """A level of random missions.

    **Arguments:** `locked_room_prob`, the probability that one room is locked, with its key elsewhere; `locations`,
    whether descriptors may name the location of an object at the start; `unblocking`, whether objects may have to be
    moved out of the way; `implicit_unlock`, whether all objects of a descriptor may lie in the locked room; `kinds` of
    clause and `forms` of mission, each drawn uniformly.
    """
    at_least(f"{name}: num_dists", num_dists, 1)
    may_lock = locked_room_prob > 0
    loose = num_dists + may_lock
    rooms = check_room_grid(name, room_size, num_rows, num_cols, loose)
    at_least(
        f"{name}: num_rows * num_cols", rooms.count, 1 + may_lock, remedy="the key of a locked room lies in another"
    )
    types, colors, places = _descriptors(locations)
    fit = np.stack([types >= 0, types != DOOR, types == DOOR, types != DOOR])
    """Which descriptors each kind of clause may use, in the order of `KINDS`."""
    allowed = fit[[KINDS.index(kind) for kind in kinds]]
    kind_table = np.array(kinds, np.int32)

    def attempt(rng, task):
        no_room = jnp.int32(-1)
        room, edge, paint = locked_room(rng, rooms) if may_lock else (no_room, no_room, no_room)
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        kind, color = random_objects(rng, num_dists)
        object_rooms = rng.integers(rooms.count, num_dists)
        if may_lock:
            is_locked = rng.integers(1 << 16) < round(locked_room_prob * (1 << 16))
            key_room = elsewhere(rng, rooms, room)
            room, edge = jnp.where(is_locked, room, -1), jnp.where(is_locked, edge, -1)
            doors = locked(doors, edge, paint)
            # the key is object 0; if no room is locked it is left out, and takes no cell
            kind = jnp.concatenate([jnp.where(is_locked, KEY, 0)[None], kind])
            color = jnp.concatenate([paint[None], color])
            object_rooms = jnp.concatenate([jnp.where(is_locked, key_room, -1)[None], object_rooms])
        doors = doors.replace(present=connect(rng, rooms, doors.present, np.arange(rooms.count) == room))
        cell, fits = scatter(rng, rooms, object_rooms, clear(rooms, rooms.centre))
        cell = jnp.where(kind > 0, cell, -1)
        layout, grid = agent_outside(rng, rooms, kind, color, cell, doors, fits, room)
        if not unblocking:
            layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))

        named = matches(rooms, layout, types, colors, places)
        if not implicit_unlock and may_lock:
            named &= (room < 0) | ~_inside(rooms, layout, room)
        matched = jnp.any(named, axis=-1)
        verbs, order = _clauses(rng, kinds, forms)
        table = jnp.asarray(allowed)
        kind_index = jnp.argmax(verbs[:, None] == kind_table, axis=1)
        first = jnp.stack([rng.choice(matched & table[kind_index[c]]) for c in range(4)])
        second = jnp.stack([rng.choice(matched) for c in range(4)])
        picks = jnp.stack([first, second], axis=1)
        used = jnp.stack([verbs != NO_CLAUSE, verbs == PUT_NEXT], axis=1)
        usable = jnp.stack(
            [jnp.any(matched & table[kind_index], axis=1), jnp.broadcast_to(jnp.any(matched), 4)], axis=1
        )
        descriptors = [jnp.asarray(a)[picks] for a in (types, colors, places)]
        mission, mover, fixed = word(rooms, layout, verbs, order, *descriptors)
        overlap = jnp.any(mover & fixed != 0, axis=-1) | adjacent(rooms, layout, mover, fixed)
        wrong = (used & ~usable) | ((verbs == PUT_NEXT) & overlap)[:, None]
        if unblocking:
            # no mission about a key that opens a door
            shut = (layout.kind == DOOR) & (layout.lock == LOCKED)
            opens = jnp.any(shut & (layout.color == descriptors[1][..., None]), axis=-1)
            wrong |= used & (descriptors[0] == KEY) & opens
        return layout.replace(accepted=layout.accepted & ~jnp.any(wrong)), grid, (mission, mover, fixed)

    clauses = {"action": (0,), "and": (0, 1), "seq": (0, 1, 2, 3)}[max(forms, key=FORMS.index)]
    level = Level(
        rooms, loose + len(rooms.edges), ("instruction",), frozenset(kinds), clauses, attempt, located=locations
    )
    return level if unblocking else check_worlds(name, rooms, level)


def go_to_seq(room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18) -> Level:
    """Go to objects, in any form of mission; nothing is locked or blocked."""
    return generator(
        "GoToSeq",
        room_size=room_size,
        num_rows=num_rows,
        num_cols=num_cols,
        num_dists=num_dists,
        locked_room_prob=0,
        locations=False,
        unblocking=False,
        kinds=(GO_TO,),
    )


def synth(room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18) -> Level:
    """One clause of any kind, without locations."""
    return generator(
        "Synth",
        room_size=room_size,
        num_rows=num_rows,
        num_cols=num_cols,
        num_dists=num_dists,
        locations=False,
        implicit_unlock=False,
        forms=("action",),
    )


def synth_loc() -> Level:
    """One clause of any kind, with locations."""
    return generator("SynthLoc", implicit_unlock=False, forms=("action",))


def synth_seq() -> Level:
    """Every form of mission; no descriptor matches only objects in the locked room."""
    return generator("SynthSeq", implicit_unlock=False)


def mini_boss_level() -> Level:
    """Everything, in four small rooms."""
    return generator("MiniBossLevel", room_size=5, num_rows=2, num_cols=2, num_dists=7, locked_room_prob=0.25)


def boss_level() -> Level:
    """Everything."""
    return generator("BossLevel")


def boss_level_no_unlock() -> Level:
    """Everything except locked doors."""
    return generator("BossLevelNoUnlock", locked_room_prob=0, implicit_unlock=False)
