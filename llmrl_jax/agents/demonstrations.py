"""Demonstrations: whole episodes of an agent in BabyAI-Text, step by step, with what the text said.

Any agent of `llmrl_jax.systems.glam.agents` can be the one that demonstrates, the bot first of all; what it observes
itself does not matter, as the text is that of the state it was in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import envs_jax
from envs_jax.babyai.env import BabyAI
from envs_jax.env import innermost
from envs_jax.resets import select
from llmrl_jax.agents.contract import Agent


CHUNK = 16
"""Steps between two looks of the host."""

NOBODY = -1
"""The number of no episode."""


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


@struct.dataclass
class _Loop:
    """A batch of episodes under way."""

    number: jax.Array
    step: jax.Array
    obs: Any
    state: Any
    carry: Any
    first: jax.Array
    done: jax.Array


def text_id(id: str) -> str:
    """The id of a level's text world: `BabyAI-Text/GoTo-v0` for `BabyAI-GoTo-v0`, options kept.

    **Raises:** `ValueError` for the id of another world.
    """
    if not id.startswith("BabyAI-"):
        raise ValueError(
            f"demonstrations are of BabyAI's levels, and {id!r} is none (`llmrl envs list BabyAI` has all)"
        )
    return id if id.startswith("BabyAI-Text/") else "BabyAI-Text/" + id.removeprefix("BabyAI-")


def reset_key(seed: int, number: Any) -> jax.Array:
    """The key from which episode `number` of `play_episodes` is reset."""
    return jax.random.fold_in(jax.random.split(jax.random.key(seed))[0], number)


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
    for name, value in (("episodes", episodes), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed")
    world, _ = envs_jax.make(text_id(agent.env.id))
    return _play(agent, world, params, frozen, seed, episodes, greedy, min(batch_size, episodes))


def _play(agent, world, params, frozen, seed, episodes, greedy, rows) -> Iterator[Episode]:
    begin, renew, advance = _programs(agent, world, seed, greedy)
    next_number = rows
    loop = begin(np.arange(rows, dtype=np.int32))
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in range(rows)]
    numbers, waiting = np.arange(rows), {}
    given = 0
    while given < episodes:
        loop, seen = advance(params, frozen, loop)
        seen, done = jax.device_get((seen, loop.done))
        for row in np.flatnonzero(numbers != NOBODY):
            live = int(seen["live"][:, row].sum())
            parts[row].append({name: x[:live, row] for name, x in seen.items()})
            if done[row]:
                waiting[int(numbers[row])] = _episode(int(numbers[row]), parts[row])
                numbers[row], parts[row] = NOBODY, []
        while given in waiting:
            yield waiting.pop(given)
            given += 1
        idle = np.flatnonzero(numbers == NOBODY)
        if next_number < episodes and 2 * len(idle) >= rows:
            taken = idle[: episodes - next_number]
            numbers[taken] = np.arange(next_number, next_number + len(taken))
            next_number += len(taken)
            chosen = np.isin(np.arange(rows), taken)
            loop = renew(loop, np.where(chosen, numbers, 0).astype(np.int32), chosen)


def _programs(agent: Agent, world: BabyAI, seed: int, greedy: bool) -> tuple[Any, Any, Any]:
    """The functions on the device: to begin a batch, to begin some of its rows anew, to go on by `CHUNK` steps."""
    env, env_params, policy = agent.env, agent.env_params, agent.policy
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def begin(number: jax.Array) -> _Loop:
        keys = jax.vmap(lambda i: reset_key(seed, i))(number)
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
        rows = number.shape[0]
        flags = jnp.ones(rows, bool)
        return _Loop(number, jnp.zeros(rows, jnp.int32), obs, state, policy.initial_carry(rows), flags, ~flags)

    def renew(loop: _Loop, number: jax.Array, chosen: jax.Array) -> _Loop:
        return select(chosen, begin(number), loop)

    def one(params: Any, frozen: Any, loop: _Loop) -> tuple[_Loop, dict[str, jax.Array]]:
        play = jax.random.split(jax.random.key(seed))[1]
        keys = jax.vmap(lambda i, t: jax.random.fold_in(jax.random.fold_in(play, i), t))(loop.number, loop.step)
        act_keys, step_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        distribution, _, carry = policy.step(params, frozen, loop.obs, loop.carry, loop.first)
        action = distribution.mode() if greedy else jax.vmap(lambda d, key: d.sample(key))(distribution, act_keys)
        was = innermost(loop.state)
        said = jax.vmap(world.observe)(was)
        obs, state, reward, terminated, truncated, info = step_all(step_keys, loop.state, action, env_params)
        seen = {
            "live": ~loop.done,
            "mission": said["mission"],
            "text": said["text"],
            "direction": was.direction,
            "position": was.position,
            "max_steps": was.max_steps,
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "success": info["success"],
        }
        done = loop.done | terminated | truncated
        first = jnp.zeros_like(loop.first)
        return loop.replace(step=loop.step + 1, obs=obs, state=state, carry=carry, first=first, done=done), seen

    def advance(params: Any, frozen: Any, loop: _Loop) -> tuple[_Loop, dict[str, jax.Array]]:
        return jax.lax.scan(lambda loop, _: one(params, frozen, loop), loop, None, CHUNK)

    return jax.jit(begin), jax.jit(renew), jax.jit(advance)


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
