"""Held-out episodes of a policy: whole episodes from fresh resets, greedy or sampled, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax.env import Environment
from envs_jax.resets import select
from llmrl_jax.agents.competence import success_probability
from llmrl_jax.agents.language import LanguagePolicy


@struct.dataclass
class Episodes:
    """Outcomes of `N` episodes."""

    success: Any
    """bool `[N]`: the world's own verdict."""
    episode_return: Any
    """float32 `[N]`, unscaled and undiscounted."""
    episode_length: Any
    """int32 `[N]`, steps."""
    task: Any
    """int32 `[N]`, index into `env.task_names`."""
    estimate: Any = None
    """float32 `[N]`, the probability of success at the first observation, where the policy estimates it; else None."""


def make_evaluator(
    env: Environment, env_params: Any, policy: Any, *, episodes: int, lanes: int = 128
) -> Callable[..., Episodes]:
    """Build `evaluate(policy_params, frozen, key, *, greedy) -> Episodes` of NumPy arrays.

    **Arguments:** `env`, wrapped as for training (with `EpisodeStatistics`), not batched, and its `env_params`;
    `policy`, see `llmrl_jax.rl.policy`; `episodes`, how many; `lanes`, how many are played at once: where one ends, the
    next begins in its place, so that no lane waits for the longest episode but at the end. `greedy`: the mode of the
    distribution instead of a sample; one compiled program plays either way.

    Episode `i` draws from `fold_in(key, i)` alone, whatever the number of lanes.
    **Raises:** `ValueError` where `episodes` or `lanes` is below 1.
    """
    for name, number in (("episodes", episodes), ("lanes", lanes)):
        if number < 1:
            raise ValueError(f"{name} is {number}; at least 1 is needed")
    lanes = min(lanes, episodes)
    estimates = isinstance(policy, LanguagePolicy) and policy.competence_head is not None
    reset = jax.vmap(env.reset, in_axes=(0, None))
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    @jax.jit
    def run(policy_params: Any, frozen: Any, key: jax.Array, greedy: jax.Array) -> Episodes:
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(jnp.arange(episodes))
        starts = reset(keys[:, 0], env_params)

        def start_of(episode):
            return jax.tree.map(lambda x: jnp.take(x, episode, axis=0, mode="clip"), starts)

        def advance(loop):
            episode, next_episode, t, obs, state, carry, first, results = loop
            play = jnp.take(keys[:, 1], episode, mode="clip")
            draws = jax.vmap(lambda key, t: jax.random.split(jax.random.fold_in(key, t)))(play, t)
            distribution, _, carry = policy.step(policy_params, frozen, obs, carry, first)
            noise = jax.vmap(lambda one, key: one.noise(key))(distribution, draws[:, 0])
            action = jnp.where(greedy, distribution.mode(), distribution.choose(noise))
            obs, state, _, terminated, truncated, info = step(draws[:, 1], state, action, env_params)
            now = Episodes(
                success=info.get("success", terminated),
                episode_return=info["episode_return"],
                episode_length=info["episode_length"],
                task=info.get("task", jnp.zeros(lanes, jnp.int32)),
            )
            ends = terminated | truncated
            # a lane without an episode has the number `episodes` or more, whose row is dropped
            row = jnp.where(ends, episode, episodes)
            results = jax.tree.map(lambda all, some: all.at[row].set(some, mode="drop"), results, now)
            episode = jnp.where(ends, next_episode + jnp.cumsum(ends) - 1, episode)
            obs, state = select(ends, start_of(episode), (obs, state))
            t = jnp.where(ends, 0, t + 1)
            return episode, next_episode + jnp.sum(ends), t, obs, state, carry, ends, results

        blank = Episodes(
            success=jnp.zeros(episodes, bool),
            episode_return=jnp.zeros(episodes, jnp.float32),
            episode_length=jnp.zeros(episodes, jnp.int32),
            task=jnp.zeros(episodes, jnp.int32),
        )
        first = jnp.arange(lanes)
        begun = (first, jnp.int32(lanes), jnp.zeros(lanes, jnp.int32), *start_of(first))
        loop = (*begun, policy.initial_carry(lanes), jnp.ones(lanes, bool), blank)
        results = jax.lax.while_loop(lambda loop: jnp.any(loop[0] < episodes), advance, loop)[-1]
        if estimates:
            first = jnp.arange(-(-episodes // lanes) * lanes).reshape(-1, lanes)
            found = jax.lax.map(
                lambda some: success_probability(policy, policy_params, frozen, start_of(some)[0]), first
            )
            results = results.replace(estimate=found.reshape(-1)[:episodes])
        return results

    def evaluate(policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool) -> Episodes:
        return jax.device_get(run(policy_params, frozen, key, jnp.bool_(greedy)))

    return evaluate
