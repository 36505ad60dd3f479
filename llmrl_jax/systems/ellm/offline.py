"""Learning from recorded play: the implementation of `llmrl ellm offline`.

A recorded episode is an environment in which only what was recorded can happen (`RecordedEpisodeEnv`). It has goals as
any other has, so goals, the novelty filter and rewards are computed by the code that pays them in play, for another
suggester, threshold or gate. DQN learns from a replay buffer that holds the result.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from envs_jax import tracing
from envs_jax.env import Wrapper
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.parquet import read_parquet
from llmrl_jax.data.transitions import FIELDS, DataError, Trajectories, Transitions, to_trajectories
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.dqn import DQN, check
from llmrl_jax.systems.ellm.build import Ellm, dqn_settings
from llmrl_jax.systems.ellm.collect import METADATA, ROWS, STEPS, check_recordable, identity
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.goals import GoalWrapper


RELABELLED = 0x2EC1
"""Folded into the seed for the goals that are sampled for recorded steps: the keys of the learner's parts are those
that `fold_in` makes of the seed's by small numbers, as `split` does."""


def steps_in(folder: Path) -> int:
    """The steps of a folder of `llmrl ellm collect`. **Raises:** `FileNotFoundError` for another one, `DataError` for a
    damaged file."""
    if not (folder / METADATA).exists():
        raise FileNotFoundError(f"there are no recorded steps in {folder}: name a folder of llmrl ellm collect")
    metadata = configs.read_json(folder / METADATA)
    if not isinstance(metadata.get("steps"), int):
        raise DataError(f"{folder / METADATA} has no number of steps: name a folder of llmrl ellm collect")
    return metadata["steps"]


def read_buffer(folder: Path, built: Ellm) -> Trajectories:
    """The recorded episodes of a folder of `llmrl ellm collect`.

    **Raises:** `FileNotFoundError` for a folder without them; `ValueError` if their environment, its actions or the
    shapes of its observations are not those of `built`; `DataError` for a damaged file."""
    check_recordable(built)
    steps_in(folder)
    metadata, expected = configs.read_json(folder / METADATA), identity(built)
    for name, value in expected.items():
        if (recorded := metadata.get(name)) != value:
            name, recorded, value = _difference(name, recorded, value)
            raise ValueError(f"{folder}: {name} is {recorded}, but in this run it is {value}: choose the same --env")
    with doing(f"reading {folder / STEPS}"):
        steps = read_parquet(folder / STEPS)
        if len(steps) != metadata["steps"]:
            raise DataError(
                f"{folder / STEPS} has {len(steps)} steps, but {metadata['steps']} were written: record again"
            )
        return to_trajectories(steps)


