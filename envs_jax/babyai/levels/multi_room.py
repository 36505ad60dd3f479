"""The levels of several rooms about things, in which nothing is locked by intent: go to, pick up, put next, and open
any door (glam reference, sections 6.1 and 6.6)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BLUE, COLORS, DOOR, GREY, OPEN, RED
from envs_jax.babyai.levels.layout import Dice, Layout, adjacent, all_reachable, apart, fill, word
from envs_jax.babyai.levels.level import (
    LOOSE,
    Level,
    agent_first,
    check_room,
    descriptors,
    single,
    things,
    unique_things,
)
from envs_jax.babyai.levels.room_grid import (
    Doors,
    Maze,
    assemble,
    closed_doors,
    connect,
    pose_anywhere,
    pose_in,
    scatter,
)
from envs_jax.babyai.mission import ANY, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT
from envs_jax.babyai.state import MAX_OBJECTS, MAX_SIDE


LOOKS = len(LOOSE) * len(COLORS)

SIDES = 4


def check_maze(name: str, room_size: int, rows: int, columns: int, loose: int, smallest: int = 4) -> Maze:
    """Refuse mazes that no grid holds."""
    if room_size < smallest:
        raise ValueError(f"{name}: room_size is {room_size}; at least {smallest} is needed, walls included")
    if rows < 1 or columns < 1:
        raise ValueError(f"{name}: {rows} rows and {columns} columns of rooms; at least one of each is needed")
    maze = Maze(room_size, rows, columns)
    if max(maze.width, maze.height) > MAX_SIDE:
        raise ValueError(
            f"{name}: {rows} x {columns} rooms of size {room_size} are {maze.width} x {maze.height} cells; {MAX_SIDE} "
            "along a side is the limit"
        )
    if loose < 0 or loose + len(maze.edges) > MAX_OBJECTS:
        raise ValueError(f"{name}: {loose} things and {len(maze.edges)} doors; {MAX_OBJECTS} objects are the limit")
    if 2 * loose > max(maze.inside.size, 6):
        raise ValueError(
            f"{name}: {loose} things on {maze.inside.size} cells of floor; they may take half of it: take fewer, or a "
            "larger room_size"
        )
    return maze


def clear(maze: Maze, position) -> jax.Array:
    """The floor two steps or more from a position: bool `[cells]`."""
    return ~maze.walls & apart(maze, position)


def centre(maze: Maze) -> jax.Array:
    """Where minigrid believes the agent to be until it is placed: int32 `[2]`."""
    return jnp.asarray(maze.centre, jnp.int32)


def maze_of(dice: Dice, maze: Maze, n: int):
    """Agent, doors, then `n` things anywhere: the mazes without locks.

    **Returns:** layout and grid; whether all can be reached is not looked at."""
    position, direction = pose_anywhere(dice, maze)
    doors = closed_doors(dice, maze, np.zeros(len(maze.edges), bool))
    doors = doors.replace(present=connect(dice, maze, doors.present))
    kind, color = things(dice, n)
    cell, fits = scatter(dice, maze, dice.below(maze.count, n), clear(maze, position))
    return assemble(maze, kind, color, cell, doors, position, direction, fits)


def reachable_only(maze: Maze, drawn) -> tuple[Layout, jax.Array]:
    layout, grid = drawn
    accepted = layout.accepted & all_reachable(maze, grid, layout.position)
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
    """Do something to one of `n` things in a maze; `blocked`: in worlds in which something cannot be reached without
    moving another thing."""
    maze = check_maze(name, room_size, rows, columns, n)
    if n < 1:
        raise ValueError(f"{name}: {n} things; at least 1 is needed")

    def attempt(dice, task):
        layout, grid = maze_of(dice, maze, n)
        reachable = all_reachable(maze, grid, layout.position)
        layout = layout.replace(accepted=layout.accepted & (reachable != blocked))
        if doors_open:
            layout = layout.replace(lock=jnp.where(layout.kind == DOOR, OPEN, layout.lock))
            grid = fill(maze.walls, layout.packed(), layout.cell)
        target = dice.below(n)
        return layout, grid, single(maze, layout, kind, (layout.kind[target], layout.color[target], ANY))

    task = {GO_TO: "go_to", PICK_UP: "pick_up"}[kind]
    return Level(maze, n + len(maze.edges), (task,), frozenset({kind}), (0,), attempt)


def go_to(
    room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18, doors_open: bool = False
) -> Level:
    """Go to one of `num_dists` objects of a maze, the doors closed or all open."""
    return _about_one("GoTo", GO_TO, num_dists, room_size, num_rows, num_cols, doors_open=doors_open)


def pickup() -> Level:
    """Pick up one of 18 objects of a maze."""
    return _about_one("Pickup", PICK_UP, 18)


def unblock_pickup() -> Level:
    """Pick up one of 20 objects of a maze in which something is blocked by another thing."""
    return _about_one("UnblockPickup", PICK_UP, 20, blocked=True)


def put_next_maze(room_size: int = 8, num_rows: int = 3, num_cols: int = 3, num_dists: int = 18) -> Level:
    """Put one of `num_dists` objects of a maze next to another: the level of BabyAI's paper that minigrid lacks."""
    maze = check_maze("PutNext", room_size, num_rows, num_cols, num_dists)
    if num_dists < 2:
        raise ValueError(f"PutNext: num_dists is {num_dists}; at least 2 are needed")

    def attempt(dice, task):
        layout, grid = reachable_only(maze, maze_of(dice, maze, num_dists))
        a, b = dice.pick(num_dists, 2)
        named = [(layout.kind[i], layout.color[i], ANY) for i in (a, b)]
        mission, mover, fixed = single(maze, layout, PUT_NEXT, *named)
        clash = jnp.any(mover[0] & fixed[0] != 0) | adjacent(maze, layout, mover[0], fixed[0])
        return layout.replace(accepted=layout.accepted & ~clash), grid, (mission, mover, fixed)

    return Level(maze, num_dists + len(maze.edges), ("put_next",), frozenset({PUT_NEXT}), (0,), attempt)


