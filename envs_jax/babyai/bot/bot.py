"""A bot that solves BabyAI's levels from what it has seen, on the device.

It only remembers which cells it has seen: every step is planned from scratch by fixed priorities, so no plan can become
outdated. An object that must be carried somewhere (a key to a door, an object next to another) is fetched only when the
path to that place is known and clear; obstacles are removed first, with empty hands. So the bot never picks up an
object that it would have to put down again at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.babyai.bot.knowledge import Knowledge, Task, current_task, in_view, survey
from envs_jax.babyai.bot.search import aside, facing, first_move, gains, harmless, obstacles
from envs_jax.babyai.cells import around, holds
from envs_jax.babyai.constants import BOX, DONE, DROP, FORWARD, KEY, PICKUP, RIGHT, TOGGLE
from envs_jax.babyai.mission import GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT
from envs_jax.babyai.state import State, color_of, type_of
from envs_jax.babyai.verify import members
from envs_jax.babyai.view import front


@struct.dataclass
class Memory:
    """The memory of the bot in an episode."""

    seen: jax.Array
    """uint32 `[W]`, the cells seen so far (`cells.py`)."""


def initial_memory(env: Any) -> Memory:
    """The memory at the start of an episode of a BabyAI environment `env`, possibly wrapped."""
    return Memory(seen=jnp.zeros(getattr(env, "unwrapped", env).level.rooms.width, jnp.uint32))


def bot_action(state: State, memory: Memory, omniscient: bool = False) -> tuple[jax.Array, Memory]:
    """The next one of minigrid's seven actions.

    Safe under `jit`, `vmap` and `scan`, and always returns an action: if there is nothing left to try, it turns.

    **Arguments:** `state`, of a BabyAI environment; `memory`, from `initial_memory` or the last call; `omniscient`,
    whether the bot knows the whole grid from the start (but not the contents of boxes).
    **Returns:** the action, int32 `[]`, and the memory with what is in view now.
    """
    width, height = state.grid.shape
    explored = memory.seen | in_view(state)
    task = current_task(state)
    knowledge = survey(state, jnp.full_like(explored, (1 << height) - 1) if omniscient else explored, task)
    aim = _aim(state, task, knowledge)

    # the cells to face, or those to clear first if the path is blocked
    goal = jnp.where(aim.places, knowledge.places, knowledge.cells(aim.objects))
    beyond = jnp.where(aim.looking, _any_heading(knowledge.views), around(goal))
    hidden = knowledge.reach[1] & ~knowledge.reach[0]
    first = obstacles(jnp.where(aim.clearing, beyond, np.uint32(0)), hidden, knowledge.movable, knowledge.adjacent[0])
    faced = jnp.where(aim.clearing, first, goal & knowledge.adjacent[0])
    looking = aim.looking & ~aim.clearing
    goals = jnp.where(looking, knowledge.views, facing(faced))

    # Picking up needs empty hands. The carried object is put down where it blocks nothing, preferably not on the path
    # to the object to pick up (the only criterion if that object completes the clause), and not where it was before.
    busy = knowledge.hand >= 0
    release = task.in_hand & ((task.kind == GO_TO) | (task.kind == PICK_UP))
    putting_down = busy & (release | aim.clearing | (aim.act == PICKUP))
    last = (task.kind == PICK_UP) & ~aim.clearing & jnp.any(aim.objects & task.movers)
    floor = knowledge.empty & jnp.where(last, ~np.uint32(0), ~knowledge.pickup_cell)
    good = facing(harmless(floor, knowledge.open, knowledge.walls)) & knowledge.reach[0]
    stands = jnp.where(putting_down & ~release, around(faced), np.uint32(0))
    beside_way = aside(stands, knowledge.reach[0], floor)
    anywhere = facing(knowledge.empty) & knowledge.reach[0]
    drop_poses = _prefer(_if(release, anywhere), _if(last, beside_way), good & beside_way, good, beside_way, anywhere)
    goals = jnp.where(putting_down, drop_poses, goals) & knowledge.reach[0]
    act = jnp.where(putting_down, DROP, jnp.where(aim.clearing, PICKUP, aim.act))

    turns = gains(knowledge.unexplored, state.position)
    arrived, reachable, move = first_move(goals, knowledge.reach[0], state.position, state.direction, turns)

    ahead = front(state.position, state.direction)
    opens = (move == FORWARD) & holds(knowledge.closed, ahead[0], ahead[1])
    action = jnp.where(arrived, act, jnp.where(opens, TOGGLE, move))
    # an object to put next to another must have been in hand when the clause was last checked
    early = (task.kind == PUT_NEXT) & (action == DROP) & task.in_hand & (task.held_id != knowledge.hand)
    action = jnp.where((action == NOTHING) | early, jnp.where(busy, PICKUP, DROP), action)
    action = jnp.where(arrived | reachable, action, RIGHT)
    return jnp.where(task.claimed, DONE, action).astype(jnp.int32), Memory(seen=explored)


NOTHING = DONE
"""Stands for an action without effect: a pick-up with full hands, or a drop with empty hands."""


class Aim(NamedTuple):
    """The next goal: to act on one of several objects, or only to clear the path to one of them."""

    objects: jax.Array
    """bool `[O]`."""
    act: jax.Array
    clearing: jax.Array
    places: jax.Array
    """Whether the goal is `Knowledge.places` instead of objects."""
    looking: jax.Array
    """Whether the goal is a pose with a view of unseen cells instead of objects."""


def _aim(state: State, task: Task, knowledge: Knowledge) -> Aim:
    """The first possible goal in a fixed order of priorities."""
    packed, carried = state.object.astype(jnp.int32), state.carrying.astype(jnp.int32)
    kind, color = type_of(packed), color_of(packed)
    tests = jnp.stack([knowledge.adjacent[0], knowledge.adjacent[1], knowledge.locked])
    walk, clear, locked = holds(tests, knowledge.x, knowledge.y) & knowledge.placed
    locked &= clear

    def aim_at(objects, act, clearing=False):
        return Aim(objects, jnp.int32(act), jnp.bool_(clearing), jnp.bool_(False), jnp.bool_(False))

    def get(objects, act):
        """Act on one of some objects: those with a clear path if any, else the blocked ones."""
        open_way = jnp.any(objects & walk)
        return aim_at(objects & jnp.where(open_way, walk, clear), act, ~open_way)

    def has_clear_path(objects):
        return jnp.any(objects & clear)

    nothing = jnp.zeros_like(task.movers)
    placing = aim_at(nothing, DROP)._replace(places=jnp.bool_(True))
    look = aim_at(nothing, RIGHT)._replace(looking=jnp.bool_(True))

    # unlocking: the doors that have a known key, a key in hand first; if the task is to open doors, only those
    colors = color[:, None] == np.arange(6)
    keys = (kind == KEY) & clear
    of_key = jnp.any(keys[:, None] & colors, axis=0)
    fits = locked & (type_of(carried) == KEY) & (color_of(carried) == color)
    with_key = locked & jnp.any(of_key & colors, axis=1)
    doors_asked = (task.kind == OPEN_DOOR) & task.movers
    fits_asked, with_key_asked = fits & doors_asked, with_key & doors_asked
    any_asked = jnp.any(fits_asked | with_key_asked)
    fits, with_key = jnp.where(any_asked, fits_asked, fits), jnp.where(any_asked, with_key_asked, with_key)
    holding = jnp.any(fits)
    doors = jnp.where(holding, fits, with_key)
    ready = doors & walk
    of_door = jnp.any(jnp.where(jnp.any(ready), ready, doors)[:, None] & colors, axis=0)
    fetched = keys & jnp.any(of_door & colors, axis=1)
    unlock = _choose((holding | ~jnp.any(ready), get(doors, TOGGLE)), get(fetched, PICKUP))

    # exploration
    seen_from = [jnp.any(knowledge.views & knowledge.reach[k] != 0) for k in (0, 1)]
    needed = jnp.any(members(state.mover | state.fixed, packed.shape[0]), axis=0)
    boxes = (kind == BOX) & ~needed
    cornered = (task.kind == PUT_NEXT) & task.fixed
    find = _choose(
        (seen_from[0], look),
        (seen_from[1], look._replace(clearing=jnp.bool_(True))),
        (jnp.any(doors), unlock),
        (has_clear_path(boxes), get(boxes, TOGGLE)),
        (has_clear_path(cornered), get(cornered, PICKUP)),
        aim_at(nothing, RIGHT),
    )

    movers = task.movers & ~(locked & ~fits & (task.kind == OPEN_DOOR))
    act = jnp.where(task.kind == OPEN_DOOR, TOGGLE, jnp.where(task.kind == GO_TO, NOTHING, PICKUP))
    open_place, blocked_place = (jnp.any(knowledge.places & knowledge.adjacent[k] != 0) for k in (0, 1))
    putting = _choose(
        (~task.in_hand & ~has_clear_path(movers), find),
        (task.in_hand & open_place, placing),
        (open_place | task.fixed_in_hand, get(movers, PICKUP)),
        (blocked_place, placing._replace(clearing=jnp.bool_(True))),
        ((carried == 0) & seen_from[0], get(movers, PICKUP)),
        find,
    )
    return _choose(
        (task.kind == PUT_NEXT, putting),
        (has_clear_path(movers), get(movers, act)),
        (any_asked, unlock),
        find,
    )


def _choose(*cases: Any) -> Aim:
    """The first aim whose condition holds: `(condition, aim), ..., aim`."""
    *conditional, chosen = cases
    for condition, aim in reversed(conditional):
        chosen = jax.tree.map(lambda a, b: jnp.where(condition, a, b), aim, chosen)  # noqa: B023
    return chosen


def _if(condition: jax.Array, cells: jax.Array) -> jax.Array:
    return jnp.where(condition, cells, np.uint32(0))


def _prefer(*sets: jax.Array) -> jax.Array:
    """The first set that is not empty."""
    *better, chosen = sets
    for cells in reversed(better):
        chosen = jnp.where(jnp.any(cells != 0), cells, chosen)
    return chosen


def _any_heading(poses: jax.Array) -> jax.Array:
    return poses[0] | poses[1] | poses[2] | poses[3]
