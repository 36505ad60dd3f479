"""The levels of one room (`minigrid.envs.babyai`; GLAM's, 2302.02662)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, COLORS, GREY, RED
from envs_jax.babyai.levels.layout import (
    adjacent,
    all_reachable,
    matches,
)
from envs_jax.babyai.levels.level import (
    LOOSE,
    Level,
    agent_first,
    check_room,
    objects_first,
    random_objects,
    single,
    unique_objects,
)
from envs_jax.babyai.mission import (
    ANY,
    GO_TO,
    LOCATIONS,
    PICK_UP,
    PUT_NEXT,
)
from envs_jax.checks import at_least


def _go_to_red_ball(name: str, room_size: int, num_dists: int, grey: bool) -> Level:
    rooms = check_room(name, room_size, num_dists + 1)

    def attempt(rng, task):
        kind, color = random_objects(rng, num_dists + 1)
        kind, color = kind.at[0].set(BALL), color.at[0].set(RED)
        if grey:
            color = color.at[1:].set(GREY)
        layout, grid = agent_first(rng, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        return layout, grid, single(rooms, layout, GO_TO, (BALL, RED, ANY))

    return Level(rooms, num_dists + 1, ("go_to",), frozenset({GO_TO}), (0,), attempt)


def go_to_red_ball(room_size: int = 8, num_dists: int = 7) -> Level:
    """Go to the red ball, among distractors."""
    return _go_to_red_ball("GoToRedBall", room_size, num_dists, False)


def go_to_red_ball_grey(room_size: int = 8, num_dists: int = 7) -> Level:
    """Go to the red ball, among grey distractors."""
    return _go_to_red_ball("GoToRedBallGrey", room_size, num_dists, True)


def go_to_red_ball_no_dists() -> Level:
    """Go to the red ball, alone in the room."""
    return _go_to_red_ball("GoToRedBallNoDists", 8, 0, False)


def go_to_obj(room_size: int = 8) -> Level:
    """Go to the only object."""
    return _go_to_one("GoToObj", room_size, 1)


def go_to_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """Go to one of `num_dists` objects."""
    return _go_to_one("GoToLocal", room_size, num_dists)


def _go_to_one(name: str, room_size: int, count: int) -> Level:
    rooms = check_room(name, room_size, count)

    def attempt(rng, task):
        kind, color = random_objects(rng, count)
        layout, grid = agent_first(rng, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        target = rng.integers(count)
        return layout, grid, single(rooms, layout, GO_TO, (kind[target], color[target], ANY))

    return Level(rooms, count, ("go_to",), frozenset({GO_TO}), (0,), attempt)


def pickup_loc(room_size: int = 8) -> Level:
    """Pick up one of eight objects, described by type, optional colour and optional location at the start."""
    count = 8
    rooms = check_room("PickupLoc", room_size, count, agent_first=False)
    grids = np.meshgrid(
        [ANY, *range(len(COLORS))], LOOSE, [ANY] * len(LOCATIONS) + list(range(len(LOCATIONS))), indexing="ij"
    )
    colors, types, places = (grid.reshape(-1) for grid in grids)

    def attempt(rng, task):
        kind, color = random_objects(rng, count)
        layout, grid = objects_first(rng, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        # descriptors weighted as minigrid tries them (half with a location), among those that match
        matching = jnp.any(matches(rooms, layout, types, colors, places), axis=-1)
        pick, _ = rng.cells(matching, 1)
        descriptor = tuple(jnp.asarray(a)[pick[0]] for a in (types, colors, places))
        return layout, grid, single(rooms, layout, PICK_UP, descriptor)

    return Level(rooms, count, ("pick_up",), frozenset({PICK_UP}), (0,), attempt, located=True)


def put_next_local(room_size: int = 8, num_objs: int = 8) -> Level:
    """Put one of `num_objs` different objects next to another one."""
    rooms = check_room("PutNextLocal", room_size, num_objs, unique=True)
    at_least("PutNextLocal: num_objs", num_objs, 2)

    def attempt(rng, task):
        kind, color = unique_objects(rng, num_objs)
        layout, grid = agent_first(rng, rooms, kind, color)
        a, b = rng.pick(num_objs, 2)
        mission, mover, fixed = single(rooms, layout, PUT_NEXT, (kind[a], color[a], ANY), (kind[b], color[b], ANY))
        reachable = all_reachable(rooms, grid, layout.position)
        accepted = layout.accepted & reachable & ~adjacent(rooms, layout, mover[0], fixed[0])
        return layout.replace(accepted=accepted), grid, (mission, mover, fixed)

    return Level(rooms, num_objs, ("put_next",), frozenset({PUT_NEXT}), (0,), attempt)


def one_room(room_size: int = 8) -> Level:
    """Pick up the ball, the only object."""
    rooms = check_room("OneRoom", room_size, 1, agent_first=False)

    def attempt(rng, task):
        color = rng.integers(len(COLORS), 1)
        layout, grid = objects_first(rng, rooms, jnp.full(1, BALL, jnp.int32), color)
        return layout, grid, single(rooms, layout, PICK_UP, (BALL, ANY, ANY))

    return Level(rooms, 1, ("pick_up",), frozenset({PICK_UP}), (0,), attempt)
