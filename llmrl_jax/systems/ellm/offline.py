"""Learning from recorded play: the implementation of `llmrl ellm collect` and `llmrl ellm offline`.

Steps are stored with what goals depend on: the world's observation, the caption of the transition, whether it
succeeded, and the world's own reward. So goals and their rewards can be computed for other settings than those that the
steps were played under (`llmrl_jax.systems.ellm.relabel`), and DQN learns from a memory that holds the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.play import actor_of, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.core.learner import Learner
from llmrl_jax.data.parquet import arrow, read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_trajectories
from llmrl_jax.lm.encoder_names import resolved
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.dqn import DQN, check
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run.folder import opened
from llmrl_jax.systems.ellm.build import Ellm, build, dqn_settings
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.inputs import picture_of
from llmrl_jax.systems.ellm.relabel import relabelled
from llmrl_jax.systems.ellm.runs import load_run, refuse_other_settings
from llmrl_jax.systems.ellm.settings import CollectRun
from llmrl_jax.systems.ellm.suggested import Suggested


STEPS, ABOUT, FORMAT = "steps.parquet", "buffer.json", 1
RECORDED = 0x2EC0
"""Folded into the seed for recorded episodes, which are not those of evaluations."""
RELABELLED = 0x2EC1
"""Folded into the seed for the goals that are drawn for recorded steps: the keys of the learner's parts are those that
`fold_in` makes of the seed's by small numbers, as `split` does."""
CHUNK = 25
ROWS = 64
"""Episodes that are played, or relabelled, at once."""


# --- recording --------------------------------------------------------------------------------------------------------


def collect(config: CollectRun) -> dict[str, Any]:
    """Play episodes, and write them to the run's folder: `steps.parquet`, and `buffer.json` about them.

    **Returns:** the contents of `buffer.json`. **Raises:** what `build` and `load_run` raise; `ModuleNotFoundError`
    without pyarrow; `ValueError` for a world whose play cannot be relabelled."""
    arrow()
    made, policy, weights, env_params = _player(config)
    _check_world(made)
    world = recorder(made)
    env_params = env_params.replace(intrinsic=jnp.float32(0), extrinsic=jnp.float32(1))  # the world's own reward
    with opened(config.run, "ellm-collect") as folder:
        configs.save_config(dataclasses.replace(config, ellm=made.config), folder / "config.json")
        key = jax.random.fold_in(jax.random.key(config.run.seed), RECORDED)
        parts = list(played(world, env_params, policy, weights, key, config.episodes))
        steps: Transitions = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        about = {**_identity(made), "episodes": config.episodes, "steps": len(steps)}
        about["earned"] = float(np.sum(steps.goal["earned"]) / config.episodes)
        write_parquet(folder / STEPS, steps)
        configs.save_config(about, folder / ABOUT)
    print(
        f"{config.episodes} episodes, {len(steps)} steps, reward for goals {about['earned']:.2f} per episode; they are "
        f"in {folder}, for llmrl ellm offline --buffer {folder}"
    )
    return about


def _player(config: CollectRun) -> tuple[Ellm, Any, Any, Any]:
    """The world's parts, the policy that plays, its weights, and the world's parameters."""
    if not config.from_run:
        refuse_unread(config, ("epsilon", "checkpoint"), "random play", remedy="--from names a run whose agent plays")
        made = build(dataclasses.replace(config.ellm, encoder=resolved(config.ellm.encoder)))
        return made, RandomPolicy(made.facts.actions), ((), ()), made.env_params
    _, made, state, _ = load_run(Path(config.from_run), config.checkpoint)
    refuse_other_settings(config.ellm, CollectRun().ellm, made.config)
    if made.config.learner == "dqn":
        made.policy.epsilon = config.epsilon
    else:
        who = f"the agent of {config.from_run}, which {made.config.learner} trained and which draws its own actions,"
        refuse_unread(config, ("epsilon",), who)
    return made, made.policy, (state.params, state.frozen), state.runner.env_params


