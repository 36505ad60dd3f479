"""Held-out episodes of a policy: whole episodes from fresh resets, greedy or sampled, on the device; and those of
random actions, beside which every evaluation is read."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from envs_jax import tracing
from envs_jax.env import Environment
from envs_jax.resets import select
from llmrl_jax.agents.play import EpisodeBatch, Step, advance, begin, key_pairs, policy_actor
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least
from llmrl_jax.rl.policy import Policy, RandomPolicy, random_policy


CHUNK_SECONDS = 1.0
"""Time on the device between looks from the host, which count the episodes and let signals be handled."""
FIRST_STEPS, ALL_STEPS = 8, np.iinfo(np.int32).max
"""Steps before the first look, and of an evaluation that is not looked at."""


@struct.dataclass
class Episodes:
    """Outcomes of `N` episodes."""

    success: Any
    """bool `[N]`, the environment's success flag (`info["success"]`); None if it has none."""
    episode_return: Any
    """float32 `[N]`, unscaled and undiscounted."""
    episode_length: Any
    """int32 `[N]`, steps."""
    task: Any
    """int32 `[N]`, index into `env.task_names`."""
    estimate: Any = None
    """float32 `[N]`, the probability of success at the first observation, if the policy estimates it; else None."""


@struct.dataclass
class _Loop:
    """Episodes in progress, one per lane."""

    episode: Any
    """int32 `[lanes]`, the number of each lane's episode."""
    next_episode: Any
    """int32 `[]`, the number of the next episode to begin, also beyond the last."""
    rows: EpisodeBatch
    results: Any
    """Of the episodes that ended."""


def outcomes_of(step: Step) -> Episodes:
    """The outcomes of the episodes that a step ended; undefined in other rows."""
    return Episodes(
        success=jnp.bool_(step.info["success"]) if "success" in step.info else None,
        episode_return=jnp.float32(step.info["episode_return"]),
        episode_length=jnp.int32(step.info["episode_length"]),
        task=jnp.int32(step.info.get("task", jnp.zeros_like(step.ended))),
    )


