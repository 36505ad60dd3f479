"""Demonstrations: whole episodes of an agent, step by step, with caller-defined records of the environment's state.

Any `llmrl_jax.agents.contract.Agent` can demonstrate. Records come from the environment's state, not from the agent's
observations. `llmrl_jax.agents.babyai_demonstrations` records BabyAI's text, and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from envs_jax.env import innermost
from llmrl_jax.agents.contract import Agent
from llmrl_jax.agents.play import Rows, Step, begin, policy_actor, watch
from llmrl_jax.agents.schedule import Programs, played
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least


CHUNK = 16
"""Number of steps between transfers to the host."""


See = Callable[[Any], dict[str, jax.Array]]
"""From the state of the innermost environment, not batched, to its record; safe under `vmap`."""


@dataclass(frozen=True)
class Episode:
    """One episode of `T` steps; row `t` holds the state's record, the action and its results at step `t`."""

    number: int
    success: bool
    """The environment's success flag; without one, whether the environment ended the episode."""
    seen: dict[str, np.ndarray]
    """The record of the state before each step, `[T, ...]` each."""
    action: np.ndarray
    """`[T, ...]`."""
    reward: np.ndarray
    """float32 `[T]`, the reward of the agent's wrapped environment."""
    terminated: np.ndarray
    """bool `[T]`."""
    truncated: np.ndarray
    """bool `[T]`."""


def _keys(seed: int) -> jax.Array:
    """The keys of all resets and of all steps."""
    return jax.random.split(jax.random.key(seed))


def reset_key(seed: int, number: Any) -> jax.Array:
    """The reset key of episode `number` of `play_episodes`."""
    return jax.random.fold_in(_keys(seed)[0], number)


def play_episodes(
    agent: Agent,
    params: Any,
    frozen: Any,
    *,
    seed: int,
    episodes: int,
    see: See = lambda state: {},
    greedy: bool = False,
    batch_size: int = 256,
) -> Iterator[Episode]:
    """Play episodes `0 .. episodes - 1`, and yield them in that order as they end.

    **Arguments:** `agent`; `params`, `frozen`, its weights; `seed`; `see`, the record of each state; `greedy`, the most
    likely action instead of a sample; `batch_size`, episodes played at once.

    Episode `i` starts from `env.reset(reset_key(seed, i), params)`, and its actions use its own keys: it depends
    neither on the number of episodes nor on the batch size.

    **Raises:** `ValueError` for a number below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("batch_size", batch_size, 1)
    return _counted(_play(agent, see, params, frozen, seed, episodes, greedy, min(batch_size, episodes)), episodes)


def _counted(played: Iterator[Episode], episodes: int) -> Iterator[Episode]:
    """The same episodes, counted for the display."""
    with doing("playing", episodes, "episodes") as activity:
        for episode in played:
            activity.done += 1
            yield episode


def _play(agent, see, params, frozen, seed, episodes, greedy, lanes) -> Iterator[Episode]:
    for one in played(_programs(agent, see, (params, frozen), seed, greedy), episodes, lanes):
        steps = {name: one.steps[name] for name in ("seen", "action", "reward", "terminated", "truncated")}
        yield Episode(number=one.number, success=bool(one.steps["success"][-1]), **steps)


def _programs(agent: Agent, see: See, weights: Any, seed: int, greedy: bool) -> Programs:
    env, env_params = agent.env, agent.env_params

    def start(weights: Any, numbers: jax.Array) -> Rows:
        keys = jax.vmap(lambda i: jax.random.fold_in(_keys(seed)[1], i))(numbers)
        resets = jax.vmap(lambda i: reset_key(seed, i))(numbers)
        params, frozen = weights
        return begin(env, env_params, policy_actor(agent.policy, params, frozen, greedy), resets, keys)

    def keep(rows: Rows, step: Step) -> dict[str, Any]:
        return {
            "seen": jax.vmap(see)(innermost(rows.state)),
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "success": step.info.get("success", step.terminated),
        }

    def go_on(weights: Any, rows: Rows) -> tuple[Rows, dict[str, Any]]:
        params, frozen = weights
        actor = policy_actor(agent.policy, params, frozen, greedy)
        return watch(env, env_params, actor, rows, keep, steps=CHUNK, hold=False)

    return Programs(start, go_on, weights)
