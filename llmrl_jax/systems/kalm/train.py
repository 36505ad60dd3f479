"""Offline RL from recorded and imagined episodes: the implementation of `llmrl kalm train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.activity import doing
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_transitions
from llmrl_jax.lm.encoder_weights import AUTO, HASHED, make_encoder, resolved
from llmrl_jax.rl.offline import make_offline
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.rl.registry import algorithm
from llmrl_jax.rl.seeds import select_run, vmap_learners
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.kalm import eval as evaluation
from llmrl_jax.systems.kalm.collect import read_episodes
from llmrl_jax.systems.kalm.config import TrainRun
from llmrl_jax.systems.kalm.ground import has_model, load_model, sentence_vectors
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, LEVELS, REAL, STATE, Cases, World, level_of
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment


def state_of(obs: Any, batch_dims: int = 1) -> jax.Array:
    """The features of an observation: the state without the goal's code, which agents do not see."""
    return obs[STATE].reshape(*obs[STATE].shape[:batch_dims], -1)


def sentence_table(world: World, encoder: str) -> np.ndarray:
    """The vectors of all sentences, float32 `[I, E]`, of length `sqrt(E)`: of length 1, as encoders give them, their
    components would be too small beside the state's for a network to learn from. **Arguments:** `encoder`, see
    `TrainRun.encoder`.

    **Raises:** what `make_encoder` and `load_model` raise; `DataError` for a model of another environment.
    """
    if has_model(encoder):
        return _grounded_table(world, encoder)
    text_encoder = make_encoder(encoder)
    with doing(f"embedding {len(world.instructions.texts)} sentences with {text_encoder.name}"):
        table = np.asarray(text_encoder.encode_texts(world.instructions.texts), np.float32)
    return table * np.sqrt(np.float32(table.shape[1]))


def _grounded_table(world: World, run: str) -> np.ndarray:
    """The vectors of a grounded model, beside those of the hashed words: the model has learned what words of the data
    mean, but words that it cannot tell apart may mean different things, as those of levels that no data show."""
    grounded = load_model(run)
    if grounded.world.name != world.name:
        raise DataError(f"{run} was grounded in {grounded.world.name!r}, and the data are of {world.name!r}")
    vectors = sentence_vectors(grounded, world.instructions.texts)
    return np.concatenate([sentence_table(world, HASHED), vectors], axis=1)


def steps_of(data: Trajectories) -> Transitions:
    """The steps of episodes, without the code of the goal."""
    steps = to_transitions(data)
    obs, after = ({name: x for name, x in part.items() if name != GOAL} for part in (steps.obs, steps.next_obs))
    return steps.replace(obs=obs, next_obs=after)


def succeeded(world: World, level: str, data: Trajectories) -> np.ndarray:
    """Return whether episodes reach their goal by the environment's rules, bool `[E]`."""
    states = jnp.concatenate([data.obs[STATE][:, :1], data.next_obs[STATE]], axis=1)
    _, success = world.rules(level)(data.obs[GOAL][:, 0], states, data.action)
    return np.asarray(jnp.any(jnp.asarray(success) & data.mask, axis=1))


def imagined_of(folder: str, world: World, *, successes: bool) -> Trajectories:
    """The episodes of a run of `llmrl kalm imagine`; with `successes` those that reach their goal.

    **Raises:** what `read_episodes` raises; `DataError` where none reaches its goal.
    """
    _, level, data = read_episodes(folder, world.name, imagined=True)
    if not successes:
        return data
    indices = np.flatnonzero(succeeded(world, level, data))
    if not len(indices):
        raise DataError(
            f"none of the {len(data)} imagined episodes in {folder} reaches its goal: leave --successes out"
        )
    return data.take(jnp.asarray(indices))