def _check_world(made: Ellm) -> None:
    env = made.env.unwrapped
    if not isinstance(made.env, Suggested):
        raise ValueError(f"goals of {env.id} are about objects in places, and are not recorded: choose another --env")
    if picture_of(env.observation_space(env.default_params)):
        raise ValueError(f"the observations of {env.id} have pictures, which are not recorded: choose another --env")


def _identity(made: Ellm) -> dict[str, Any]:
    """What recorded steps must agree in with those that learn from them."""
    space: Any = recorder(made).observation_space(made.env_params)
    shapes = {name: f"{np.dtype(x.dtype)}{list(x.shape)}" for name, x in sorted(space.spaces.items())}
    return {"format": FORMAT, "env": made.config.env, "actions": list(made.facts.captions), "observation": shapes}


def recorder(made: Ellm) -> Suggested:
    """The same world, whose observations have all parts that goals may depend on."""
    world, bare = made.env, made.env.unwrapped
    whole: Any = bare.observation_space(bare.default_params)
    assert isinstance(world, Suggested) and isinstance(whole, spaces.Dict)
    keep = tuple(name for name in whole.spaces if name != "key")
    rules = dataclasses.replace(world.rules, keys=True)
    start = made.env_params.replace(env=())
    return Suggested(EpisodeStatistics(bare), made.facts, world.suggester, rules, keep=keep, start=start)


def played(
    world: Suggested, env_params: Any, policy: Any, weights: Any, key: jax.Array, episodes: int
) -> Iterator[Transitions]:
    """Whole episodes of a policy, `ROWS` at a time, as NumPy arrays; see `relabel.Tape` for `text`. `goal` has
    `earned`, what goals paid."""
    play = make_player(
        world,
        env_params,
        actor_of(policy),
        lambda obs, state: {name: x for name, x in obs.items() if name not in ("goals", "known")},  # the world's own
        lambda step: {
            name: step.info[name] for name in ("effective_action", "eval_success", "action_success", "earned")
        },
        chunk=CHUNK,
    )
    for one in play(weights, key_pairs(key, episodes), lanes=ROWS):
        text = dict(one.extra)
        goal = {"earned": text.pop("earned")}
        text["caption"] = text.pop("effective_action").astype(np.int32)
        yield one.transitions(action=one.action.astype(np.int32), text=text, goal=goal)


# --- learning ---------------------------------------------------------------------------------------------------------


def steps_in(folder: Path) -> int:
    """The steps of a folder of `llmrl ellm collect`. **Raises:** `FileNotFoundError` for another one."""
    if not (folder / ABOUT).exists():
        raise FileNotFoundError(f"there are no recorded steps in {folder}: name a folder of llmrl ellm collect")
    return int(configs.read_json(folder / ABOUT)["steps"])


def read_buffer(folder: Path, made: Ellm) -> Trajectories:
    """The recorded episodes of a folder of `llmrl ellm collect`.

    **Raises:** `FileNotFoundError` for a folder without them; `ValueError` if their world, its actions or the shapes of
    its observations are not those of `made`; `DataError` for a damaged file."""
    _check_world(made)
    steps_in(folder)
    about, mine = configs.read_json(folder / ABOUT), _identity(made)
    for name, wanted in mine.items():
        if (found := about.get(name)) != wanted:
            name, found, wanted = _difference(name, found, wanted)
            raise ValueError(f"{folder}: {name} is {found}, but in this run it is {wanted}: choose the same --env")
    with doing(f"reading {folder / STEPS}"):
        steps = read_parquet(folder / STEPS).data
        if len(steps) != about["steps"]:
            raise DataError(f"{folder / STEPS} has {len(steps)} steps, but {about['steps']} were written: record again")
        return to_trajectories(steps)


def _difference(name: str, found: Any, wanted: Any) -> tuple[str, Any, Any]:
    """The first part in which two values differ: its name, and both."""
    if isinstance(wanted, list) and isinstance(found, list):
        if len(found) != len(wanted):
            return f"the number of {name}", len(found), len(wanted)
        place = next(i for i, (a, b) in enumerate(zip(found, wanted)) if a != b)
        return f"number {place} of {name}", repr(found[place]), repr(wanted[place])
    if isinstance(wanted, dict) and isinstance(found, dict):
        part = min(x for x in {*found, *wanted} if found.get(x) != wanted.get(x))
        return f"{part} of {name}", found.get(part, "missing"), wanted.get(part, "missing")
    return name, found, wanted


