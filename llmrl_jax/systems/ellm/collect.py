"""Recording of play: the implementation of `llmrl ellm collect`.

Steps are stored with all that goals depend on: the environment's observation, the caption of the transition, whether it
succeeded, and the environment's own reward. So goals and their rewards can be computed for other settings than those
that the steps were played under (`llmrl_jax.systems.ellm.offline`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.data.parquet import arrow, write_parquet
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.lm.encoder_weights import resolved
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.folder import opened
from llmrl_jax.systems.ellm.build import Ellm, build, load_run, picture_of
from llmrl_jax.systems.ellm.closed_goals import ClosedGoalSpec
from llmrl_jax.systems.ellm.config import CollectRun, refuse_other_settings
from llmrl_jax.systems.ellm.goals import GoalWrapper


STEPS, METADATA, FORMAT = "steps.parquet", "buffer.json", 1
RECORDED = 0x2EC0
"""Folded into the seed for recorded episodes, which are not those of evaluations."""
CHUNK = 25
ROWS = 64
"""Episodes that are played, or relabelled, at once."""


def collect(config: CollectRun) -> dict[str, Any]:
    """Play episodes, and write them to the run's folder: `steps.parquet`, and `buffer.json` about them.

    **Returns:** the contents of `buffer.json`. **Raises:** what `build` and `load_run` raise; `ModuleNotFoundError`
    without pyarrow; `ValueError` for an environment whose play cannot be relabelled."""
    arrow()
    built, policy, weights, env_params = _player(config)
    check_recordable(built)
    world = recorder(built)
    env_params = env_params.replace(intrinsic=jnp.float32(0), extrinsic=jnp.float32(1))  # the environment's own reward
    with opened(config.run, "ellm-collect") as folder:
        configs.save_config(dataclasses.replace(config, ellm=built.config), folder / "config.json")
        key = jax.random.fold_in(jax.random.key(config.run.seed), RECORDED)
        parts = list(record(world, env_params, policy, weights, key, config.episodes))
        steps: Transitions = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        metadata = {**identity(built), "episodes": config.episodes, "steps": len(steps)}
        metadata["earned"] = float(np.sum(steps.goal["earned"]) / config.episodes)
        write_parquet(folder / STEPS, steps)
        configs.save_config(metadata, folder / METADATA)
    print(
        f"{config.episodes} episodes, {len(steps)} steps, reward for goals {metadata['earned']:.2f} per episode; they "
        f"are in {folder}, for llmrl ellm offline --buffer {folder}"
    )
    return metadata


def _player(config: CollectRun) -> tuple[Ellm, Any, Any, Any]:
    """The components of the run, the policy that plays, its weights, and the environment's parameters."""
    if not config.from_run:
        refuse_unread(config, ("epsilon", "checkpoint"), "random play", remedy="--from names a run whose agent plays")
        built = build(dataclasses.replace(config.ellm, encoder=resolved(config.ellm.encoder)))
        return built, RandomPolicy(built.spec.actions), ((), ()), built.env_params
    _, built, state, _ = load_run(Path(config.from_run), config.checkpoint)
    refuse_other_settings(config.ellm, CollectRun().ellm, built.config)
    if built.config.learner == "dqn":
        built.policy.epsilon = config.epsilon
    else:
        subject = (
            f"the agent of {config.from_run}, which {built.config.learner} trained and which draws its own actions,"
        )
        refuse_unread(config, ("epsilon",), subject)
    return built, built.policy, (state.params, state.frozen), state.runner.env_params


def check_recordable(built: Ellm) -> None:
    """**Raises** `ValueError` for an environment whose play cannot be relabelled."""
    env = built.env.unwrapped
    if isinstance(built.spec, ClosedGoalSpec):
        raise ValueError(f"goals of {env.id} are about objects in places, and are not recorded: choose another --env")
    if picture_of(env.observation_space(env.default_params)):
        raise ValueError(f"the observations of {env.id} have pictures, which are not recorded: choose another --env")


def identity(built: Ellm) -> dict[str, Any]:
    """Facts about recorded steps in which a run that learns from them must agree."""
    space: Any = recorder(built).observation_space(built.env_params)
    shapes = {name: f"{np.dtype(x.dtype)}{list(x.shape)}" for name, x in sorted(space.spaces.items())}
    return {"format": FORMAT, "env": built.config.env, "actions": list(built.spec.captions), "observation": shapes}


def recorder(built: Ellm) -> GoalWrapper:
    """The same environment, whose observations have all parts that goals may depend on."""
    env, bare = built.env, built.env.unwrapped
    space: Any = bare.observation_space(bare.default_params)
    keep = tuple(name for name in space.spaces if name != "key")
    rules = dataclasses.replace(env.rules, keys=True)
    return GoalWrapper(EpisodeStatistics(bare), built.spec, rules, built.env_params.replace(env=()), keep=keep)


def record(
    env: GoalWrapper, env_params: Any, policy: Any, weights: Any, key: jax.Array, episodes: int
) -> Iterator[Transitions]:
    """Whole episodes of a policy, `ROWS` at a time, as NumPy arrays. `text` is what `offline.RecordedEpisodeEnv`
    needs; `goal` has `earned`, the reward for goals."""
    play = make_player(
        env,
        env_params,
        actor_of(policy),
        lambda obs, state: {name: x for name, x in obs.items() if name not in ("goals", "known")},
        lambda step: {
            name: step.info[name] for name in ("effective_action", "eval_success", "action_success", "earned")
        },
        chunk=CHUNK,
    )
    for episode in play(weights, key_pairs(key, episodes), lanes=ROWS):
        text = dict(episode.extra)
        goal = {"earned": text.pop("earned")}
        text["caption"] = text.pop("effective_action").astype(np.int32)
        yield episode.transitions(action=episode.action.astype(np.int32), text=text, goal=goal)
