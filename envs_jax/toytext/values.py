"""Exact values of tabular environments, by dynamic programming over a finite horizon, in float64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs_jax.checks import at_least
from envs_jax.env import Environment
from envs_jax.spaces import Dict, Discrete
from envs_jax.toytext.tables import NO_LIMIT, TabularEnvironment


def _checked(env: Environment, params: Any, horizon: int | None) -> tuple[TabularEnvironment, int]:
    if not isinstance(env, TabularEnvironment):
        raise TypeError(f"{env.id or type(env).__name__} has no table to compute values from; give a toy text world")
    steps = int(params.max_steps) if horizon is None else horizon
    at_least("horizon", steps, 1)
    if steps >= NO_LIMIT:
        raise ValueError(f"{env.id} has no time limit (max_steps {steps}); give the horizon, in steps")
    return env, steps


def _backed_up(env: TabularEnvironment, values: np.ndarray) -> np.ndarray:
    """The value of every action, float64 `[S, A]`, from the `values` `[S]` of the next states."""
    table = env.table
    later = np.where(table.terminated, 0.0, values[table.successor])
    return (table.prob * (table.reward + later)).sum(-1)


def optimal_values(env: Environment, params: Any, horizon: int | None = None) -> np.ndarray:
    """The best expected return from every state, with every number of steps left.

    The policy that attains it may depend on the time and the full state, so this is an upper bound for every stationary
    table.

    **Arguments:** `env`, a toy text environment; `params`; `horizon`, steps (default: `params.max_steps`).
    **Returns:** float64 `[horizon + 1, S]`, indexed by the steps left. The best return of an episode is
    `optimal_values(env, params)[-1] @ env.initial`.
    **Raises:** `TypeError` for an environment without a table, `ValueError` without a horizon.
    """
    world, steps = _checked(env, params, horizon)
    values = np.zeros((steps + 1, len(world.table.prob)))
    for t in range(steps):
        values[t + 1] = _backed_up(world, values[t]).max(-1)
    return values


def policy_value(env: Environment, params: Any, table: Any, horizon: int | None = None) -> float:
    """The expected return of an episode under a table of actions.

    **Arguments:** `env`, a toy text environment; `params`; `table`, an action for every observation: integers (or whole
    floats) `[n]` for a discrete observation, `[32, 11, 2]` for Blackjack's three numbers; `horizon`, as above.
    **Raises:** `TypeError` for an environment without a table, `ValueError` without a horizon, or for a table of
    another shape or with an invalid action.
    """
    world, steps = _checked(env, params, horizon)
    actions, observations = np.asarray(table), world.observations.reshape(len(world.table.prob), -1).T
    space = world.observation_space(params)
    if isinstance(space, Dict):  # with text beside the state
        space = Discrete(len(world.observations))
    sizes = [space.n] if isinstance(space, Discrete) else [int(high) + 1 for high in space.high]
    if list(actions.shape) != sizes:
        raise ValueError(f"the table has the shape {list(actions.shape)}; {world.id} needs {sizes}")
    wrong = (actions != np.floor(actions)) | (actions < 0) | (actions >= world.num_actions)
    if wrong.any():
        raise ValueError(f"{actions[wrong][0]} in the table is no action; they are 0 to {world.num_actions - 1}")
    chosen = actions.astype(int)[tuple(observations)]
    values = np.zeros(len(chosen))
    for _ in range(steps):
        values = _backed_up(world, values)[np.arange(len(chosen)), chosen]
    return float(values @ world.initial)
