"""A scripted expert that knows the apartment and where everything lies: for demonstrations, tests and an upper bound.

It takes the nearest misplaced object to the nearest free correct spot, until nothing is misplaced. The order of objects
is greedy, so its episodes are short, not shortest.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from envs_jax.housekeep.constants import DOWN, GRAB, UP
from envs_jax.housekeep.env import Housekeep
from envs_jax.housekeep.macro import MacroHousekeep
from envs_jax.housekeep.routes import Routes, routes
from envs_jax.housekeep.state import State
from envs_jax.housekeep.step import look


NEVER = 1 << 14
"""A number of steps that no route has."""


def _costs(env: Housekeep, state: State, paths: Routes) -> jax.Array:
    """The steps to point at each spot: int32 `[S]`."""
    spot_targets = slice(0, len(env.tables.spots))
    steps = jnp.take(paths.steps[:, spot_targets], env.rules.pose(state), axis=0, mode="clip").astype(jnp.int32)
    return steps + jnp.abs(state.pitch - paths.band[spot_targets].astype(np.int32))


def _goal(env: Housekeep, state: State, paths: Routes, preferred: jax.Array | int = -1) -> jax.Array:
    """The spot to point at: of the nearest misplaced object, or the nearest free correct one for the object in hand;
    those of the receptacle `preferred` first."""
    cost, number = _costs(env, state, paths), np.arange(len(env.tables.spots))
    cost = jnp.where(env.tables.spots.receptacle == preferred, cost - NEVER // 2, cost)
    wrong = (state.spot >= 0) & (state.category >= 0) & ~env.rules.in_place(state)
    to_objects = jnp.where(wrong, jnp.take(cost, state.spot, mode="clip"), NEVER)
    of_object = jnp.take(state.spot, jnp.argmin(to_objects), mode="clip").astype(jnp.int32)

    category = jnp.take(state.category, state.held, mode="clip").astype(jnp.int32)
    right = look(env.rules.correct_spot, category * len(number) + number)
    occupied = jnp.any(state.spot[:, None] == number, axis=0)
    to_place = jnp.argmin(jnp.where(right & ~occupied, cost, NEVER)).astype(jnp.int32)
    return jnp.where(state.held >= 0, to_place, of_object)


def _housekeep(env: Environment, kind: type, name: str) -> Any:
    base = env.unwrapped
    if type(base) is not kind:
        raise TypeError(f"{name} acts in {kind.__name__}, and {env.id} is a {type(base).__name__}")
    return base


def expert_action(env: Environment, state: State) -> jax.Array:
    """The expert's action in a state of a low-level Housekeep environment; pure, so `jit`, `vmap` and `scan` apply.

    **Arguments:** `env`, the environment or a wrapper of it; `state`, of the environment itself.
    **Returns:** int32 `[]`.
    **Raises:** `TypeError` for another environment.
    """
    base, paths = _housekeep(env, Housekeep, "expert_action"), routes()
    goal, pose = _goal(base, state, paths), base.rules.pose(state)
    index = pose * len(paths.band) + goal
    nod = look(paths.band, goal).astype(jnp.int32) - state.pitch
    final_action = jnp.where(nod > 0, UP, jnp.where(nod < 0, DOWN, GRAB))
    move = look(paths.action.reshape(-1), index).astype(jnp.int32)
    return jnp.where(look(paths.steps.reshape(-1), index) > 0, move, final_action).astype(jnp.int32)


def macro_expert_action(env: Environment, state: State) -> jax.Array:
    """The expert's action in a state of a macro environment, see `expert_action`."""
    base, paths = _housekeep(env, MacroHousekeep, "macro_expert_action"), routes()
    receptacle, _ = base.rules.aim(state)
    goal = _goal(base, state, paths, receptacle)
    target = look(base.tables.spots.receptacle, goal).astype(jnp.int32)
    slot = jnp.argmax(state.spot == goal).astype(jnp.int32)
    final_action = jnp.where(state.held >= 0, base.place_action, base.pick_action + slot)
    return jnp.where(receptacle == target, final_action, target).astype(jnp.int32)
