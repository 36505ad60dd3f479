"""Recorded episodes: of a scripted expert, of a trained agent, or of a published file; written and read.

`collect` is the implementation of `llmrl kalm collect`. Imagined episodes are written and read in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Wrapper, innermost
from llmrl_jax.agents.play import Actor, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.masked import read_arrays, read_published
from llmrl_jax.data.parquet import arrow, read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_trajectories, to_transitions
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.systems.kalm.config import CollectRun, TrainRun, settings_class
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, LEVELS, REAL, STATE, Cases, World, level_of, world_of
from llmrl_jax.workflows.experiment import kind_of_run, restore
from llmrl_jax.workflows.offline_training import check_world
from llmrl_jax.workflows.rl_training import RLRun, settings_class as rl_settings_class


# --- files ------------------------------------------------------------------------------------------------------------

EPISODES = "episodes.parquet"
METADATA = "data.json"


def write_episodes(
    folder: Path, world: World, level: str, data: Transitions | Trajectories, *, imagined: bool = False
) -> None:
    """Write the episodes of a level to a run's folder."""
    write_parquet(folder / EPISODES, data)
    metadata = {"world": world.name, "level": level, **({"imagined": True} if imagined else {})}
    write_whole(folder / METADATA, json.dumps(metadata) + "\n")


def metadata_of(folder: Path, maker: str) -> tuple[World, str, bool]:
    """The environment and the level of a folder's episodes, and whether they are imagined.

    **Arguments:** `maker`, the command that should have made it, for messages.
    **Raises:** `FileNotFoundError`; `DataError` for a `data.json` of another form.
    """
    file = folder / METADATA
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {METADATA}: give that of {maker}")
    try:
        metadata = json.loads(file.read_text())
        return world_of(metadata["world"]), level_of(metadata["level"]), bool(metadata.get("imagined", False))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file} is damaged, or of something else than {maker}: {error}") from error


def check_steps(world: World, data: Transitions) -> None:
    """**Raises** `DataError` for observations or actions not of the environment: other parts, shapes, numbers."""
    env = world.make(REAL)
    params = env.default_params
    check_world(data, env.observation_space(params), world.name)
    actions_of(data, env.action_space(params), world.name)


def read_episodes(folder: str | Path, world: str = "", *, imagined: bool = False) -> tuple[World, str, Trajectories]:
    """The environment, the level and the episodes of a run.

    **Arguments:** `world`, the one that is needed; empty: any. `imagined`, whether imagined episodes are needed, and
    not recorded ones.
    **Raises:** `FileNotFoundError`, `DataError` for a folder of something else, of another environment, or whose
    observations or actions are not the environment's.
    """
    folder, maker = Path(folder), f"`llmrl kalm {'imagine' if imagined else 'collect'}`"
    its_world, level, is_imagined = metadata_of(folder, maker)
    if is_imagined != imagined:
        needed, actual = ("imagined", "recorded") if imagined else ("recorded", "imagined")
        raise DataError(
            f"{folder} has {actual} episodes, and {needed} ones are needed here: give the folder of {maker}"
        )
    if world and its_world.name != world:
        raise DataError(f"{folder} has episodes of {its_world.name!r}, and {world!r} is needed")
    data = read_parquet(folder / EPISODES)
    check_steps(its_world, data)
    return its_world, level, to_trajectories(data)


def convert_published(file: str | Path, world: World, level: str, seed: int) -> Transitions:
    """The episodes of a file, with observations as the environment's.

    Their goals are kept. Their words are not: an episode gets one of our sentences for its goal, drawn by the seed,
    since grounding and agents know sentences by their numbers.

    **Arguments:** `level`, of all episodes of the file.
    **Raises:** what `read_published` raises; `DataError` for a file without goals, for goals that the level does not
    have, and for observations or actions that are not the environment's.
    """
    source = read_published(file)
    env = world.make(level)
    size = env.observation_space(env.default_params).spaces[STATE].shape[0]  # type: ignore[attr-defined]
    width = source.data.obs.shape[-1]
    if width != size:
        raise DataError(
            f"{file} has observations of {width} numbers, and a state of {world.name} has {size}"
            + (": with sentence vectors, `llmrl rl train --data` learns from them" if width > size else "")
        )
    goals = world.published(source.about, level)
    sentences = _sentences(file, world, level, goals, np.random.default_rng(seed))

    def observation(states: jax.Array) -> dict[str, np.ndarray]:
        rows = states.shape[:2]
        return {
            STATE: np.asarray(states),
            GOAL: np.broadcast_to(goals[:, None], (*rows, goals.shape[1])),
            INSTRUCTION: np.broadcast_to(sentences[:, None], rows),
        }

    data = source.data.replace(obs=observation(source.data.obs), next_obs=observation(source.data.next_obs))
    steps = to_transitions(data)
    check_steps(world, steps)
    return steps