def relabelled_steps(made: Ellm, episodes: Trajectories, key: jax.Array) -> tuple[Transitions, np.ndarray]:
    """Recorded steps as DQN stores them, with the goals and rewards of a world, in their order: leaves `[N, ...]`.

    **Returns:** the steps, as NumPy arrays; and the rewards for goals of every episode."""
    world: Any = made.env
    label = jax.jit(lambda part, first: relabelled(world, made.env_params, part, key, first))
    found, mask, count = [], np.asarray(episodes.mask), len(episodes)
    rows = min(ROWS, count)
    with doing("relabelling", count, "episodes") as activity:
        for first in range(0, count, rows):
            place = np.minimum(np.arange(first, first + rows), count - 1)
            part = label(episodes.take(jnp.asarray(place, jnp.int32)), jnp.int32(first))
            own = min(rows, count - first)
            found.append(jax.tree.map(lambda x, own=own: x[:own], jax.device_get(part)))
            activity.done = first + own
    obs, after, reward, earned = jax.tree.map(lambda *x: np.concatenate(x), *found)
    action, terminated, truncated = (np.asarray(x) for x in (episodes.action, episodes.terminated, episodes.truncated))
    config = dqn_settings(made.config)
    ends = terminated if config.bootstrap_truncation else terminated | truncated
    clipped = np.clip(reward, -config.reward_clip, config.reward_clip)
    parts: Any = (obs, action, clipped, after, ends, truncated)
    steps = Transitions(*parts)
    return jax.tree.map(lambda x: x[mask], steps), np.where(mask, earned, 0).sum(axis=1)


def make_offline(made: Ellm, steps: Transitions) -> Learner:
    """DQN on a memory that holds recorded steps, as a `Learner`, with the state of a run that plays.

    **Arguments:** `steps`, leaves `[N, ...]`, of whole episodes in their order; the memory holds all of them, except
    for the rest of a division by `num_envs`.
    **Raises:** `ValueError` for sizes that the devices do not divide."""
    config = dqn_settings(made.config)
    check(config, made.env, made.env_params, made.mesh)
    dqn = DQN(config, made.env, made.env_params, made.policy, Placement(made.mesh))
    length = config.capacity // config.num_envs

    def rows(x):
        return np.moveaxis(x[: config.capacity].reshape(config.num_envs, length, *x.shape[1:]), 1, 0)

    filled = jax.tree.map(rows, steps)

    def init(key: jax.Array) -> Any:
        return dqn.filled(dqn.init(key), jax.tree.map(jnp.asarray, filled))

    return Learner(init, dqn.learn, config.gradient_steps, {"nonfinite": 0.0}, unit="gradient steps")


def settled(ellm: EllmConfig, buffer_steps: int) -> EllmConfig:
    """The settings of an offline run: a memory of the size of the buffer, which is full from the start.

    **Raises:** `ValueError` for what needs play."""
    if ellm.learner != "dqn":
        raise ValueError(f"learner is {ellm.learner}, but only dqn learns from recorded steps: choose --learner dqn")
    if ellm.suggester == "chat":
        raise ValueError("suggester is chat, which is asked while an agent plays: choose another --suggester")
    if ellm.bonus != "none":
        raise ValueError(f"bonus is {ellm.bonus}, which is computed while an agent plays: leave --bonus out")
    least = ellm.dqn.num_envs * max(ellm.dqn.num_steps, ellm.dqn.n_step)
    if buffer_steps < least:
        raise ValueError(f"the buffer has {buffer_steps} steps; at least {least} are needed: record more episodes")
    size = buffer_steps // ellm.dqn.num_envs * ellm.dqn.num_envs
    dqn = dataclasses.replace(ellm.dqn, replay_size=size, learning_starts=0)
    return dataclasses.replace(ellm, dqn=dqn)
