"""A shortest-path expert for BabyAI's clauses, on the device: the source of demonstrations.

It reads the true state, not the view, unless `seen_only` makes it search for objects as the agent must. For the current
clause it determines the cells to face and the action to take there, and finds a shortest path by backward breadth-first
search over poses (cell and heading), with sets of cells as words of bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.babyai.bot.search import facing
from envs_jax.babyai.cells import around, holds, predecessors, single, words
from envs_jax.babyai.constants import (
    BOX,
    CLOSED,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    KEY,
    LEFT,
    LOCKED,
    PICKUP,
    RIGHT,
    TOGGLE,
)
from envs_jax.babyai.mission import AFTER, GO_TO, NO_CLAUSE, OPEN_DOOR, PUT_NEXT
from envs_jax.babyai.state import State, color_of, id_of, state_of, type_of
from envs_jax.babyai.verify import member
from envs_jax.babyai.view import front, window


def _search(targets, free, movable, position, heading):
    """The first move of a shortest path to a pose that faces a target.

    **Arguments:** words of cells: `targets`, to be faced; `free`, walkable; `movable`, which could be cleared, used
    only if there is no other path; the pose.
    **Returns:** `(there, reachable, move)`: whether the pose already faces a target, whether there is a path, and its
    first action (FORWARD, LEFT or RIGHT).
    """
    goals = facing(targets)
    ahead = front(position, jnp.asarray(heading))

    def moves(poses, walkable):
        """Return whether going forward, left or right leads into a set of poses."""
        forward = holds(poses[heading], ahead[0], ahead[1]) & holds(walkable, ahead[0], ahead[1])
        at_position = holds(poses, position[0], position[1])
        return forward, at_position[(heading - 1) & 3], at_position[(heading + 1) & 3]

    def grow(poses, walkable):
        turned = poses | jnp.roll(poses, 1, 0) | jnp.roll(poses, -1, 0)
        return turned | jnp.stack([predecessors(poses[h] & walkable, h) for h in range(4)])

    def searching(carry):
        poses, forced, stuck = carry
        reached = jnp.any(jnp.stack(moves(poses, jnp.where(forced, free | movable, free))))
        return ~reached & ~stuck

    def body(carry):
        poses, forced, _ = carry
        grown = grow(poses, jnp.where(forced, free | movable, free))
        unchanged = jnp.all(grown == poses)
        # no path so far: search again, through movable objects
        return jnp.where(unchanged & ~forced, goals, grown), forced | unchanged, unchanged & forced

    start = (goals, jnp.bool_(False), jnp.bool_(False))
    poses, forced, stuck = tracing.while_loop(searching, body, start)
    forward, left, _ = moves(poses, jnp.where(forced, free | movable, free))
    move = jnp.where(forward, FORWARD, jnp.where(left, LEFT, RIGHT))
    return holds(goals, position[0], position[1])[heading], ~stuck, move


def expert_action(state: State, env: Any, seen_only: bool = False) -> jax.Array:
    """The next action of a shortest path to complete the mission.

    Safe under `jit` and `vmap`, and always returns: if nothing can be done (the object is destroyed) it turns. It opens
    closed doors on its path; objects that block the only path are picked up and dropped elsewhere.

    **Arguments:** `state`, of a BabyAI environment; `env`, that environment, possibly wrapped, for its static data;
    `seen_only`, turn left while no object of the clause is in view, as an agent must that does not know where it is.
    Meant for single rooms: objects behind a door, or farther to the side than the three cells of the view, are never
    found.
    **Returns:** int32 `[]`.
    """
    clauses = getattr(env, "unwrapped", env).level.clauses
    width, height = state.grid.shape
    cells = state.grid.astype(jnp.int32)
    kind, door = type_of(cells), state_of(cells)
    ids = np.arange(state.cell.shape[0])
    hand = id_of(state.carrying.astype(jnp.int32))
    heading = state.direction

    # the current clause: the first one not completed of the half that comes next
    absent = state.mission.kind == NO_CLAUSE
    halves_done = [state.met[c] & (state.met[c + 1] | absent[c + 1]) for c in (0, 2)]
    half = jnp.int32(0)
    if 2 in clauses:
        half = jnp.where(jnp.where(state.mission.order == AFTER, halves_done[1], ~halves_done[0]), 0, 2)
    clause = half + state.met[half]
    verb, mover, fixed = state.mission.kind[clause], state.mover[clause], state.fixed[clause]
    movers, fixed_objects = member(mover, ids), member(fixed, ids)

    def cells_of(objects, positions):
        """The cells of a set of objects, as a mask `[W, H]`."""
        matches = (positions[:, None] == np.arange(width * height)) & objects[:, None]
        return jnp.any(matches, axis=0).reshape(width, height)

    packed = state.object.astype(jnp.int32)
    look = jnp.take(cells.reshape(-1), jnp.maximum(state.cell, 0))
    locked = movers & (type_of(look) == DOOR) & (state_of(look) == LOCKED)
    holds_key = (hand >= 0) & (type_of(state.carrying) == KEY)
    opens = locked & holds_key & (color_of(packed) == color_of(state.carrying.astype(jnp.int32)))
    ready = (movers & ~locked) | opens
    door_colors = jnp.any(locked[:, None] & (color_of(packed)[:, None] == np.arange(6)), axis=0)
    keys = (type_of(packed) == KEY) & door_colors[color_of(packed)]

    # the cells to face, the action there, and whether the carried object must be dropped first
    going, opening, putting = verb == GO_TO, verb == OPEN_DOOR, verb == PUT_NEXT
    fetching_key = opening & ~jnp.any(ready)
    carrying_it = putting & member(mover, hand)
    mask = cells_of(movers, jnp.where(going, state.tracked, state.cell))
    mask = jnp.where(opening, cells_of(jnp.where(fetching_key, keys, ready), state.cell), mask)
    fixed_cells = words(cells_of(fixed_objects, state.cell))
    empty = words(kind == EMPTY)
    targets = jnp.where(carrying_it, around(fixed_cells) & empty, words(mask))
    act = jnp.where(carrying_it, DROP, jnp.where(going, FORWARD, PICKUP))
    act = jnp.where(opening & ~fetching_key, TOGGLE, act)
    must_drop = (hand >= 0) & (act == PICKUP)

    # with the wrong object in hand, the path must avoid the cell where it would be dropped
    ahead = front(state.position, heading)
    avoid = jnp.where(must_drop, single(ahead[0], ahead[1], width), np.uint32(0))
    free = words((kind == EMPTY) | (kind == DOOR) & (door != LOCKED)) & ~avoid
    movable = words((kind >= KEY) & (kind <= BOX)) & ~avoid
    arrived, reachable, move = _search(targets, free, movable, state.position, heading)

    front_kind, front_door = type_of(cells[ahead[0], ahead[1]]), state_of(cells[ahead[0], ahead[1]])
    can_drop = front_kind == EMPTY
    put_down = jnp.where(can_drop, DROP, RIGHT)
    step = move
    step = jnp.where((move == FORWARD) & (front_kind == DOOR) & (front_door == CLOSED), TOGGLE, step)
    blocked = (move == FORWARD) & (front_kind >= KEY) & (front_kind <= BOX)
    step = jnp.where(blocked, jnp.where(hand < 0, PICKUP, put_down), step)
    step = jnp.where(arrived, act, step)
    step = jnp.where(must_drop, jnp.where(can_drop & (reachable | arrived), DROP, RIGHT), step)
    step = jnp.where(reachable | arrived, step, RIGHT)
    if seen_only:
        seen_cells, visible = window(state.grid, state.position, heading)
        in_view = jnp.any((id_of(seen_cells)[:, None] == ids) & visible[:, None], axis=0)
        sought = jnp.where(carrying_it, fixed_objects, jnp.where(fetching_key, keys, movers))
        step = jnp.where(jnp.any(in_view & sought), step, LEFT)
    return step.astype(jnp.int32)
