"""The levels with locked doors and keys (`minigrid.envs.babyai.unlock` and `other`).

minigrid's bugs that affect the distribution of worlds are reproduced with `compat`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BOX, COLORS, DOOR, KEY
from envs_jax.babyai.levels.layout import Rng
from envs_jax.babyai.levels.level import LOOSE, Level, random_objects, single
from envs_jax.babyai.levels.multi_room import LOOKS, SIDES, check_room_grid, clear, opened, placed, reachable_only
from envs_jax.babyai.levels.room_grid import RoomGrid, assemble, closed_doors, connect, locked, scatter
from envs_jax.babyai.mission import ANY, GO_TO, OPEN_DOOR, PICK_UP
from envs_jax.babyai.state import EMPTY_CELL


def objects_except(rng: Rng, excluded: list[tuple], n: int) -> tuple[jax.Array, jax.Array]:
    """Types and colours of `n` different loose objects, none of them a `(type, color)` of `excluded`."""
    free = jnp.ones(LOOKS, bool)
    for kind, color in excluded:
        free &= np.arange(LOOKS) != (kind - LOOSE[0]) * len(COLORS) + color
    look, _ = rng.cells(free, n)
    return LOOSE[0] + look // len(COLORS), look % len(COLORS)


def elsewhere(rng: Rng, rooms: RoomGrid, room):
    """A uniform room other than `room`."""
    return (room + 1 + rng.integers(rooms.count - 1)) % rooms.count


def locked_room(rng: Rng, rooms: RoomGrid):
    """A random room with a locked door on a random side that has a neighbour: room, edge and colour."""
    room = rng.integers(rooms.count)
    sides = jnp.asarray(rooms.edge_of)[room]
    return room, sides[rng.choice(sides >= 0)], rng.integers(len(COLORS))


def agent_outside(rng: Rng, rooms: RoomGrid, kind, color, cell, doors, fits, room, walls=None):
    """Objects and doors, then the agent in any room except `room` (-1: in any)."""
    agent_room = rng.integers(rooms.count)
    agent_room = jnp.where(room >= 0, elsewhere(rng, rooms, room), agent_room)
    return placed(rng, rooms, kind, color, cell, doors, fits, agent_room, walls)


def unlock(compat: bool = False) -> Level:
    """Open a locked door; its key lies in another room, among three objects in each room that is not locked.

    With `compat` the key and three objects may lie behind the door too: minigrid compares numpy integers with `is`.
    """
    rooms = check_room_grid("Unlock", 8, 3, 3, 28)
    filled = rooms.count if compat else rooms.count - 1
    count = 1 + 3 * filled

    def attempt(rng, task):
        room, edge, paint = locked_room(rng, rooms)
        key_room = rng.integers(rooms.count) if compat else elsewhere(rng, rooms, room)
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        # with probability 1/2 no other door has the colour of the locked one
        other_color = (paint + 1 + rng.integers(len(COLORS) - 1, len(rooms.edges))) % len(COLORS)
        doors = doors.replace(color=jnp.where(rng.integers(2) == 0, other_color, doors.color))
        doors = locked(doors, edge, paint)
        doors = doors.replace(present=connect(rng, rooms, doors.present, np.arange(rooms.count) == room))
        object_rooms = jnp.asarray(np.repeat(np.arange(filled), 3).astype(np.int32))
        object_rooms = object_rooms if compat else object_rooms + (object_rooms >= room)
        kind, color = random_objects(rng, count)
        kind, color = kind.at[0].set(KEY), color.at[0].set(paint)
        free = clear(rooms, rooms.centre)
        cell, fits = scatter(rng, rooms, jnp.concatenate([key_room[None], object_rooms]), free)
        sampled = agent_outside(rng, rooms, kind, color, cell, doors, fits, room)
        layout, grid = reachable_only(rooms, sampled)
        return layout, grid, single(rooms, layout, OPEN_DOOR, (DOOR, paint, ANY))

    return Level(rooms, count + len(rooms.edges), ("open",), frozenset({OPEN_DOOR}), (0,), attempt)


def go_to_imp_unlock(compat: bool = False) -> Level:
    """Go to an object behind a locked door; its key lies in another room, among two objects in each room that is not
    locked. With `compat` the key and two objects may lie behind the door too, as in `unlock`."""
    rooms = check_room_grid("GoToImpUnlock", 8, 3, 3, 20)
    filled = rooms.count if compat else rooms.count - 1
    count = 1 + 2 * filled

    def attempt(rng, task):
        room, edge, paint = locked_room(rng, rooms)
        key_room = rng.integers(rooms.count) if compat else elsewhere(rng, rooms, room)
        doors = locked(closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool)), edge, paint)
        doors = doors.replace(present=connect(rng, rooms, doors.present, np.arange(rooms.count) == room))
        object_rooms = jnp.asarray(np.repeat(np.arange(filled), 2).astype(np.int32))
        object_rooms = object_rooms if compat else object_rooms + (object_rooms >= room)
        kind, color = random_objects(rng, count)
        kind, color = kind.at[0].set(KEY), color.at[0].set(paint)
        cell, fits = scatter(rng, rooms, jnp.concatenate([key_room[None], object_rooms]), clear(rooms, rooms.centre))
        posed, grid = reachable_only(rooms, agent_outside(rng, rooms, kind, color, cell, doors, fits, room))
        # the goal is placed last: it need not be reachable, but must not be next to the agent
        last_kind, last_color = random_objects(rng, 1)
        free = clear(rooms, posed.position) & (grid == EMPTY_CELL)
        last, last_fits = scatter(rng, rooms, room[None], free)
        layout, grid = assemble(
            rooms,
            jnp.append(kind, last_kind),
            jnp.append(color, last_color),
            jnp.append(cell, last),
            doors,
            posed.position,
            posed.direction,
            posed.accepted & last_fits,
        )
        return layout, grid, single(rooms, layout, GO_TO, (last_kind[0], last_color[0], ANY))

    return Level(rooms, count + 1 + len(rooms.edges), ("go_to",), frozenset({GO_TO}), (0,), attempt)


def _in_the_middle(name: str, n: int, make_things, boxed=()) -> Level:
    """Open the locked door of the middle room, which contains the key."""
    rooms = check_room_grid(name, 8, 3, 3, n)
    sides = rooms.edge_of[rooms.middle]

    def attempt(rng, task):
        paint = rng.integers(len(COLORS))
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        doors = locked(doors, jnp.asarray(sides)[rng.integers(SIDES)], paint)
        kind, color = make_things(rng, paint)
        cell, fits = scatter(rng, rooms, jnp.full(n, rooms.middle), clear(rooms, rooms.centre))
        for _, content in boxed:
            cell = cell.at[content].set(-1)
        layout, grid = placed(rng, rooms, kind, color, cell, doors, fits, rooms.middle)
        return layout, grid, single(rooms, layout, OPEN_DOOR, (DOOR, ANY, ANY))

    kinds = frozenset({OPEN_DOOR})
    return Level(rooms, n + len(rooms.edges), ("open",), kinds, (0,), attempt, boxed=tuple(boxed))


def unlock_local(distractors: bool = False) -> Level:
    """Open the locked door of the room, with its key in the room, alone or among three other objects."""

    def make(rng, paint):
        key = jnp.full(1, KEY, jnp.int32), paint[None]
        if not distractors:
            return key
        kind, color = objects_except(rng, [(KEY, paint)], 3)
        return jnp.concatenate([key[0], kind]), jnp.concatenate([key[1], color])

    return _in_the_middle("UnlockLocal", 4 if distractors else 1, make)


def key_in_box() -> Level:
    """Open the locked door of the room; its key is in a box."""

    def make(rng, paint):
        return jnp.asarray(np.array([BOX, KEY], np.int32)), jnp.stack([rng.integers(len(COLORS)), paint])

    return _in_the_middle("KeyInBox", 2, make, boxed=((0, 1),))


def unlock_pickup(distractors: bool = False, compat: bool = False) -> Level:
    """Pick up the box behind a locked door, whose key is in the agent's room; with `distractors`, four more objects.

    With `compat` the step limit is the 72 steps that minigrid has by mistake, not the intended 288.
    """
    rooms = check_room_grid("UnlockPickup", 6, 1, 2, 6)
    count = 6 if distractors else 2

    def attempt(rng, task):
        paint, box = rng.integers(len(COLORS)), rng.integers(len(COLORS))
        doors = locked(closed_doors(rng, rooms, np.zeros(1, bool)), 0, paint)
        kind, color = jnp.asarray(np.array([BOX, KEY], np.int32)), jnp.stack([box, paint])
        room = jnp.asarray(np.array([1, 0], np.int32))
        if distractors:
            types, paints = objects_except(rng, [(BOX, box), (KEY, paint)], 4)
            kind, color = jnp.concatenate([kind, types]), jnp.concatenate([color, paints])
            room = jnp.concatenate([room, rng.integers(2, 4)])
        cell, fits = scatter(rng, rooms, room, clear(rooms, rooms.centre))
        layout, grid = placed(rng, rooms, kind, color, cell, doors, fits, 0)
        return layout, grid, single(rooms, layout, PICK_UP, (BOX, box, ANY))

    kinds, limit = frozenset({PICK_UP}), 72 if compat else 288
    return Level(rooms, count + 1, ("pick_up",), kinds, (0,), attempt, max_steps=limit)


def blocked_unlock_pickup() -> Level:
    """Pick up the box behind a locked door that a ball blocks."""
    rooms = check_room_grid("BlockedUnlockPickup", 6, 1, 2, 3)

    def attempt(rng, task):
        paint, box, ball = rng.integers(len(COLORS)), rng.integers(len(COLORS)), rng.integers(len(COLORS))
        doors = locked(closed_doors(rng, rooms, np.zeros(1, bool)), 0, paint)
        blocker = doors.cell[0] - rooms.height
        free = clear(rooms, rooms.centre) & (np.arange(rooms.cells) != blocker)
        cell, fits = scatter(rng, rooms, jnp.asarray(np.array([1, 0], np.int32)), free)
        kind = jnp.asarray(np.array([BOX, KEY, BALL], np.int32))
        color = jnp.stack([box, paint, ball])
        layout, grid = placed(rng, rooms, kind, color, jnp.append(cell, blocker), doors, fits, 0)
        return layout, grid, single(rooms, layout, PICK_UP, (BOX, ANY, ANY))

    kinds = frozenset({PICK_UP})
    return Level(rooms, 4, ("pick_up",), kinds, (0,), attempt, max_steps=16 * 36)


def unlock_to_unlock() -> Level:
    """Pick up the ball behind a locked door, whose key lies behind another locked door, whose key is in the agent's
    room."""
    rooms = check_room_grid("UnlockToUnlock", 6, 1, 3, 3)

    def attempt(rng, task):
        paint = rng.pick(len(COLORS), 2)
        doors = closed_doors(rng, rooms, np.zeros(2, bool))
        doors = locked(locked(doors, 0, paint[0]), 1, paint[1])
        kind = jnp.asarray(np.array([KEY, KEY, BALL], np.int32))
        color = jnp.append(paint, rng.integers(len(COLORS)))
        room = jnp.asarray(np.array([2, 1, 0], np.int32))
        cell, fits = scatter(rng, rooms, room, clear(rooms, rooms.centre))
        layout, grid = placed(rng, rooms, kind, color, cell, doors, fits, 1)
        return layout, grid, single(rooms, layout, PICK_UP, (BALL, ANY, ANY))

    kinds = frozenset({PICK_UP})
    return Level(rooms, 5, ("pick_up",), kinds, (0,), attempt, max_steps=30 * 36)


def key_corridor(num_rows: int = 3, room_size: int = 6) -> Level:
    """Pick up the ball behind a locked door off a corridor; the key lies in a room on its other side."""
    rooms = check_room_grid("KeyCorridor", room_size, num_rows, 3, 2, smallest=3)
    corridor = [int(rooms.edge_of[rooms.room(1, row), 3]) for row in range(1, num_rows)]
    walls = opened(rooms, corridor)
    removed = np.isin(np.arange(len(rooms.edges)), corridor)

    def attempt(rng, task):
        row, key_row = rng.integers(num_rows), rng.integers(num_rows)
        goal_room = row * 3 + 2
        paint = rng.integers(len(COLORS))
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        doors = locked(doors, jnp.asarray(rooms.edge_of)[goal_room, 2], paint)
        kind = jnp.asarray(np.array([BALL, KEY], np.int32))
        color = jnp.stack([rng.integers(len(COLORS)), paint])
        cell, fits = scatter(rng, rooms, jnp.stack([goal_room, key_row * 3]), clear(rooms, rooms.centre))
        posed, _ = placed(rng, rooms, kind, color, cell, doors, fits, rooms.room(1, num_rows // 2), walls)
        sealed = np.arange(rooms.count) == goal_room
        passage = connect(rng, rooms, doors.present | removed, sealed)
        doors = doors.replace(present=passage & ~removed)
        layout, grid = assemble(rooms, kind, color, cell, doors, posed.position, posed.direction, posed.accepted, walls)
        return layout, grid, single(rooms, layout, PICK_UP, (BALL, ANY, ANY))

    kinds, limit = frozenset({PICK_UP}), 30 * room_size**2
    return Level(rooms, 2 + len(rooms.edges), ("pick_up",), kinds, (0,), attempt, max_steps=limit)
