"""The knowledge of the bot: the current clause, the part of the grid that it has seen, and the objects within reach."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.bot.search import viewpoints
from envs_jax.babyai.cells import around, flood, holds, marked, single, words
from envs_jax.babyai.constants import BOX, CLOSED, DOOR, EMPTY, KEY, LOCKED, OPEN, VIEW, WALL
from envs_jax.babyai.mission import AFTER, GO_TO, NO_CLAUSE, OPEN_DOOR
from envs_jax.babyai.state import State, id_of, state_of, type_of
from envs_jax.babyai.verify import member, members
from envs_jax.babyai.view import AGENT_I, AGENT_J, front, window


class Task(NamedTuple):
    """The current clause."""

    kind: jax.Array
    strict: jax.Array
    held_id: jax.Array
    """The object in hand according to its verifier."""
    claimed: jax.Array
    """Whether only the action `done` is left."""
    movers: jax.Array
    """bool `[O]`, the objects that it names, or moves."""
    fixed: jax.Array
    """bool `[O]`, the objects to put them next to."""
    in_hand: jax.Array
    """Whether an object of `movers` is carried."""
    fixed_in_hand: jax.Array
    """Whether an object of `fixed` is carried."""


def current_task(state: State) -> Task:
    """The first clause not completed of the half that comes next."""
    absent = state.mission.kind == NO_CLAUSE
    halves_done = [state.met[c] & (state.met[c + 1] | absent[c + 1]) for c in (0, 2)]
    half = jnp.where(jnp.where(state.mission.order == AFTER, halves_done[1], ~halves_done[0]), 0, 2)
    clause = half + state.met[half]
    count = state.cell.shape[0]
    return Task(
        kind=state.mission.kind[clause],
        strict=state.mission.strict[clause],
        held_id=state.held[clause],
        claimed=state.matched[clause],
        movers=members(state.mover[clause], count),
        fixed=members(state.fixed[clause], count),
        in_hand=member(state.mover[clause], id_of(state.carrying)),
        fixed_in_hand=member(state.fixed[clause], id_of(state.carrying)),
    )


class Knowledge(NamedTuple):
    """The knowledge of the bot: sets of seen cells (`cells.py`), and the objects within reach."""

    explored: jax.Array
    unexplored: jax.Array
    """The rest, without the walls at the grid's border."""
    empty: jax.Array
    open: jax.Array
    """Empty, or an open door."""
    closed: jax.Array
    """Closed doors that are not locked."""
    locked: jax.Array
    walls: jax.Array
    movable: jax.Array
    """Keys, balls and boxes, unless taking one fails the task."""
    pickup_cell: jax.Array
    """Where the object in hand lay when it was picked up, as far as its verifier knows."""
    reach: jax.Array
    """`[2, W]`, the cells that the agent can walk to, now and with all movable objects cleared."""
    adjacent: jax.Array
    """`[2, W]`, the cells adjacent to those, which can be faced."""
    views: jax.Array
    """`[4, W]`, by heading: poses from which an unseen cell can be seen."""
    x: jax.Array
    y: jax.Array
    """`[O]`, the positions of objects; for objects to go to, the positions according to the verifier."""
    placed: jax.Array
    """`[O]`, whether they lie on the grid, in a seen cell."""
    hand: jax.Array
    """The object carried, -1 for none."""
    places: jax.Array
    """Empty cells next to an object of `Task.fixed`."""

    def cells(self, objects: jax.Array) -> jax.Array:
        """The cells of a set of objects bool `[O]`."""
        return marked(self.x, self.y, objects & self.placed, self.explored.shape[0])


def survey(state: State, explored: jax.Array, task: Task) -> Knowledge:
    """The knowledge that the cells `explored`, uint32 `[W]`, of the true grid give."""
    width, height = state.grid.shape
    cell = state.grid.astype(jnp.int32)
    kind, door = type_of(cell), state_of(cell)
    is_door = kind == DOOR
    empty = words(kind == EMPTY) & explored
    open = words((kind == EMPTY) | is_door & (door == OPEN)) & explored
    closed = words(is_door & (door == CLOSED)) & explored
    loose = words((kind >= KEY) & (kind <= BOX)) & explored

    # a strict clause fails if another door is opened, or another object picked up
    movable = jnp.where(task.strict & (task.kind != GO_TO) & (task.kind != OPEN_DOOR), np.uint32(0), loose)
    free = open | jnp.where(task.strict & (task.kind == OPEN_DOOR), np.uint32(0), closed)
    x, y = state.position[0], state.position[1]
    start = single(x, y, width)
    reach = flood(jnp.stack([start, start]), jnp.stack([free, free | movable]))
    inside = np.full(width, (1 << height - 1) - 2, np.uint32)
    inside[[0, -1]] = 0
    unexplored = ~explored & inside

    hand = id_of(state.carrying.astype(jnp.int32))
    is_carried = np.arange(state.cell.shape[0]) == hand
    pickup_index = jnp.max(jnp.where(is_carried, state.tracked, -1)).astype(jnp.int32)
    location = jnp.where((task.kind == GO_TO) & task.movers, state.tracked, state.cell).astype(jnp.int32)
    at_x, at_y = location // height, location % height
    placed = (location >= 0) & holds(explored, at_x, at_y)
    return Knowledge(
        explored=explored,
        unexplored=unexplored,
        empty=empty,
        open=open,
        closed=closed,
        locked=words(is_door & (door == LOCKED)) & explored,
        walls=words(kind == WALL) & explored,
        movable=movable,
        pickup_cell=jnp.where(
            pickup_index >= 0, single(pickup_index // height, pickup_index % height, width), np.uint32(0)
        ),
        reach=reach,
        adjacent=around(reach) & explored,
        views=viewpoints(unexplored, open | loose),
        x=at_x,
        y=at_y,
        placed=placed,
        hand=hand,
        places=around(marked(at_x, at_y, task.fixed & placed, width)) & empty,
    )


def in_view(state: State) -> jax.Array:
    """The cells in view: uint32 `[W]`."""
    width, height = state.grid.shape
    aside, ahead = np.divmod(np.arange(VIEW * VIEW), VIEW)
    aside, ahead = aside - AGENT_I, AGENT_J - ahead
    step = front(jnp.zeros(2, jnp.int32), state.direction)
    x = state.position[0] + step[0] * ahead - step[1] * aside
    y = state.position[1] + step[1] * ahead + step[0] * aside
    _, lit = window(state.grid, state.position, state.direction)
    return marked(x, y, lit & (y >= 0) & (y < height), width)
