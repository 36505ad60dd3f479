"""The levels of several rooms without locked doors: go to, pick up, put next, and open any door, as in
`minigrid.envs.babyai`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.babyai.constants import BALL, BLUE, COLORS, DOOR, GREY, OPEN, RED
from envs_jax.babyai.levels.layout import Layout, Rng, adjacent, all_reachable, distant_cells, fill, word
from envs_jax.babyai.levels.level import (
    LOOSE,
    Level,
    agent_first,
    attempts,
    check_room,
    descriptors,
    random_objects,
    single,
    unique_objects,
)
from envs_jax.babyai.levels.room_grid import (
    Doors,
    RoomGrid,
    assemble,
    closed_doors,
    connect,
    pose_anywhere,
    pose_in,
    scatter,
)
from envs_jax.babyai.mission import ANY, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT
from envs_jax.babyai.state import MAX_OBJECTS, MAX_SIDE
from envs_jax.checks import at_least, between


LOOKS = len(LOOSE) * len(COLORS)

SIDES = 4

TRIES, BATCH = 1 << 14, 1 << 10
"""The number of random worlds to try, and how many of them at once; a level is refused if none is accepted."""


def check_room_grid(name: str, room_size: int, rows: int, columns: int, loose: int, smallest: int = 4) -> RoomGrid:
    """The rooms of a level; refuses those that do not fit a grid."""
    at_least(f"{name}: room_size", room_size, smallest, remedy="walls included")
    at_least(f"{name}: num_rows", rows, 1)
    at_least(f"{name}: num_cols", columns, 1)
    rooms = RoomGrid(room_size, rows, columns)
    if max(rooms.width, rooms.height) > MAX_SIDE:
        raise ValueError(
            f"{name}: {rows} x {columns} rooms of size {room_size} are {rooms.width} x {rooms.height} cells; "
            f"{MAX_SIDE} along a side is the limit"
        )
    if loose < 0 or loose + len(rooms.edges) > MAX_OBJECTS:
        raise ValueError(f"{name}: {loose} things and {len(rooms.edges)} doors; {MAX_OBJECTS} objects are the limit")
    if 2 * loose > max(rooms.inside.size, 6):
        raise ValueError(
            f"{name}: {loose} things on {rooms.inside.size} cells of floor; they may take half of it: take fewer, or a "
            "larger room_size"
        )
    return rooms


def check_worlds(name: str, rooms: RoomGrid, level: Level) -> Level:
    """A level all of whose objects must be in reach; refuses one whose rooms are too full for that."""
    loose = level.num_objects - len(rooms.edges)
    if 6 * loose <= rooms.inside.size:  # at least one world in some thousands is accepted
        return level
    attempt = tracing.standard_promotion(attempts(level))
    # This may be the trace of another program. `jax.ensure_compile_time_eval` would also compile the constants of this
    # one while it is lowered, where JAX's compilation cache fails.
    with jax.core.eval_context():
        run = jax.jit(jax.vmap(lambda number: attempt(number, jax.random.key(0), jnp.int32(0))[0]))
        if any(run(jnp.arange(first, first + BATCH)).any() for first in range(0, TRIES, BATCH)):
            return level
    raise ValueError(
        f"{name}: {loose} objects in {rooms.rows} x {rooms.columns} rooms of size {rooms.size}, {rooms.inside.size} "
        f"cells of floor, shut one another in (in {TRIES} of {TRIES} random worlds), and a reset would search without "
        "end; take a larger room_size or fewer objects"
    )


def clear(rooms: RoomGrid, position) -> jax.Array:
    """The floor at least two steps from a position: bool `[cells]`."""
    return ~rooms.walls & distant_cells(rooms, position)


def centre(rooms: RoomGrid) -> jax.Array:
    """The position that minigrid assumes for the agent until it is placed: int32 `[2]`."""
    return jnp.asarray(rooms.centre, jnp.int32)


def connected_rooms(rng: Rng, rooms: RoomGrid, n: int):
    """Agent, doors, then `n` objects anywhere: the levels without locks.

    **Returns:** layout and grid; whether all can be reached is not checked."""
    position, direction = pose_anywhere(rng, rooms)
    doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
    doors = doors.replace(present=connect(rng, rooms, doors.present))
    kind, color = random_objects(rng, n)
    cell, fits = scatter(rng, rooms, rng.integers(rooms.count, n), clear(rooms, position))
    return assemble(rooms, kind, color, cell, doors, position, direction, fits)


def reachable_only(rooms: RoomGrid, sampled) -> tuple[Layout, jax.Array]:
    layout, grid = sampled
    accepted = layout.accepted & all_reachable(rooms, grid, layout.position)
    return layout.replace(accepted=accepted), grid


def _about_one(
    name: str,
    kind: int,
    n: int,
    room_size: int = 8,
    rows: int = 3,
    columns: int = 3,
    *,
    doors_open: bool = False,
    blocked: bool = False,
) -> Level:
    """Act on one of `n` objects in several rooms; `blocked`: in worlds in which some object cannot be reached without
    moving another one."""
    rooms = check_room_grid(name, room_size, rows, columns, n)
    at_least(f"{name}: num_dists", n, 1)

    def attempt(rng, task):
        layout, grid = connected_rooms(rng, rooms, n)
        reachable = all_reachable(rooms, grid, layout.position)
        layout = layout.replace(accepted=layout.accepted & (reachable != blocked))
        if doors_open:
            layout = layout.replace(lock=jnp.where(layout.kind == DOOR, OPEN, layout.lock))
            grid = fill(rooms.walls, layout.packed(), layout.cell)
        target = rng.integers(n)
        return layout, grid, single(rooms, layout, kind, (layout.kind[target], layout.color[target], ANY))

    task = {GO_TO: "go_to", PICK_UP: "pick_up"}[kind]
    level = Level(rooms, n + len(rooms.edges), (task,), frozenset({kind}), (0,), attempt)
    return level if blocked else check_worlds(name, rooms, level)


def go_to(
    room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18, doors_open: bool = False
) -> Level:
    """Go to one of `num_dists` objects in several rooms, the doors closed or all open."""
    return _about_one("GoTo", GO_TO, num_dists, room_size, num_rows, num_cols, doors_open=doors_open)


def pickup() -> Level:
    """Pick up one of 18 objects in nine rooms."""
    return _about_one("Pickup", PICK_UP, 18)


def unblock_pickup() -> Level:
    """Pick up one of 20 objects in nine rooms, some of which are blocked by others."""
    return _about_one("UnblockPickup", PICK_UP, 20, blocked=True)


def put_next_maze(room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18) -> Level:
    """Put one of `num_dists` objects next to another, in any rooms: a level of BabyAI's paper that minigrid lacks."""
    rooms = check_room_grid("PutNext", room_size, num_rows, num_cols, num_dists)
    at_least("PutNext: num_dists", num_dists, 2)

    def attempt(rng, task):
        layout, grid = reachable_only(rooms, connected_rooms(rng, rooms, num_dists))
        a, b = rng.pick(num_dists, 2)
        named = [(layout.kind[i], layout.color[i], ANY) for i in (a, b)]
        mission, mover, fixed = single(rooms, layout, PUT_NEXT, *named)
        clash = jnp.any(mover[0] & fixed[0] != 0) | adjacent(rooms, layout, mover[0], fixed[0])
        return layout.replace(accepted=layout.accepted & ~clash), grid, (mission, mover, fixed)

    level = Level(rooms, num_dists + len(rooms.edges), ("put_next",), frozenset({PUT_NEXT}), (0,), attempt)
    return check_worlds("PutNext", rooms, level)