def open_any() -> Level:
    """Open a door of a maze with 18 things in it."""
    maze = check_maze("Open", 8, 3, 3, 18)

    def attempt(dice, task):
        layout, grid = reachable_only(maze, maze_of(dice, maze, 18))
        target = 18 + dice.among(layout.kind[18:] == DOOR)
        return layout, grid, single(maze, layout, OPEN_DOOR, (DOOR, layout.color[target], ANY))

    return Level(maze, 18 + len(maze.edges), ("open",), frozenset({OPEN_DOOR}), (0,), attempt)


def go_to_red_blue_ball(room_size: int = 8, num_dists: int = 7) -> Level:
    """Go to the only ball that is red or blue."""
    rooms = check_room("GoToRedBlueBall", room_size, num_dists + 1)
    looks = [(t, c) for t in LOOSE for c in range(len(COLORS)) if not (t == BALL and c in (RED, BLUE))]
    table = np.array(looks, np.int32)

    def attempt(dice, task):
        # minigrid rejects worlds with another such ball: what is left is uniform among the other looks
        look = jnp.asarray(table)[dice.below(len(looks), num_dists)]
        paint = jnp.asarray(np.array([RED, BLUE], np.int32))[dice.below(2)]
        kind, color = jnp.append(look[:, 0], BALL), jnp.append(look[:, 1], paint)
        layout, grid = agent_first(dice, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        return layout, grid, single(rooms, layout, GO_TO, (BALL, paint, ANY))

    return Level(rooms, num_dists + 1, ("go_to",), frozenset({GO_TO}), (0,), attempt)


def placed(dice: Dice, maze: Maze, kind, color, cell, doors: Doors, fits, room, walls=None):
    """Things and doors, then the agent in one room."""
    zero = jnp.int32(0)
    _, grid = assemble(maze, kind, color, cell, doors, centre(maze), zero, fits, walls)
    position, direction, found = pose_in(dice, maze, grid, room)
    return assemble(maze, kind, color, cell, doors, position, direction, fits & found, walls)


def nothing() -> jax.Array:
    """No things: int32 `[0]`."""
    return jnp.zeros(0, jnp.int32)


def pickup_dist(debug: bool = False, compat: bool = False) -> Level:
    """Pick up one of five different things, named by its type, its colour or both. With `debug`, picking up another
    one fails. With `compat` it is always "a grey object", because minigrid counts its grey walls."""
    maze = check_maze("PickupDist", 7, 1, 1, 5)

    def attempt(dice, task):
        kind, color = unique_things(dice, 5)
        cell, fits = scatter(dice, maze, jnp.zeros(5, jnp.int32), clear(maze, maze.centre))
        doors = closed_doors(dice, maze, np.zeros(0, bool))
        layout, grid = placed(dice, maze, kind, color, cell, doors, fits, 0)
        target, by = dice.below(5), dice.below(3)
        named = (jnp.where(by == 1, ANY, kind[target]), jnp.where(by == 0, ANY, color[target]), ANY)
        mission, mover, fixed = single(maze, layout, PICK_UP, named, strict=debug)
        if compat:
            wall_too = (named[0] == ANY) & (named[1] == GREY)
            mission = mission.replace(many=mission.many.at[0, 0].set(mission.many[0, 0] | wall_too))
        return layout, grid, (mission, mover, fixed)

    return Level(maze, 5, ("pick_up",), frozenset({PICK_UP}), (0,), attempt)


def pickup_above() -> Level:
    """Pick up the object in the room above."""
    maze = check_maze("PickupAbove", 6, 3, 3, 1)
    above, door = maze.room(1, 0), maze.edge_of[maze.middle, 3]

    def attempt(dice, task):
        kind, color = things(dice, 1)
        cell, fits = scatter(dice, maze, jnp.full(1, above), clear(maze, maze.centre))
        doors = closed_doors(dice, maze, np.arange(len(maze.edges)) == door)
        posed, _ = placed(dice, maze, kind, color, cell, doors, fits, maze.middle)
        doors = doors.replace(present=connect(dice, maze, doors.present))
        layout, grid = assemble(maze, kind, color, cell, doors, posed.position, posed.direction, posed.accepted)
        return layout, grid, single(maze, layout, PICK_UP, (kind[0], color[0], ANY))

    return Level(maze, 1 + len(maze.edges), ("pick_up",), frozenset({PICK_UP}), (0,), attempt, max_steps=8 * 36)


def find_obj(room_size: int = 5) -> Level:
    """Pick up the only object of a maze, named by its type."""
    maze = check_maze("FindObj", room_size, 3, 3, 1)

    def attempt(dice, task):
        kind, color = things(dice, 1)
        cell, fits = scatter(dice, maze, dice.below(maze.count, 1), clear(maze, maze.centre))
        doors = closed_doors(dice, maze, np.zeros(len(maze.edges), bool))
        posed, _ = placed(dice, maze, kind, color, cell, doors, fits, maze.middle)
        doors = doors.replace(present=connect(dice, maze, doors.present))
        layout, grid = assemble(maze, kind, color, cell, doors, posed.position, posed.direction, posed.accepted)
        return layout, grid, single(maze, layout, PICK_UP, (kind[0], ANY, ANY))

    kinds, limit = frozenset({PICK_UP}), 20 * room_size**2
    return Level(maze, 1 + len(maze.edges), ("pick_up",), kinds, (0,), attempt, max_steps=limit)


def opened(maze: Maze, edges) -> np.ndarray:
    """The walls that are left when those of some edges are taken away: bool `[cells]`."""
    walls = maze.walls.copy()
    walls[maze.slots[list(edges)].reshape(-1)] = False
    return walls


def _two_halves(name: str, room_size: int, n: int) -> tuple[Maze, np.ndarray]:
    maze = check_maze(name, room_size, 1, 2, 2 * n)
    if not 1 <= n <= LOOKS // 2:
        raise ValueError(f"{name}: objs_per_room is {n}; it runs from 1 to {LOOKS // 2}, as no two are alike")
    floor = maze.inside.shape[1]
    if n > floor - 1:
        raise ValueError(f"{name}: {n} objects do not fit into a room of size {room_size}; take a larger room_size")
    return maze, opened(maze, [0])


def _halves(dice: Dice, maze: Maze, n: int, walls):
    """The agent on the left, `n` different things in each room, then no wall between them."""
    position, direction = pose_anywhere(dice, maze, 0)
    kind, color = unique_things(dice, 2 * n)
    room = jnp.asarray(np.repeat([0, 1], n).astype(np.int32))
    cell, fits = scatter(dice, maze, room, clear(maze, position))
    doors = closed_doors(dice, maze, np.zeros(1, bool))
    return assemble(maze, kind, color, cell, doors, position, direction, fits, walls)


def put_next(room_size: int = 8, objs_per_room: int = 4, start_carrying: bool = False) -> Level:
    """Put a thing of one half of the room next to one of the other half; with `start_carrying` it is in hand."""
    maze, walls = _two_halves("PutNext", room_size, objs_per_room)

    def attempt(dice, task):
        layout, grid = _halves(dice, maze, objs_per_room, walls)
        left, right = dice.below(objs_per_room), objs_per_room + dice.below(objs_per_room)
        flip = dice.below(2) == 0
        a, b = jnp.where(flip, right, left), jnp.where(flip, left, right)
        named = [(layout.kind[i], layout.color[i], ANY) for i in (a, b)]
        return layout, grid, single(maze, layout, PUT_NEXT, *named)

    return Level(
        maze,
        2 * objs_per_room + 1,
        ("put_next",),
        frozenset({PUT_NEXT}),
        (0,),
        attempt,
        max_steps=8 * room_size**2,
        in_hand=start_carrying,
    )


def move_two_across(room_size: int = 8, objs_per_room: int = 9) -> Level:
    """Put a thing of the left half next to one of the right half, then one of the right next to one of the left."""
    maze, walls = _two_halves("MoveTwoAcross", room_size, objs_per_room)
    if objs_per_room < 2:
        raise ValueError("MoveTwoAcross: objs_per_room is 1; at least 2 are needed")

    def attempt(dice, task):
        layout, grid = _halves(dice, maze, objs_per_room, walls)
        left, right = dice.pick(objs_per_room, 2), objs_per_room + dice.pick(objs_per_room, 2)
        named = [[(layout.kind[i], layout.color[i], ANY) for i in pair] for pair in zip(left, right)]
        table = descriptors((0, named[0]), (2, named[1][::-1]))
        mission = word(maze, layout, [PUT_NEXT, NO_CLAUSE, PUT_NEXT, NO_CLAUSE], BEFORE, *table)
        return layout, grid, mission

    kinds, limit = frozenset({PUT_NEXT}), 16 * room_size**2
    return Level(maze, 2 * objs_per_room + 1, ("put_next",), kinds, (0, 2), attempt, max_steps=limit)
