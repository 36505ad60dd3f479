"""Held-out episodes of a policy: whole episodes from fresh resets, greedy or sampled, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax.env import Environment
from envs_jax.resets import select
from llmrl_jax.agents.play import Rows, Step, advance, begin, policy_actor
from llmrl_jax.core.checks import at_least


@struct.dataclass
class Episodes:
    """Outcomes of `N` episodes."""

    success: Any
    """bool `[N]`, the environment's success flag."""
    episode_return: Any
    """float32 `[N]`, unscaled and undiscounted."""
    episode_length: Any
    """int32 `[N]`, steps."""
    task: Any
    """int32 `[N]`, index into `env.task_names`."""
    estimate: Any = None
    """float32 `[N]`, the probability of success at the first observation, if the policy estimates it; else None."""


def make_evaluator(
    env: Environment, env_params: Any, policy: Any, *, episodes: int, lanes: int = 128
) -> Callable[..., Episodes]:
    """Build `evaluate(policy_params, frozen, key, *, greedy) -> Episodes` of NumPy arrays.

    **Arguments:** `env`, wrapped as for training (with `EpisodeStatistics`), not batched, and its `env_params`;
    `policy`, see `llmrl_jax.agents.contract.Player`; `episodes`, their number; `lanes`, how many are played at once:
    when one ends, the next starts in its lane, so that lanes wait for the longest episode only at the end. `greedy`:
    the mode of the distribution instead of a sample; one compiled program plays either way.

    Episode `i` uses only `fold_in(key, i)`, for any number of lanes.
    **Raises:** `ValueError` if `episodes` or `lanes` is below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("lanes", lanes, 1)
    lanes = min(lanes, episodes)
    estimate = getattr(policy, "estimate", None)

    @jax.jit
    def run(policy_params: Any, frozen: Any, key: jax.Array, greedy: jax.Array) -> Episodes:
        actor = policy_actor(policy, policy_params, frozen, greedy)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(jnp.arange(episodes))
        starts = begin(env, env_params, actor, keys[:, 0], keys[:, 1])

        def go_on(loop):
            episode, begun, rows, results = loop
            rows, step = advance(env, env_params, actor, rows, hold=False)  # finished rows are refilled, or not read
            place = jnp.where(step.ended, episode, episodes)  # the index of other rows is out of range, and dropped
            results = jax.tree.map(
                lambda all, some: all.at[place].set(some, mode="drop"), results, _outcomes(rows, step)
            )
            episode = jnp.where(step.ended, begun + jnp.cumsum(step.ended) - 1, episode)
            rows = select(step.ended & (episode < episodes), _rows_of(starts, episode), rows)
            return episode, begun + jnp.sum(step.ended), rows, results

        first = jnp.arange(lanes)
        blank = Episodes(*(jnp.zeros(episodes, kind) for kind in (bool, jnp.float32, jnp.int32, jnp.int32)))
        loop = (first, jnp.int32(lanes), _rows_of(starts, first), blank)
        results = jax.lax.while_loop(lambda loop: ~jnp.all(loop[2].over), go_on, loop)[-1]
        if estimate is not None:
            groups = jnp.arange(-(-episodes // lanes) * lanes).reshape(-1, lanes)
            estimates = jax.lax.map(lambda group: estimate(policy_params, frozen, _rows_of(starts.obs, group)), groups)
            results = results.replace(estimate=estimates.reshape(-1)[:episodes])
        return results

    def evaluate(policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool) -> Episodes:
        return jax.device_get(run(policy_params, frozen, key, jnp.bool_(greedy)))

    return evaluate


def _rows_of(tree: Any, chosen: jax.Array) -> Any:
    """The chosen rows of every leaf; an index out of range selects the last."""
    return jax.tree.map(lambda x: jnp.take(x, chosen, axis=0, mode="clip"), tree)


def _outcomes(rows: Rows, step: Step) -> Episodes:
    """The outcome of every row's episode, assuming that this step ended it."""
    return Episodes(
        success=step.info.get("success", step.terminated),
        episode_return=step.info["episode_return"],
        episode_length=step.info["episode_length"],
        task=step.info.get("task", jnp.zeros_like(rows.t)),
    )
