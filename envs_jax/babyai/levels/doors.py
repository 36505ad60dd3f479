"""The levels about doors: go to one, open one, or several in an order (glam reference, sections 6.1 and 6.6)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BLUE, COLORS, DOOR, LOCKED, RED
from envs_jax.babyai.levels.layout import Dice, Layout, word
from envs_jax.babyai.levels.level import Level, descriptors, single, things, unique_things
from envs_jax.babyai.levels.multi_room import SIDES, check_maze, clear, nothing, placed, reachable_only
from envs_jax.babyai.levels.room_grid import Doors, Maze, assemble, closed_doors, pose_anywhere, scatter
from envs_jax.babyai.mission import AFTER, ANY, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, SINGLE


def _four_doors(dice: Dice, maze: Maze, color=None, sides=range(SIDES), lock: bool = False) -> Doors:
    """Doors around the middle room.

    **Arguments:** `color`, int32 `[len(sides)]`, random where None; `lock`, whether each is locked half of the time.
    """
    edges = maze.edge_of[maze.middle][list(sides)]
    doors = closed_doors(dice, maze, np.isin(np.arange(len(maze.edges)), edges))
    if color is not None:
        doors = doors.replace(color=doors.color.at[edges].set(color))
    if lock:
        doors = doors.replace(lock=jnp.where(dice.below(2, len(maze.edges)) == 0, LOCKED, doors.lock))
    return doors


def go_to_door() -> Level:
    """Go to one of the four doors of the middle room."""
    maze = check_maze("GoToDoor", 7, 3, 3, 0)
    edges = maze.edge_of[maze.middle]

    def attempt(dice, task):
        doors = _four_doors(dice, maze, lock=True)
        layout, grid = placed(dice, maze, nothing(), nothing(), nothing(), doors, jnp.bool_(True), maze.middle)
        target = jnp.asarray(edges)[dice.below(SIDES)]
        return layout, grid, single(maze, layout, GO_TO, (DOOR, doors.color[target], ANY))

    return Level(maze, len(maze.edges), ("go_to",), frozenset({GO_TO}), (0,), attempt)


def go_to_obj_door() -> Level:
    """Go to one of eight things or four doors, all of the middle room."""
    maze = check_maze("GoToObjDoor", 8, 3, 3, 8)
    edges = 8 + maze.edge_of[maze.middle]

    def attempt(dice, task):
        position, direction = pose_anywhere(dice, maze, maze.middle)
        kind, color = things(dice, 8)
        cell, fits = scatter(dice, maze, jnp.full(8, maze.middle), clear(maze, position))
        doors = _four_doors(dice, maze, lock=True)
        layout, grid = reachable_only(maze, assemble(maze, kind, color, cell, doors, position, direction, fits))
        target = jnp.asarray(np.append(np.arange(8), edges).astype(np.int32))[dice.below(8 + SIDES)]
        return layout, grid, single(maze, layout, GO_TO, (layout.kind[target], layout.color[target], ANY))

    return Level(maze, 8 + len(maze.edges), ("go_to",), frozenset({GO_TO}), (0,), attempt)


def action_obj_door() -> Level:
    """Go to, or pick up, one of five things; or go to, or open, one of four doors."""
    maze = check_maze("ActionObjDoor", 7, 3, 3, 5)
    edges = 5 + maze.edge_of[maze.middle]

    def attempt(dice, task):
        kind, color = unique_things(dice, 5)
        cell, fits = scatter(dice, maze, jnp.full(5, maze.middle), clear(maze, maze.centre))
        doors = _four_doors(dice, maze)
        layout, grid = placed(dice, maze, kind, color, cell, doors, fits, maze.middle)
        target = jnp.asarray(np.append(np.arange(5), edges).astype(np.int32))[dice.below(5 + SIDES)]
        other = jnp.where(layout.kind[target] == DOOR, OPEN_DOOR, PICK_UP)
        verb = jnp.where(dice.below(2) == 0, GO_TO, other)
        return layout, grid, single(maze, layout, verb, (layout.kind[target], layout.color[target], ANY))

    kinds = frozenset({GO_TO, OPEN_DOOR, PICK_UP})
    return Level(maze, 5 + len(maze.edges), ("act",), kinds, (0,), attempt)


def open_red_door() -> Level:
    """Open the red door between two rooms."""
    maze = check_maze("OpenRedDoor", 5, 1, 2, 0)

    def attempt(dice, task):
        doors = closed_doors(dice, maze, np.ones(1, bool)).replace(color=jnp.full(1, RED, jnp.int32))
        layout, grid = placed(dice, maze, nothing(), nothing(), nothing(), doors, jnp.bool_(True), 0)
        return layout, grid, single(maze, layout, OPEN_DOOR, (DOOR, RED, ANY))

    return Level(maze, 1, ("open",), frozenset({OPEN_DOOR}), (0,), attempt)


def open_door(debug: bool = False, select_by: str = "either") -> Level:
    """Open one of four doors of different colours, named by its colour or by where it is. With `debug`, toggling
    another door fails."""
    if select_by not in ("either", "color", "loc"):
        raise ValueError(f"OpenDoor: select_by is {select_by!r}; it is either, color or loc")
    maze = check_maze("OpenDoor", 8, 3, 3, 0)

    def attempt(dice, task):
        color = dice.pick(len(COLORS), SIDES)
        doors = _four_doors(dice, maze, color)
        layout, grid = placed(dice, maze, nothing(), nothing(), nothing(), doors, jnp.bool_(True), maze.middle)
        by_color = {"either": dice.below(2) == 0, "color": jnp.bool_(True), "loc": jnp.bool_(False)}[select_by]
        named = (DOOR, jnp.where(by_color, color[0], ANY), jnp.where(by_color, ANY, dice.below(4)))
        return layout, grid, single(maze, layout, OPEN_DOOR, named, strict=debug)

    kinds = frozenset({OPEN_DOOR})
    return Level(maze, len(maze.edges), ("open",), kinds, (0,), attempt, located=select_by != "color")


def _open_in_order(maze: Maze, layout: Layout, colors, order, strict: tuple[bool, bool]):
    """`open A`, `open A, then open B` or `open A after you open B`."""
    second = jnp.where(order == SINGLE, NO_CLAUSE, OPEN_DOOR)
    type, color, location = descriptors((0, [(DOOR, colors[0], ANY)]), (2, [(DOOR, colors[1], ANY)]))
    kinds = jnp.stack([jnp.int32(OPEN_DOOR), jnp.int32(NO_CLAUSE), second, jnp.int32(NO_CLAUSE)])
    strict_ = jnp.stack([jnp.bool_(strict[0]), jnp.bool_(False), (order != SINGLE) & strict[1], jnp.bool_(False)])
    return word(maze, layout, kinds, order, type, color, location, strict_)


def open_two_doors(red_blue: bool = False, strict: bool = False) -> Level:
    """Open the left door of the middle room, then the right one. With `strict`, toggling another door first fails."""
    maze = check_maze("OpenTwoDoors", 6, 3, 3, 0)

    def attempt(dice, task):
        color = jnp.asarray(np.array([RED, BLUE], np.int32)) if red_blue else dice.pick(len(COLORS), 2)
        doors = _four_doors(dice, maze, color, sides=(2, 0))
        layout, grid = placed(dice, maze, nothing(), nothing(), nothing(), doors, jnp.bool_(True), maze.middle)
        return layout, grid, _open_in_order(maze, layout, color, jnp.int32(BEFORE), (strict, False))

    kinds = frozenset({OPEN_DOOR})
    return Level(maze, len(maze.edges), ("open",), kinds, (0, 2), attempt, max_steps=20 * 36)


def open_doors_order(num_doors: int = 2, debug: bool = False) -> Level:
    """Open one door of the middle room, or two in an order. With `debug`, toggling the wrong door fails."""
    if not 2 <= num_doors <= SIDES:
        raise ValueError(f"OpenDoorsOrder: num_doors is {num_doors}; it runs from 2 to {SIDES}")
    maze = check_maze("OpenDoorsOrder", 6, 3, 3, 0)

    def attempt(dice, task):
        color = dice.pick(len(COLORS), num_doors)
        edges = jnp.asarray(maze.edge_of[maze.middle])[dice.pick(SIDES, num_doors)]
        doors = closed_doors(dice, maze, np.zeros(len(maze.edges), bool))
        here = np.arange(len(maze.edges))[:, None] == edges
        doors = doors.replace(
            present=jnp.any(here, axis=1),
            color=jnp.where(jnp.any(here, axis=1), jnp.sum(jnp.where(here, color, 0), axis=1), doors.color),
        )
        layout, grid = placed(dice, maze, nothing(), nothing(), nothing(), doors, jnp.bool_(True), maze.middle)
        chosen = color[dice.pick(num_doors, 2)]
        order = jnp.asarray(np.array([SINGLE, BEFORE, AFTER], np.int32))[dice.below(3)]
        return layout, grid, _open_in_order(maze, layout, chosen, order, (debug, debug))

    kinds = frozenset({OPEN_DOOR})
    return Level(maze, len(maze.edges), ("open",), kinds, (0, 2), attempt, max_steps=20 * 36)
