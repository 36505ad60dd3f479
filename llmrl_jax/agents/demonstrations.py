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
from envs_jax.resets import select
from llmrl_jax.agents.contract import Agent
from llmrl_jax.agents.play import Rows, Step, begin, policy_actor, watch
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least


CHUNK = 16
"""Number of steps between transfers to the host."""

NO_EPISODE = -1
"""The number of an idle row."""


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
    neither on the number of episodes nor on the batch size. Episodes of very different lengths are efficient: when half
    of a batch has ended, those rows are refilled.

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
    start, renew, go_on = _programs(agent, see, seed, greedy)
    next_number = lanes
    rows = start(params, frozen, np.arange(lanes, dtype=np.int32))
    parts: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]
    numbers, waiting = np.arange(lanes), {}
    given = 0
    while given < episodes:
        rows, kept = go_on(params, frozen, rows)
        kept, over = jax.device_get((kept, rows.over))
        for lane in np.flatnonzero(numbers != NO_EPISODE):
            live = int(kept["live"][:, lane].sum())
            parts[lane].append(jax.tree.map(lambda x, live=live, lane=lane: x[:live, lane], kept))
            if over[lane]:
                waiting[int(numbers[lane])] = _episode(int(numbers[lane]), parts[lane])
                numbers[lane], parts[lane] = NO_EPISODE, []
        while given in waiting:
            yield waiting.pop(given)
            given += 1
        idle = np.flatnonzero(numbers == NO_EPISODE)
        if next_number < episodes and 2 * len(idle) >= lanes:
            taken = idle[: episodes - next_number]
            numbers[taken] = np.arange(next_number, next_number + len(taken))
            next_number += len(taken)
            chosen = np.isin(np.arange(lanes), taken)
            rows = renew(params, frozen, rows, np.where(chosen, numbers, 0).astype(np.int32), chosen)


def _programs(agent: Agent, see: See, seed: int, greedy: bool) -> tuple[Any, Any, Any]:
    """The programs on the device: start a batch, start new episodes in some of its rows, take `CHUNK` steps."""
    env, env_params = agent.env, agent.env_params

    def start(params: Any, frozen: Any, numbers: jax.Array) -> Rows:
        keys = jax.vmap(lambda i: jax.random.fold_in(_keys(seed)[1], i))(numbers)
        resets = jax.vmap(lambda i: reset_key(seed, i))(numbers)
        return begin(env, env_params, policy_actor(agent.policy, params, frozen, greedy), resets, keys)

    def renew(params: Any, frozen: Any, rows: Rows, numbers: jax.Array, chosen: jax.Array) -> Rows:
        return select(chosen, start(params, frozen, numbers), rows)

    def keep(rows: Rows, step: Step) -> dict[str, Any]:
        return {
            "seen": jax.vmap(see)(innermost(rows.state)),
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "success": step.info.get("success", step.terminated),
        }

    def go_on(params: Any, frozen: Any, rows: Rows) -> tuple[Rows, dict[str, Any]]:
        actor = policy_actor(agent.policy, params, frozen, greedy)
        return watch(env, env_params, actor, rows, keep, steps=CHUNK, hold=False)

    return jax.jit(start), jax.jit(renew), jax.jit(go_on)


def _episode(number: int, parts: list[dict[str, Any]]) -> Episode:
    whole = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    steps = {name: whole[name] for name in ("seen", "action", "reward", "terminated", "truncated")}
    return Episode(number=number, success=bool(whole["success"][-1]), **steps)