def _sentences(file: str | Path, world: World, level: str, goals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of a sentence of the level for each goal, drawn from its wordings; int32 `[N]`."""
    sentences = np.empty(len(goals), np.int32)
    for goal in np.unique(goals, axis=0):
        numbers = np.flatnonzero((world.instructions.goals == goal).all(axis=1))
        numbers = numbers[np.isin(numbers, world.instructions.sentence_ids(level))]
        matches = (goals == goal).all(axis=1)
        if not len(numbers):
            raise DataError(
                f"{file}: the goal of episode {matches.argmax()} is none of level {level}: give its --level"
            )
        sentences[matches] = rng.choice(numbers, matches.sum())
    return sentences


def read_cases(file: str | Path, world: World, level: str, rng: np.random.Generator) -> Cases:
    """The beginnings of episodes in a file of the published prompts or test cases: `observations`, `[N, d]` or
    `[N, T, d]`, of which the first is read, and what their goals are, as in other published files.

    Their words are not read: each gets one of our sentences for its goal.

    **Raises:** what `read_arrays` raises; `DataError` for an environment whose observations do not determine a state,
    for a file without observations or of other ones, and for goals that the level does not have.
    """
    if world.begin is None:
        raise DataError(
            f"{file} has observations of {world.name}, which do not determine a state to begin in: give the folder of "
            "`llmrl kalm collect`"
        )
    arrays = read_arrays(Path(file), ("observations", "goals", "env_names"))
    observed = arrays.pop("observations", np.zeros(0))
    states = observed[:, 0] if observed.ndim == 3 else observed
    env = world.make(level)
    size = env.observation_space(env.default_params).spaces[STATE].shape[0]  # type: ignore[attr-defined]
    if states.ndim != 2 or states.shape[1] != size or not len(states):
        raise DataError(f"{file} has observations of the shape {list(observed.shape)}; [N, {size}] are needed")
    if not np.isfinite(states).all():
        raise DataError(f"{file} has observations that are no numbers")
    goals = world.published(arrays, level)
    if len(goals) != len(states):
        raise DataError(f"{file} has {len(states)} observations and {len(goals)} goals")
    return Cases(level, states.astype(np.float32), goals, _sentences(file, world, level, goals, rng))


# --- play -------------------------------------------------------------------------------------------------------------

CHUNK = 5
"""Steps between transfers to the host."""
PARTS = (STATE, GOAL, INSTRUCTION)

Expert = Callable[[Any, Any], jax.Array]
"""`(obs, state)`, leaves `[B, ...]`, to expert actions, `[B]`."""


class _WithState(Wrapper):
    """The environment with its state beside the observation, for the expert."""

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return (obs, state), state

    def step(self, key, state, action, params):
        obs, state, *remaining = self.env.step(key, state, action, params)
        return ((obs, state), state, *remaining)


def expert_of(world: World, level: str) -> Expert:
    """The environment's scripted expert."""
    env = world.make(level)
    return lambda obs, state: jax.vmap(lambda row: world.expert(env, innermost(row)))(state)


def greedy_of(folder: str | Path, world: World) -> Expert:
    """The greedy actions of a run's agent: of `llmrl kalm train`, or of `llmrl rl train` in the same environment,
    whatever it sees of it. Of several agents, those of the first.

    **Raises:** `ValueError` for a run of another command or environment; what `restore` raises.
    """
    folder = Path(folder)
    online = kind_of_run(folder, TrainRun.KIND, RLRun.KIND) == RLRun.KIND
    saved = json.loads((folder / "config.json").read_text())
    settings: Any = rl_settings_class(saved["algo"]) if online else settings_class(saved["agent"])
    config = configs.load_config(settings, folder / "config.json")
    x = config.experiment()
    env = world.make(LEVELS[0]).unwrapped
    if x.env is None or type(x.env.unwrapped) is not type(env) or online and not hasattr(env, "observe"):
        trained_on = "no world" if x.env is None else config.env if online else x.env.id
        raise ValueError(f"{folder} learned in {trained_on!r}, and {world.name!r} is played")
    if jax.tree.leaves(x.policy.initial_carry(1)):
        raise ValueError(f"{folder} has a policy with memory, and episodes are collected without: train another one")
    state, _ = restore(folder, config, x.learner)
    params, frozen, _ = x.variables(x, state)

    def act(obs: Any, env_state: Any) -> jax.Array:
        if online:
            obs = jax.vmap(lambda row: x.env.unwrapped.observe(innermost(row)))(env_state)
        rows = jax.tree.leaves(obs)[0].shape[0]
        return x.policy.step(params, frozen, obs, (), jnp.zeros(rows, bool))[0].mode()

    return act


def play(
    world: World, level: str, expert: Expert, episodes: int, noise: float, seed: int, lanes: int
) -> tuple[Transitions, Any]:
    """Whole episodes of an expert, a fraction `noise` of whose actions is random.

    **Arguments:** `lanes`, episodes that are played at once.
    **Returns:** the steps, and whether each episode succeeded, bool `[episodes]`. Episode `i` depends on the seed and
    on `i` alone.
    """
    env = world.make(level)
    params = env.default_params
    space = env.action_space(params)

    def act(obs_and_state: Any, carry: Any, first: Any, keys: Any) -> Any:
        random_keys, choose_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        random_action = jax.vmap(space.sample)(choose_keys)
        is_random = jax.vmap(jax.random.uniform)(random_keys) < noise
        is_random = is_random.reshape(-1, *(1,) * (random_action.ndim - 1))
        return jnp.where(is_random, random_action, expert(*obs_and_state)).astype(random_action.dtype), carry, ()

    def view(obs: Any, state: Any) -> dict[str, Any]:
        return {name: obs[0][name] for name in PARTS}

    player = make_player(_WithState(env), params, lambda _: Actor(act), view, chunk=CHUNK)
    steps, success = [], []
    for episode in player((), key_pairs(jax.random.key(seed), episodes), lanes=lanes):
        steps.append(episode.transitions(truncated=episode.truncated & ~episode.terminated))
        success.append(episode.success)
    return jax.tree.map(lambda *x: np.concatenate(x), *steps), np.array(success)


def collect(config: CollectRun) -> dict[str, Any]:
    """Play, or convert the episodes of a file, and write `episodes.parquet` to the run's folder.

    **Returns:** the summary. **Raises:** `ModuleNotFoundError` without pyarrow; for a file, what
    `convert_published` raises; for an agent, what `greedy_of` raises.
    """
    arrow()
    world, level, seed = world_of(config.world), config.level, config.run.seed
    published = convert_published(config.file, world, level, seed) if config.file else None
    expert = greedy_of(config.agent, world) if config.agent else expert_of(world, level)
    with opened(config.run, "kalm-collect") as folder:
        configs.save_config(config, folder / "config.json")
        if published is None:
            data, success = play(world, level, expert, config.episodes, config.noise, seed, config.together)
            rates = {"success": float(success.mean()), "mean_length": len(data) / config.episodes}
            outcome = f"{rates['success']:.1%} with success"
        else:
            data = published
            rates = {"terminated": float(data.terminated.sum() / (data.terminated | data.truncated).sum())}
            outcome = f"of which {rates['terminated']:.1%} end in a terminal state"
        count = int((data.terminated | data.truncated).sum())
        write_episodes(folder, world, level, data)
        summary = {"episodes": count, "steps": len(data), **rates}
        write_summary(folder, summary)
        print(f"{count} episodes of {len(data)} steps, {outcome}; everything is in {folder}")
    return summary
