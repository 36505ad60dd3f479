"""The door levels: go to one, open one, or open several in order (`minigrid.envs.babyai.open`)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BLUE, COLORS, DOOR, LOCKED, RED
from envs_jax.babyai.levels.layout import Layout, Rng, word
from envs_jax.babyai.levels.level import Level, descriptors, random_objects, single, unique_objects
from envs_jax.babyai.levels.multi_room import SIDES, check_room_grid, clear, nothing, placed, reachable_only
from envs_jax.babyai.levels.room_grid import Doors, RoomGrid, assemble, closed_doors, pose_anywhere, scatter
from envs_jax.babyai.mission import AFTER, ANY, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, SINGLE
from envs_jax.checks import between


def _four_doors(rng: Rng, rooms: RoomGrid, color=None, sides=range(SIDES), lock: bool = False) -> Doors:
    """Doors around the middle room.

    **Arguments:** `color`, int32 `[len(sides)]`, random if None; `lock`, whether each is locked with probability 1/2.
    """
    edges = rooms.edge_of[rooms.middle][list(sides)]
    doors = closed_doors(rng, rooms, np.isin(np.arange(len(rooms.edges)), edges))
    if color is not None:
        doors = doors.replace(color=doors.color.at[edges].set(color))
    if lock:
        doors = doors.replace(lock=jnp.where(rng.integers(2, len(rooms.edges)) == 0, LOCKED, doors.lock))
    return doors


def go_to_door() -> Level:
    """Go to one of the four doors of the middle room."""
    rooms = check_room_grid("GoToDoor", 7, 3, 3, 0)
    edges = rooms.edge_of[rooms.middle]

    def attempt(rng, task):
        doors = _four_doors(rng, rooms, lock=True)
        layout, grid = placed(rng, rooms, nothing(), nothing(), nothing(), doors, jnp.bool_(True), rooms.middle)
        target = jnp.asarray(edges)[rng.integers(SIDES)]
        return layout, grid, single(rooms, layout, GO_TO, (DOOR, doors.color[target], ANY))

    return Level(rooms, len(rooms.edges), ("go_to",), frozenset({GO_TO}), (0,), attempt)


def go_to_obj_door() -> Level:
    """Go to one of eight objects or four doors, all of the middle room."""
    rooms = check_room_grid("GoToObjDoor", 8, 3, 3, 8)
    edges = 8 + rooms.edge_of[rooms.middle]

    def attempt(rng, task):
        position, direction = pose_anywhere(rng, rooms, rooms.middle)
        kind, color = random_objects(rng, 8)
        cell, fits = scatter(rng, rooms, jnp.full(8, rooms.middle), clear(rooms, position))
        doors = _four_doors(rng, rooms, lock=True)
        layout, grid = reachable_only(rooms, assemble(rooms, kind, color, cell, doors, position, direction, fits))
        target = jnp.asarray(np.append(np.arange(8), edges).astype(np.int32))[rng.integers(8 + SIDES)]
        return layout, grid, single(rooms, layout, GO_TO, (layout.kind[target], layout.color[target], ANY))

    return Level(rooms, 8 + len(rooms.edges), ("go_to",), frozenset({GO_TO}), (0,), attempt)


def action_obj_door() -> Level:
    """Go to, or pick up, one of five objects; or go to, or open, one of four doors."""
    rooms = check_room_grid("ActionObjDoor", 7, 3, 3, 5)
    edges = 5 + rooms.edge_of[rooms.middle]

    def attempt(rng, task):
        kind, color = unique_objects(rng, 5)
        cell, fits = scatter(rng, rooms, jnp.full(5, rooms.middle), clear(rooms, rooms.centre))
        doors = _four_doors(rng, rooms)
        layout, grid = placed(rng, rooms, kind, color, cell, doors, fits, rooms.middle)
        target = jnp.asarray(np.append(np.arange(5), edges).astype(np.int32))[rng.integers(5 + SIDES)]
        other_verb = jnp.where(layout.kind[target] == DOOR, OPEN_DOOR, PICK_UP)
        verb = jnp.where(rng.integers(2) == 0, GO_TO, other_verb)
        return layout, grid, single(rooms, layout, verb, (layout.kind[target], layout.color[target], ANY))

    kinds = frozenset({GO_TO, OPEN_DOOR, PICK_UP})
    return Level(rooms, 5 + len(rooms.edges), ("act",), kinds, (0,), attempt)


def open_red_door() -> Level:
    """Open the red door between two rooms."""
    rooms = check_room_grid("OpenRedDoor", 5, 1, 2, 0)

    def attempt(rng, task):
        doors = closed_doors(rng, rooms, np.ones(1, bool)).replace(color=jnp.full(1, RED, jnp.int32))
        layout, grid = placed(rng, rooms, nothing(), nothing(), nothing(), doors, jnp.bool_(True), 0)
        return layout, grid, single(rooms, layout, OPEN_DOOR, (DOOR, RED, ANY))

    return Level(rooms, 1, ("open",), frozenset({OPEN_DOOR}), (0,), attempt)


def open_door(debug: bool = False, select_by: str = "either") -> Level:
    """Open one of four doors of different colours, named by its colour or by its location. With `debug`, toggling
    another door fails."""
    if select_by not in ("either", "color", "loc"):
        raise ValueError(f"OpenDoor: select_by is {select_by!r}; it is either, color or loc")
    rooms = check_room_grid("OpenDoor", 8, 3, 3, 0)

    def attempt(rng, task):
        color = rng.pick(len(COLORS), SIDES)
        doors = _four_doors(rng, rooms, color)
        layout, grid = placed(rng, rooms, nothing(), nothing(), nothing(), doors, jnp.bool_(True), rooms.middle)
        by_color = {"either": rng.integers(2) == 0, "color": jnp.bool_(True), "loc": jnp.bool_(False)}[select_by]
        named = (DOOR, jnp.where(by_color, color[0], ANY), jnp.where(by_color, ANY, rng.integers(4)))
        return layout, grid, single(rooms, layout, OPEN_DOOR, named, strict=debug)

    kinds = frozenset({OPEN_DOOR})
    return Level(rooms, len(rooms.edges), ("open",), kinds, (0,), attempt, located=select_by != "color")


def _open_in_order(rooms: RoomGrid, layout: Layout, colors, order, strict: tuple[bool, bool]):
    """`open A`, `open A, then open B` or `open A after you open B`."""
    second = jnp.where(order == SINGLE, NO_CLAUSE, OPEN_DOOR)
    type, color, location = descriptors((0, [(DOOR, colors[0], ANY)]), (2, [(DOOR, colors[1], ANY)]))
    kinds = jnp.stack([jnp.int32(OPEN_DOOR), jnp.int32(NO_CLAUSE), second, jnp.int32(NO_CLAUSE)])
    strict_ = jnp.stack([jnp.bool_(strict[0]), jnp.bool_(False), (order != SINGLE) & strict[1], jnp.bool_(False)])
    return word(rooms, layout, kinds, order, type, color, location, strict_)


def open_two_doors(red_blue: bool = False, strict: bool = False) -> Level:
    """Open the left door of the middle room, then the right one. With `strict`, toggling another door first fails."""
    rooms = check_room_grid("OpenTwoDoors", 6, 3, 3, 0)

    def attempt(rng, task):
        color = jnp.asarray(np.array([RED, BLUE], np.int32)) if red_blue else rng.pick(len(COLORS), 2)
        doors = _four_doors(rng, rooms, color, sides=(2, 0))
        layout, grid = placed(rng, rooms, nothing(), nothing(), nothing(), doors, jnp.bool_(True), rooms.middle)
        return layout, grid, _open_in_order(rooms, layout, color, jnp.int32(BEFORE), (strict, False))

    kinds = frozenset({OPEN_DOOR})
    return Level(rooms, len(rooms.edges), ("open",), kinds, (0, 2), attempt, max_steps=20 * 36)


def open_doors_order(num_doors: int = 2, debug: bool = False) -> Level:
    """Open one door of the middle room, or two in an order. With `debug`, toggling the wrong door fails."""
    between("OpenDoorsOrder: num_doors", num_doors, 2, SIDES)
    rooms = check_room_grid("OpenDoorsOrder", 6, 3, 3, 0)

    def attempt(rng, task):
        color = rng.pick(len(COLORS), num_doors)
        edges = jnp.asarray(rooms.edge_of[rooms.middle])[rng.pick(SIDES, num_doors)]
        doors = closed_doors(rng, rooms, np.zeros(len(rooms.edges), bool))
        at_edge = np.arange(len(rooms.edges))[:, None] == edges
        doors = doors.replace(
            present=jnp.any(at_edge, axis=1),
            color=jnp.where(jnp.any(at_edge, axis=1), jnp.sum(jnp.where(at_edge, color, 0), axis=1), doors.color),
        )
        layout, grid = placed(rng, rooms, nothing(), nothing(), nothing(), doors, jnp.bool_(True), rooms.middle)
        chosen = color[rng.pick(num_doors, 2)]
        order = jnp.asarray(np.array([SINGLE, BEFORE, AFTER], np.int32))[rng.integers(3)]
        return layout, grid, _open_in_order(rooms, layout, chosen, order, (debug, debug))

    kinds = frozenset({OPEN_DOOR})
    return Level(rooms, len(rooms.edges), ("open",), kinds, (0, 2), attempt, max_steps=20 * 36)