def experiment(config: TrainRun, cases: Cases | None = None) -> Experiment:
    """The learner of the run, and its test on all levels.

    **Arguments:** `cases`, where test episodes begin; None: as the environment begins.
    **Raises:** `KeyError` for an unknown algorithm, `ValueError` for one that cannot be used in the environment,
    `DataError` for data of another environment.
    """
    if not config.data:
        raise ValueError("data is empty: give the --data folder of `llmrl kalm collect`")
    with doing("reading the data"):
        world, _, data = read_episodes(config.data)
        imagined = [steps_of(imagined_of(folder, world, successes=config.successes)) for folder in config.imagined_runs]
    world = dataclasses.replace(world, cases=cases)
    env = EpisodeStatistics(world.make(config.levels[0]))
    steps = steps_of(data)
    actions = actions_of(steps, env.action_space(env.default_params), env.id)
    method = algorithm(config.agent).make(config.hyper, actions)
    table = jnp.asarray(sentence_table(world, config.encoder))
    learner = make_offline(method, config.hyper, steps, actions, imagined=imagined, features=state_of, table=table)

    def agents(state: Any) -> list[Any]:
        return [state] if config.seeds == 1 else [select_run(state, i) for i in range(config.seeds)]

    def evaluate(state: Any, key: jax.Array, episodes: int) -> dict[str, Any]:
        played = evaluation.play(world, learner.policy, agents(state), config.levels, episodes, key)
        return evaluation.judged(world, played, episodes, key)

    def variables(x: Experiment, state: Any) -> tuple[Any, Any, Any]:
        first = agents(state)[0]
        return first.params, first.frozen.replace(given=()), x.env_params

    sources = ", ".join(Path(folder).name for folder in config.imagined_runs)
    return Experiment(
        config,
        # keys are split from that of the run, as in the published tables
        learner if config.seeds == 1 else vmap_learners(learner, config.seeds, jax.random.split),
        learner.policy,
        env,
        env.default_params,
        evaluate=evaluate,
        report=lambda results, episodes: evaluation.table(results, config.levels),
        about={"agent": config.agent, "imagined": config.imagined, "successes": config.successes},
        held_out=evaluation.HELD_OUT,
        variables=variables,
        title=f"{config.agent}, {sources or 'no imagined episodes'}",
        unit="gradient steps",
    )


def train(config: TrainRun) -> RunResult:
    """Train, test, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `experiment` and `llmrl_jax.run.loop.train` raise.
    """
    config = type(config)(**{**vars(config), "encoder": resolved(config.encoder)})  # a run goes on with its own
    x = experiment(config)
    with opened(config.run, f"kalm-{config.agent}") as folder:
        return experiments.train(x, folder)


def get_dataset(
    level: str, real: str | Path, imagined: str | Path = "", encoder: str = AUTO
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The recorded episodes, and the imagined ones of a level, in the form of ImagineBench's `env.get_dataset(level)`.

    **Arguments:** `level`; `real`, the folder of a run of `llmrl kalm collect`; `imagined`, that of a run of
    `llmrl kalm imagine`, empty for level `real`; `encoder`, of the sentences, as for `llmrl kalm train`.
    **Returns:** two dicts, the second None for level `real`: `observations` float32 `[N, T, d + E]`, states with the
    sentence vector of the instruction; `actions` int32 `[N, T]` or float32 `[N, T, a]`; `rewards`, `masks` and
    `terminals` `[N, T, 1]`; `instructions`, N sentences. `llmrl_jax.data.masked.write_masked` writes them.
    **Raises:** `ValueError` for an unknown level, and for a level without its episodes; `DataError` for episodes of
    another level or environment; `FileNotFoundError`.
    """
    level = level_of(level, LEVELS)
    if (level == REAL) != (not imagined):
        remedy = "leave imagined out" if imagined else "give the folder of `llmrl kalm imagine` as imagined"
        raise ValueError(f"level is {level!r} and imagined is {str(imagined)!r}: {remedy}")
    world, recorded, data = read_episodes(real)
    if recorded != REAL:
        raise DataError(f"{real} has recorded episodes of level {recorded!r}, and those of {REAL!r} are needed")
    table = sentence_table(world, encoder)
    if level == REAL:
        return _arrays(world, data, table), None
    _, imagined_level, generated = read_episodes(imagined, world.name, imagined=True)
    if imagined_level != level:
        raise DataError(f"{imagined} has episodes of level {imagined_level!r}, and {level!r} is asked for")
    return _arrays(world, data, table), _arrays(world, generated, table)


def _arrays(world: World, data: Trajectories, table: np.ndarray) -> dict[str, Any]:
    mask = np.asarray(data.mask)[..., None]
    number = np.asarray(data.obs[INSTRUCTION])
    sentence = np.where(mask, table[number], 0).astype(np.float32)
    return {
        "observations": np.concatenate([np.asarray(data.obs[STATE]), sentence], axis=-1),
        "actions": np.asarray(data.action),
        "rewards": np.asarray(data.reward)[..., None],
        "masks": mask,
        "terminals": np.asarray(data.terminated)[..., None],
        "instructions": [world.instructions.texts[i] for i in number[:, 0]],
    }