def make_evaluator(
    env: Environment,
    env_params: Any,
    policy: Policy,
    *,
    episodes: int,
    lanes: int = 128,
    max_steps: int | None = None,
    outcomes: Callable[[Step], Any] = outcomes_of,
) -> Callable[..., Any]:
    """Build `evaluate(policy_params, frozen, key, *, greedy, env_params=None) -> Episodes` of NumPy arrays.

    **Arguments:** `env`, wrapped as for training (with `EpisodeStatistics`), not batched, and its `env_params`;
    `policy`, see `llmrl_jax.rl.policy.Policy`; `episodes`, their number; `lanes`, how many are played at once:
    when one ends, the next starts in its lane, so that lanes wait for the longest episode only at the end. `greedy`:
    the mode of the distribution instead of a sample; one compiled program plays either way. It runs in chunks of about
    `CHUNK_SECONDS`, between which the activity (`llmrl_jax.core.activity`) counts the episodes. `max_steps`: steps
    after which an episode is truncated, besides the environment's own limit. `outcomes`: from a step to what is
    kept of the episodes that it ended, leaves `[lanes, ...]`, in place of `Episodes`. `env_params` of a call take the
    place of those above.

    Episode `i` uses only `fold_in(key, i)`, for any number of lanes.
    **Raises:** `ValueError` if `episodes` or `lanes` is below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("lanes", lanes, 1)
    lanes = min(lanes, episodes)
    estimate = policy.estimate if outcomes is outcomes_of else None

    def params_of(override: Any) -> Any:
        return env_params if override is None else override

    @tracing.default_types
    def start(
        policy_params: Any, frozen: Any, override: Any, key: jax.Array, greedy: jax.Array
    ) -> tuple[EpisodeBatch, _Loop]:
        actor = policy_actor(policy, policy_params, frozen, greedy)
        keys = key_pairs(key, episodes)
        starts = begin(env, params_of(override), actor, keys[:, 0], keys[:, 1])
        first = jnp.arange(lanes)
        rows = _rows_of(starts, first)
        shapes = jax.eval_shape(lambda rows: outcomes(advance(env, params_of(override), actor, rows)[1]), rows)
        blank = jax.tree.map(lambda x: jnp.zeros((episodes, *x.shape[1:]), x.dtype), shapes)
        return starts, _Loop(first, jnp.int32(lanes), rows, blank)

    @tracing.default_types
    def play(
        policy_params: Any,
        frozen: Any,
        override: Any,
        greedy: jax.Array,
        starts: EpisodeBatch,
        loop: _Loop,
        steps: jax.Array,
    ) -> tuple[_Loop, jax.Array]:
        actor = policy_actor(policy, policy_params, frozen, greedy)

        def step(loop_state: tuple[jax.Array, _Loop]) -> tuple[jax.Array, _Loop]:
            t, loop = loop_state
            # rows that have ended are refilled, or not read
            rows, step = advance(env, params_of(override), actor, loop.rows, max_steps, freeze_finished=False)
            index = jnp.where(
                step.ended, loop.episode, episodes
            )  # the index of other rows is out of range, and dropped
            results = jax.tree.map(lambda x, values: x.at[index].set(values, mode="drop"), loop.results, outcomes(step))
            episode = jnp.where(step.ended, loop.next_episode + jnp.cumsum(step.ended) - 1, loop.episode)
            if lanes < episodes:
                rows = select(step.ended & (episode < episodes), _rows_of(starts, episode), rows)
            return t + 1, _Loop(episode, loop.next_episode + jnp.sum(step.ended), rows, results)

        def unfinished(loop_state: tuple[jax.Array, _Loop]) -> jax.Array:
            return (loop_state[0] < steps) & ~jnp.all(loop_state[1].rows.done)

        loop = tracing.while_loop(unfinished, step, (jnp.int32(0), loop))[1]
        return loop, loop.next_episode - lanes

    @functools.cache
    def programs(home: Sharding) -> tuple[Callable[..., Any], Callable[..., Any]]:
        # a program whose arguments lie elsewhere in its next call is compiled again
        return jax.jit(start, out_shardings=home), jax.jit(play, donate_argnums=5, out_shardings=home)

    @jax.jit
    @tracing.default_types
    def estimates(policy_params: Any, frozen: Any, starts: EpisodeBatch) -> jax.Array:
        assert estimate is not None
        groups = jnp.arange(-(-episodes // lanes) * lanes).reshape(-1, lanes)
        values = jax.lax.map(lambda group: estimate(policy_params, frozen, _rows_of(starts.obs, group)), groups)
        return values.reshape(-1)[:episodes]

    def evaluate(policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool, env_params: Any = None) -> Any:
        is_greedy = jnp.bool_(greedy)
        with doing("greedy" if greedy else "sampled", episodes, "episodes") as activity:
            begin_all, play_on = programs(_home((policy_params, frozen, env_params)))
            with doing("compiling"):
                starts, loop = begin_all(policy_params, frozen, env_params, key, is_greedy)
                loop, _ = play_on(policy_params, frozen, env_params, is_greedy, starts, loop, np.int32(0))
            steps = FIRST_STEPS if jax.process_count() == 1 else ALL_STEPS  # one chunk: processes measure other times
            while activity.done < episodes:
                began = time.monotonic()
                loop, finished = play_on(policy_params, frozen, env_params, is_greedy, starts, loop, np.int32(steps))
                activity.done = int(finished)
                rate = steps / max(time.monotonic() - began, 1e-9)
                steps = int(np.clip(rate * CHUNK_SECONDS, 1, ALL_STEPS))
            results = loop.results
            if estimate is not None:
                results = results.replace(estimate=estimates(policy_params, frozen, starts))
            return jax.device_get(results)

    return evaluate


def play_random(
    env: Environment,
    env_params: Any,
    key: jax.Array,
    *,
    episodes: int,
    num_actions: int | None = None,
    max_steps: int | None = None,
) -> Episodes:
    """Episodes of uniformly random actions, with the starts of `make_evaluator` for the same key.

    **Arguments:** as for `make_evaluator`; `num_actions`, the number of discrete actions that the compared agent has,
    by default all of the environment's.
    **Raises:** `ValueError` for actions without a uniform distribution, see `random_policy`.
    """
    policy = RandomPolicy(num_actions) if num_actions else random_policy(env.action_space(env_params))
    play = make_evaluator(env, env_params, policy, episodes=episodes, max_steps=max_steps)
    with doing("random actions"):
        return play((), (), key, greedy=False)


def _home(weights: Any) -> Sharding:
    """Sharding of the episodes between chunks: on the weights' device, or copied to every device of their mesh."""
    shardings = [leaf.sharding for leaf in jax.tree.leaves(weights) if isinstance(leaf, jax.Array)]
    for sharding in shardings:
        if isinstance(sharding, NamedSharding):
            return NamedSharding(sharding.mesh, PartitionSpec())
    return shardings[0] if shardings else SingleDeviceSharding(jax.devices()[0])


def _rows_of(tree: Any, chosen: jax.Array) -> Any:
    """The chosen rows of every leaf; an index out of range selects the last."""
    return jax.tree.map(lambda x: jnp.take(x, chosen, axis=0, mode="clip"), tree)