def _difference(name: str, a: Any, b: Any) -> tuple[str, Any, Any]:
    """The first part in which two values differ: its name, and both."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"the number of {name}", len(a), len(b)
        index = next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)
        return f"number {index} of {name}", repr(a[index]), repr(b[index])
    if isinstance(a, dict) and isinstance(b, dict):
        part = min(x for x in {*a, *b} if a.get(x) != b.get(x))
        return f"{part} of {name}", a.get(part, "missing"), b.get(part, "missing")
    return name, a, b


class RecordedEpisodeEnv(Wrapper):
    """The environment of one recorded episode, its parameters: `Transitions`, whose `text` has what rewards depend on:
    `caption` int32 (the caption of the transition), `eval_success` and `action_success` bool. The state is the number
    of the step. Actions have no effect."""

    def reset(self, key, params):
        return params.take(jnp.int32(0)).obs, jnp.int32(0)

    def step(self, key, state, action, params):
        now = params.take(state)
        info = {
            "effective_action": now.text["caption"],
            "eval_success": now.text["eval_success"],
            "action_success": now.text["action_success"],
            "episode_length": jnp.float32(1),
        }
        return now.next_obs, state + 1, now.reward, now.terminated, now.truncated, info


def as_recorded(env: GoalWrapper) -> GoalWrapper:
    """The environment with recorded episodes as its parameters, and the same goals and rewards."""
    spec = dataclasses.replace(env.spec, achievements=())  # which are not recorded, and reported only
    return GoalWrapper(RecordedEpisodeEnv(env.env), spec, env.rules, None, keep=env.keep)


def relabelled(
    env: GoalWrapper, params: Any, episodes: Trajectories, key: Key[Array, ""], first: Int[Array, ""] | int = 0
) -> tuple[Any, Any, Float[Array, "E T"], Float[Array, "E T"]]:
    """The observations of an agent, and the rewards, of recorded episodes under the goals of an environment.

    **Arguments:** `env`, that agents are trained in, and its `params`; `episodes`, see `RecordedEpisodeEnv`; `key`, of
    random goals; `first`, the number of the first episode, so that parts give what the whole gives.
    **Returns:** the observations before and after each step, leaves `[E, T, ...]`; the rewards, `intrinsic` times that
    for goals plus `extrinsic` times the recorded one; and those for goals alone. After an episode they are undefined.
    """
    recorded_env, count = as_recorded(env), episodes.reward.shape[1]
    recorded = Transitions(**{name: getattr(episodes, name) for name in FIELDS})

    def relabel_episode(number, episode):
        episode_params, episode_key = params.replace(env=episode), jax.random.fold_in(key, number)
        obs, state = recorded_env.reset(jax.random.fold_in(episode_key, count), episode_params)

        def step(carry, t):
            obs, state = carry
            after, state, reward, _, _, info = recorded_env.step(
                jax.random.fold_in(episode_key, t), state, episode.action[t], episode_params
            )
            return (after, state), (obs, after, reward, info["earned"])

        return tracing.scan(step, (obs, state), jnp.arange(count))[1]

    return jax.vmap(relabel_episode)(first + jnp.arange(len(episodes)), recorded)


def relabelled_steps(built: Ellm, episodes: Trajectories, key: jax.Array) -> tuple[Transitions, np.ndarray]:
    """Recorded steps as DQN stores them, with the goals and rewards of the settings, in order: leaves `[N, ...]`.

    **Returns:** the steps, as NumPy arrays; and the rewards for goals of every episode."""
    label = jax.jit(lambda part, first: relabelled(built.env, built.env_params, part, key, first))
    parts, mask, count = [], np.asarray(episodes.mask), len(episodes)
    rows = min(ROWS, count)
    with doing("relabelling", count, "episodes") as activity:
        for first in range(0, count, rows):
            index = np.minimum(np.arange(first, first + rows), count - 1)
            part = label(episodes.take(jnp.asarray(index, jnp.int32)), jnp.int32(first))
            size = min(rows, count - first)
            parts.append(jax.tree.map(lambda x, size=size: x[:size], jax.device_get(part)))
            activity.done = first + size
    obs, after, reward, earned = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    flags: Any = (episodes.action, episodes.terminated, episodes.truncated)
    action, terminated, truncated = jax.device_get(flags)
    config = dqn_settings(built.config)
    ends = terminated if config.bootstrap_truncation else terminated | truncated
    clipped = np.clip(reward, -config.reward_clip, config.reward_clip)
    steps = Transitions(obs, action, clipped, after, ends, truncated)
    return jax.tree.map(lambda x: x[mask], steps), np.where(mask, earned, 0).sum(axis=1)


def make_offline(built: Ellm, steps: Transitions) -> Learner:
    """DQN on a replay buffer that holds recorded steps, as a `Learner`, with the state of a run that plays.

    **Arguments:** `steps`, leaves `[N, ...]`, of whole episodes in their order; the buffer holds all of them, except
    for the rest of a division by `num_envs`.
    **Raises:** `ValueError` for sizes that the devices do not divide."""
    config = dqn_settings(built.config)
    check(config, built.env, built.env_params, built.mesh)
    dqn = DQN(config, built.env, built.env_params, built.policy, Placement(built.mesh))
    length = config.capacity // config.num_envs

    def rows(x):
        return np.moveaxis(x[: config.capacity].reshape(config.num_envs, length, *x.shape[1:]), 1, 0)

    filled = jax.tree.map(rows, steps)

    def init(key: jax.Array) -> Any:
        return dqn.filled(dqn.init(key), jax.tree.map(jnp.asarray, filled))

    return Learner(init, dqn.learn, config.gradient_steps, {"nonfinite": 0.0}, unit="gradient steps")


def settled(ellm: EllmConfig, buffer_steps: int) -> EllmConfig:
    """The settings of an offline run: a replay buffer of the size of the recorded steps, which is full from the start.

    **Raises:** `ValueError` for what needs play."""
    if ellm.learner != "dqn":
        raise ValueError(f"learner is {ellm.learner}, but only dqn learns from recorded steps: choose --learner dqn")
    if ellm.suggester == "chat":
        raise ValueError("suggester is chat, which is asked while an agent plays: choose another --suggester")
    if ellm.bonus != "none":
        raise ValueError(f"bonus is {ellm.bonus}, which is computed while an agent plays: leave --bonus out")
    minimum = ellm.dqn.num_envs * max(ellm.dqn.num_steps, ellm.dqn.n_step)
    if buffer_steps < minimum:
        raise ValueError(f"the buffer has {buffer_steps} steps; at least {minimum} are needed: record more episodes")
    size = buffer_steps // ellm.dqn.num_envs * ellm.dqn.num_envs
    dqn = dataclasses.replace(ellm.dqn, replay_size=size, learning_starts=0, learn_after_reward=False)
    return dataclasses.replace(ellm, dqn=dqn)