def open_any() -> Level:
    """Open a door in a grid of nine rooms with 18 objects."""
    rooms = check_room_grid("Open", 8, 3, 3, 18)

    def attempt(rng, task):
        layout, grid = reachable_only(rooms, connected_rooms(rng, rooms, 18))
        target = 18 + rng.choice(layout.kind[18:] == DOOR)
        return layout, grid, single(rooms, layout, OPEN_DOOR, (DOOR, layout.color[target], ANY))

    return Level(rooms, 18 + len(rooms.edges), ("open",), frozenset({OPEN_DOOR}), (0,), attempt)


def go_to_red_blue_ball(room_size: int = 8, num_dists: int = 7) -> Level:
    """Go to the only ball that is red or blue."""
    at_least("GoToRedBlueBall: num_dists", num_dists, 1)
    rooms = check_room("GoToRedBlueBall", room_size, num_dists + 1)
    looks = [(t, c) for t in LOOSE for c in range(len(COLORS)) if not (t == BALL and c in (RED, BLUE))]
    table = np.array(looks, np.int32)

    def attempt(rng, task):
        # minigrid rejects worlds with another such ball, so all other objects are uniform among the other looks
        look = jnp.asarray(table)[rng.integers(len(looks), num_dists)]
        paint = jnp.asarray(np.array([RED, BLUE], np.int32))[rng.integers(2)]
        kind, color = jnp.append(look[:, 0], BALL), jnp.append(look[:, 1], paint)
        layout, grid = agent_first(rng, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        return layout, grid, single(rooms, layout, GO_TO, (BALL, paint, ANY))

    return Level(rooms, num_dists + 1, ("go_to",), frozenset({GO_TO}), (0,), attempt)


def placed(rng: Rng, rooms: RoomGrid, kind, color, cell, doors: Doors, fits, room, walls=None):
    """Objects and doors, then the agent in one room."""
    zero = jnp.int32(0)
    _, grid = assemble(rooms, kind, color, cell, doors, centre(rooms), zero, fits, walls)
    position, direction, has_pose = pose_in(rng, rooms, grid, room)
    return assemble(rooms, kind, color, cell, doors, position, direction, fits & has_pose, walls)


def nothing() -> jax.Array:
    """No objects: int32 `[0]`."""
    return jnp.zeros(0, jnp.int32)


def pickup_dist(debug: bool = False, compat: bool = False) -> Level:
    """Pick up one of five different objects, named by its type, its colour or both. With `debug`, picking up another
    one fails. With `compat` it is always "a grey object", because minigrid counts its grey walls."""
    rooms = check_room_grid("PickupDist", 7, 1, 1, 5)

    def attempt(rng, task):
        kind, color = unique_objects(rng, 5)
        cell, fits = scatter(rng, rooms, jnp.zeros(5, jnp.int32), clear(rooms, rooms.centre))
        doors = closed_doors(rng, rooms, np.zeros(0, bool))
        layout, grid = placed(rng, rooms, kind, color, cell, doors, fits, 0)
        target, mode = rng.integers(5), rng.integers(3)
        named = (jnp.where(mode == 1, ANY, kind[target]), jnp.where(mode == 0, ANY, color[target]), ANY)
        mission, mover, fixed = single(rooms, layout, PICK_UP, named, strict=debug)
        if compat:
            wall_too = (named[0] == ANY) & (named[1] == GREY)
            mission = mission.replace(many=mission.many.at[0, 0].set(mission.many[0, 0] | wall_too))
        return layout, grid, (mission, mover, fixed)

    return Level(rooms, 5, ("pick_up",), frozenset({PICK_UP}), (0,), attempt)


def pickup_above() -> Level:
    """Pick up the object in the room above."""
    rooms = check_room_grid("PickupAbove", 6, 3, 3, 1)
    goal_room, door = rooms.room(1, 0), rooms.edge_of[rooms.middle, 3]

    def attempt(rng, task):
        kind, color = random_objects(rng, 1)
        cell, fits = scatter(rng, rooms, jnp.full(1, goal_room), clear(rooms, rooms.centre))
        doors = closed_doors(rng, rooms, np.arange(len(rooms.edges)) == door)
        posed, _ = placed(rng, rooms, kind, color, cell, doors, fits, rooms.middle)
        doors = doors.replace(present=connect(rng, rooms, doors.present))
        layout, grid = assemble(rooms, kind, color, cell, doors, posed.position, posed.direction, posed.accepted)
        return layout, grid, single(rooms, layout, PICK_UP, (kind[0], color[0], ANY))

    return Level(rooms, 1 + len(rooms.edges), ("pick_up",), frozenset({PICK_UP}), (0,), attempt, max_steps=8 * 36)


def find_obj(room_size: int = 5) -> Level:
    """Pick up the only object of nine rooms, named by its type."""
    rooms = check_room_grid("FindObj", room_size, 3, 3, 1)

    def attempt(rng, task):
        kind, color = random_objects(rng, 1)
        cell, fits = scatter(rng, rooms, rng.integers(rooms.count, 1), clear(rooms, rooms.centre))
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        posed, _ = placed(rng, rooms, kind, color, cell, doors, fits, rooms.middle)
        doors = doors.replace(present=connect(rng, rooms, doors.present))
        layout, grid = assemble(rooms, kind, color, cell, doors, posed.position, posed.direction, posed.accepted)
        return layout, grid, single(rooms, layout, PICK_UP, (kind[0], ANY, ANY))

    kinds, limit = frozenset({PICK_UP}), 20 * room_size**2
    return Level(rooms, 1 + len(rooms.edges), ("pick_up",), kinds, (0,), attempt, max_steps=limit)


def opened(rooms: RoomGrid, edges) -> np.ndarray:
    """The walls that are left after those of some edges are removed: bool `[cells]`."""
    walls = rooms.walls.copy()
    walls[rooms.slots[list(edges)].reshape(-1)] = False
    return walls


def _two_halves(name: str, room_size: int, n: int) -> tuple[RoomGrid, np.ndarray]:
    rooms = check_room_grid(name, room_size, 1, 2, 2 * n)
    between(f"{name}: objs_per_room", n, 1, LOOKS // 2, remedy="no two objects are of one type and colour")
    # an agent in a corner leaves most of its half
    places = int((rooms.interior(0, 0) & distant_cells(rooms, (1, 1))).sum())
    between(f"{name}: objs_per_room", n, 1, places, remedy="they lie two steps from the agent; or a larger room_size")
    return rooms, opened(rooms, [0])


def _halves(rng: Rng, rooms: RoomGrid, n: int, walls):
    """The agent on the left, `n` different objects in each room, then the wall between the rooms is removed."""
    position, direction = pose_anywhere(rng, rooms, 0)
    kind, color = unique_objects(rng, 2 * n)
    room = jnp.asarray(np.repeat([0, 1], n).astype(np.int32))
    cell, fits = scatter(rng, rooms, room, clear(rooms, position))
    doors = closed_doors(rng, rooms, np.zeros(1, bool))
    return assemble(rooms, kind, color, cell, doors, position, direction, fits, walls)


def put_next(room_size: int = 8, objs_per_room: int = 4, start_carrying: bool = False) -> Level:
    """Put an object of one half of the room next to one of the other half; with `start_carrying` it is in hand from the
    start."""
    rooms, walls = _two_halves("PutNext", room_size, objs_per_room)

    def attempt(rng, task):
        layout, grid = _halves(rng, rooms, objs_per_room, walls)
        left, right = rng.integers(objs_per_room), objs_per_room + rng.integers(objs_per_room)
        flip = rng.integers(2) == 0
        a, b = jnp.where(flip, right, left), jnp.where(flip, left, right)
        named = [(layout.kind[i], layout.color[i], ANY) for i in (a, b)]
        return layout, grid, single(rooms, layout, PUT_NEXT, *named)

    return Level(
        rooms,
        2 * objs_per_room + 1,
        ("put_next",),
        frozenset({PUT_NEXT}),
        (0,),
        attempt,
        max_steps=8 * room_size**2,
        in_hand=start_carrying,
    )


def move_two_across(room_size: int = 8, objs_per_room: int = 9) -> Level:
    """Put an object of the left half next to one of the right half, then one of the right next to one of the left."""
    rooms, walls = _two_halves("MoveTwoAcross", room_size, objs_per_room)
    at_least("MoveTwoAcross: objs_per_room", objs_per_room, 2)

    def attempt(rng, task):
        layout, grid = _halves(rng, rooms, objs_per_room, walls)
        left, right = rng.pick(objs_per_room, 2), objs_per_room + rng.pick(objs_per_room, 2)
        named = [[(layout.kind[i], layout.color[i], ANY) for i in pair] for pair in zip(left, right)]
        table = descriptors((0, named[0]), (2, named[1][::-1]))
        mission = word(rooms, layout, [PUT_NEXT, NO_CLAUSE, PUT_NEXT, NO_CLAUSE], BEFORE, *table)
        return layout, grid, mission

    kinds, limit = frozenset({PUT_NEXT}), 16 * room_size**2
    return Level(rooms, 2 * objs_per_room + 1, ("put_next",), kinds, (0, 2), attempt, max_steps=limit)
