"""Held-out episodes of a policy: whole episodes from fresh resets, greedy or sampled, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.env import Environment
from envs_jax.resets import VectorEnv, select
from llmrl_jax.systems.glam.competence import success_probability
from llmrl_jax.systems.glam.policy import LanguagePolicy


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
    env: Environment, params: Any, policy: Any, *, episodes: int, greedy: bool, batch_size: int = 256
) -> Callable[[Any, Any, jax.Array], Episodes]:
    """Build `evaluate(policy_params, frozen, key) -> Episodes` of NumPy arrays.

    **Arguments:** `env`, wrapped as for training (with `EpisodeStatistics`), not batched; `policy`, see
    `llmrl_jax.rl.policy`; `episodes`, how many; `greedy`, the mode of the distribution instead of a sample;
    `batch_size`, environments stepped at once.

    Episode `i` depends on `fold_in(key, i)` alone, and one batch runs until its last episode has ended.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 is needed")
    batch_size = min(batch_size, episodes)
    batch = VectorEnv(env, batch_size, policy="none")
    estimates = isinstance(policy, LanguagePolicy) and policy.competence_head is not None

    @jax.jit
    def run(policy_params: Any, frozen: Any, key: jax.Array) -> Episodes:
        reset_key, play_key = jax.random.split(key)
        obs, state = batch.reset(reset_key, params)
        blank = Episodes(
            success=jnp.zeros(batch_size, bool),
            episode_return=jnp.zeros(batch_size, jnp.float32),
            episode_length=jnp.zeros(batch_size, jnp.int32),
            task=jnp.zeros(batch_size, jnp.int32),
        )
        carry = policy.initial_carry(batch_size)
        done = jnp.zeros(batch_size, bool)

        def unfinished(loop):
            return ~jnp.all(loop[4])

        def advance(loop):
            t, obs, state, carry, done, first, results = loop
            act_key, step_key = jax.random.split(jax.random.fold_in(play_key, t))
            distribution, _, carry = policy.step(policy_params, frozen, obs, carry, first)
            action = distribution.mode() if greedy else distribution.sample(act_key)
            obs, state, _, terminated, truncated, info = batch.step(step_key, state, action, params)
            now = Episodes(
                success=info.get("success", terminated),
                episode_return=info["episode_return"],
                episode_length=info["episode_length"],
                task=info.get("task", jnp.zeros(batch_size, jnp.int32)),
            )
            ends = (terminated | truncated) & ~done
            results = select(ends, now, results)
            return t + 1, obs, state, carry, done | ends, jnp.zeros_like(first), results

        loop = (jnp.int32(0), obs, state, carry, done, jnp.ones(batch_size, bool), blank)
        results = jax.lax.while_loop(unfinished, advance, loop)[-1]
        if estimates:
            results = results.replace(estimate=success_probability(policy, policy_params, frozen, obs))
        return results

    def evaluate(policy_params: Any, frozen: Any, key: jax.Array) -> Episodes:
        parts = []
        for start in range(0, episodes, batch_size):
            parts.append(jax.device_get(run(policy_params, frozen, jax.random.fold_in(key, start))))
        return jax.tree.map(lambda *x: np.concatenate(x)[:episodes], *parts)

    evaluate.run = run  # type: ignore[attr-defined]
    return evaluate
