"""Demonstrations: whole episodes of an agent in BabyAI-Text, step by step, with what the text said.

Any agent of `llmrl_jax.systems.glam.agents` can be the one that demonstrates, the bot first of all; what it observes
itself does not matter, as the text is that of the state it was in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import envs_jax
from envs_jax.babyai.env import BabyAI
from envs_jax.env import innermost
from envs_jax.resets import select
from llmrl_jax.agents.contract import Agent
from llmrl_jax.agents.play import Rows, Step, begin, policy_actor, watch
from llmrl_jax.core.checks import at_least


CHUNK = 16
"""Steps between two looks of the host."""

NO_EPISODE = -1
"""The number of an idle row."""


@dataclass(frozen=True)
class Episode:
    """One episode of `T` steps; row `t` is what was observed and done at step `t`, and what came of it."""

    number: int
    success: bool
    max_steps: int
    """The episode's step limit."""
    mission: np.ndarray
    """int16 `[M]`, a caption of the world's missions."""
    text: np.ndarray
    """int16 `[T, C]`, captions of the world's views."""
    direction: np.ndarray
    """int32 `[T]`, where the agent looks: 0 right, 1 down, 2 left, 3 up."""
    position: np.ndarray
    """int32 `[T, 2]`, the agent's x and y."""
    action: np.ndarray
    """int32 `[T]`."""
    reward: np.ndarray
    """float32 `[T]`, as the agent's world pays it."""
    terminated: np.ndarray
    """bool `[T]`."""
    truncated: np.ndarray
    """bool `[T]`."""


def text_id(id: str) -> str:
    """The id of a level's text world: `BabyAI-Text/GoTo-v0` for `BabyAI-GoTo-v0`, options kept.

    **Raises:** `ValueError` for the id of another world.
    """
    if not id.startswith("BabyAI-"):
        raise ValueError(
            f"demonstrations are of BabyAI's levels, and {id!r} is none (`llmrl envs list BabyAI` has all)"
        )
    return id if id.startswith("BabyAI-Text/") else "BabyAI-Text/" + id.removeprefix("BabyAI-")


def _keys(seed: int) -> jax.Array:
    """The key of all resets and that of all steps."""
    return jax.random.split(jax.random.key(seed))


def reset_key(seed: int, number: Any) -> jax.Array:
    """The key from which episode `number` of `play_episodes` is reset."""
    return jax.random.fold_in(_keys(seed)[0], number)


def play_episodes(
    agent: Agent, params: Any, frozen: Any, *, seed: int, episodes: int, greedy: bool = False, batch_size: int = 256
) -> Iterator[Episode]:
    """Play episodes `0 .. episodes - 1`, and give them in that order as they are done.

    **Arguments:** `agent`, in a BabyAI world with or without text; `params`, `frozen`, its weights; `seed`; `greedy`,
    the likeliest action instead of a sample; `batch_size`, episodes played at once.

    Episode `i` begins as `env.reset(reset_key(seed, i), params)` does, and its actions are drawn from keys of its own:
    it depends neither on how many there are nor on how many are played at once. Episodes of very different lengths are
    no loss: once half of a batch is done, new ones take their places.

    **Raises:** `ValueError` for a number below 1, or a world that is not BabyAI's.
    """
    at_least("episodes", episodes, 1)
    at_least("batch_size", batch_size, 1)
    world, _ = envs_jax.make(text_id(agent.env.id))
    return _play(agent, world, params, frozen, seed, episodes, greedy, min(batch_size, episodes))


def _play(agent, world, params, frozen, seed, episodes, greedy, lanes) -> Iterator[Episode]:
    start, renew, go_on = _programs(agent, world, seed, greedy)
    next_number = lanes
    rows = start(params, frozen, np.arange(lanes, dtype=np.int32))
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in range(lanes)]
    numbers, waiting = np.arange(lanes), {}
    given = 0
    while given < episodes:
        rows, seen = go_on(params, frozen, rows)
        seen, over = jax.device_get((seen, rows.over))
        for lane in np.flatnonzero(numbers != NO_EPISODE):
            live = int(seen["live"][:, lane].sum())
            parts[lane].append({name: x[:live, lane] for name, x in seen.items()})
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


def _programs(agent: Agent, world: BabyAI, seed: int, greedy: bool) -> tuple[Any, Any, Any]:
    """The programs on the device: start a batch, start new episodes in some of its rows, go on by `CHUNK` steps."""
    env, env_params = agent.env, agent.env_params

    def start(params: Any, frozen: Any, numbers: jax.Array) -> Rows:
        keys = jax.vmap(lambda i: jax.random.fold_in(_keys(seed)[1], i))(numbers)
        resets = jax.vmap(lambda i: reset_key(seed, i))(numbers)
        return begin(env, env_params, policy_actor(agent.policy, params, frozen, greedy), resets, keys)

    def renew(params: Any, frozen: Any, rows: Rows, numbers: jax.Array, chosen: jax.Array) -> Rows:
        return select(chosen, start(params, frozen, numbers), rows)

    def see(rows: Rows, step: Step) -> dict[str, jax.Array]:
        state = innermost(rows.state)
        said = jax.vmap(world.observe)(state)
        return {
            "mission": said["mission"],
            "text": said["text"],
            "direction": state.direction,
            "position": state.position,
            "max_steps": state.max_steps,
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "success": step.info["success"],
        }

    def go_on(params: Any, frozen: Any, rows: Rows) -> tuple[Rows, dict[str, jax.Array]]:
        actor = policy_actor(agent.policy, params, frozen, greedy)
        return watch(env, env_params, actor, rows, see, steps=CHUNK)

    return jax.jit(start), jax.jit(renew), jax.jit(go_on)


def _episode(number: int, parts: list[dict[str, np.ndarray]]) -> Episode:
    seen = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    steps = ("text", "direction", "position", "action", "reward", "terminated", "truncated")
    return Episode(
        number=number,
        success=bool(seen["success"][-1]),
        max_steps=int(seen["max_steps"][0]),
        mission=seen["mission"][0],
        **{name: seen[name] for name in steps},
    )
