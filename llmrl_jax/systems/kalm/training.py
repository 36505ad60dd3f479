"""Offline RL from recorded and imagined episodes, and its test on all levels: `llmrl kalm train` and `test`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.core.activity import doing
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_transitions
from llmrl_jax.lm.encoder_names import HASHED, make_encoder, resolved
from llmrl_jax.rl.offline import OfflineLearner, OfflinePolicy, make_offline
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.rl.registry import algorithm
from llmrl_jax.rl.seeds import select_run, vmap_learners
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.kalm import grounded
from llmrl_jax.systems.kalm.collecting import read
from llmrl_jax.systems.kalm.config import TrainRun
from llmrl_jax.systems.kalm.worlds import GOAL, LEVELS, STATE, World
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment


@dataclass(frozen=True)
class Made:
    """The objects that a run's settings describe."""

    world: World
    learner: OfflineLearner
    seeds: int = 1

    @property
    def policy(self) -> OfflinePolicy:
        return self.learner.policy

    @property
    def program(self) -> Any:
        """The learner of all agents. Their keys are split from that of the run, as in the published tables."""
        return self.learner if self.seeds == 1 else vmap_learners(self.learner, self.seeds, jax.random.split)

    def agents(self, state: Any) -> list[Any]:
        """The state of each agent. **Arguments:** `state`, of `program`."""
        return [state] if self.seeds == 1 else [select_run(state, i) for i in range(self.seeds)]


def state_of(obs: Any, batch_dims: int = 1) -> jax.Array:
    """The features of an observation: the state without the goal's code, which agents do not see."""
    return obs[STATE].reshape(*obs[STATE].shape[:batch_dims], -1)


def sentence_table(world: World, encoder: str) -> np.ndarray:
    """The vectors of all sentences, float32 `[I, E]`, of length `sqrt(E)`: of length 1, as encoders give them, their
    components would be too small beside the state's for a network to learn from. **Arguments:** `encoder`, see
    `TrainRun.encoder`.

    **Raises:** what `make_encoder` and `grounded.load` raise; `DataError` for a model of another world.
    """
    if grounded.is_run(encoder):
        return _grounded_table(world, encoder)
    made = make_encoder(encoder)
    with doing(f"embedding {len(world.instructions.texts)} sentences with {made.name}"):
        table = np.asarray(made.encode_texts(world.instructions.texts), np.float32)
    return table * np.sqrt(np.float32(table.shape[1]))


def _grounded_table(world: World, run: str) -> np.ndarray:
    """The vectors of a grounded model, beside those of the hashed words: the model has learned what words of the data
    mean, but words that it cannot tell apart may mean different things, as those of levels that no data show."""
    found = grounded.load(run)
    if found.world.name != world.name:
        raise DataError(f"{run} was grounded in {found.world.name!r}, and the data are of {world.name!r}")
    vectors = grounded.sentence_vectors(found, world.instructions.texts)
    return np.concatenate([sentence_table(world, HASHED), vectors], axis=1)


def steps_of(data: Trajectories) -> Transitions:
    """The steps of episodes, without the code of the goal."""
    steps = to_transitions(data)
    obs, after = ({name: x for name, x in part.items() if name != GOAL} for part in (steps.obs, steps.next_obs))
    return steps.replace(obs=obs, next_obs=after)


def succeeded(world: World, level: str, data: Trajectories) -> np.ndarray:
    """Which episodes reach their goal by the world's rules, bool `[E]`."""
    states = jnp.concatenate([data.obs[STATE][:, :1], data.next_obs[STATE]], axis=1)
    _, success = world.rules(level)(data.obs[GOAL][:, 0], states, data.action)
    return np.asarray(jnp.any(jnp.asarray(success) & data.mask, axis=1))


def imagined_of(folder: str, world: World, *, successes: bool) -> Trajectories:
    """The episodes of a run of `llmrl kalm imagine`; with `successes` those that reach their goal.

    **Raises:** what `collecting.read` raises; `DataError` where none reaches its goal.
    """
    _, level, data = read(folder, world.name, imagined=True)
    if not successes:
        return data
    kept = np.flatnonzero(succeeded(world, level, data))
    if not len(kept):
        raise DataError(
            f"none of the {len(data)} imagined episodes in {folder} reaches its goal: leave --successes out"
        )
    return data.take(jnp.asarray(kept))


def make(config: TrainRun) -> Made:
    """The world and the learner of a run.

    **Raises:** `KeyError` for an unknown algorithm, `ValueError` for one that cannot be used in the world, `DataError`
    for data of another world.
    """
    if not config.data:
        raise ValueError("data is empty: give the --data folder of `llmrl kalm collect`")
    with doing("reading the data"):
        world, _, data = read(config.data)
        imagined = [steps_of(imagined_of(folder, world, successes=config.successes)) for folder in config.imagined_runs]
    env = world.make(LEVELS[0])
    steps = steps_of(data)
    actions = actions_of(steps, env.action_space(env.default_params), env.id)
    entry = algorithm(config.agent)
    method = entry.make(config.hyper, actions)
    table = sentence_table(world, config.encoder)
    learner = make_offline(
        method, config.hyper, steps, actions, imagined=imagined, features=state_of, table=jnp.asarray(table)
    )
    return Made(world, learner, config.seeds)


def experiment(config: TrainRun) -> Experiment:
    """What a run trains, and its test on all levels. **Raises:** what `make` raises."""
    from llmrl_jax.systems.kalm import testing  # which loads what this module makes

    made = make(config)

    def evaluate(state: Any, key: jax.Array, episodes: int) -> dict[str, Any]:
        played = testing.play(made, made.agents(state), config.levels, episodes, key)
        return testing.judged(made.world, played, episodes, key)

    def variables(x: Experiment, state: Any) -> tuple[Any, Any, Any]:
        first = made.agents(state)[0]
        return first.params, first.frozen.replace(given=()), x.env_params

    env = EpisodeStatistics(made.world.make(config.levels[0]))
    imagined = ", ".join(Path(folder).name for folder in config.imagined_runs)
    return Experiment(
        config,
        made.program,
        made.policy,
        env,
        env.default_params,
        evaluate=evaluate,
        report=lambda results, episodes: testing.table(results, config.levels),
        about={"agent": config.agent, "imagined": config.imagined, "successes": config.successes},
        held_out=testing.HELD_OUT,
        variables=variables,
        title=f"{config.agent}, {imagined or 'no imagined episodes'}",
        unit="gradient steps",
    )


def train(config: TrainRun) -> RunResult:
    """Train, test, and write the run to its folder, with `eval-UPDATE.json`.

    **Returns:** how it ended. **Raises:** what `make` and `llmrl_jax.run.loop.train` raise.
    """
    config = type(config)(**{**vars(config), "encoder": resolved(config.encoder)})  # a run goes on with its own
    x = experiment(config)
    with opened(config.run, f"kalm-{config.agent}") as folder:
        return experiments.train(x, folder)
