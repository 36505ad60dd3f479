"""Training runs of GLAM and its baselines: the implementation of `llmrl glam train` and `llmrl glam eval`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import COUNT, at_least, check_seed, in_interval
from llmrl_jax.rl.precision import platform_of
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.build import Glam
from llmrl_jax.systems.glam.config import EMBEDDED
from llmrl_jax.systems.glam.runs import evaluation, random_evaluation, success_table, task_names, write_gif
from llmrl_jax.systems.glam.settings import TrainConfig
from llmrl_jax.workflows import evaluation as run_evaluation, experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, kind_of_run, several_seeds


def make(config: TrainConfig) -> Experiment:
    """The agent of a run, with its environment, learner and evaluation. **Raises:** what `make_agent` raises."""
    agent = make_agent(config.glam)
    players = functools.cache(functools.partial(evaluation, agent))  # compiled once for each number of episodes

    def evaluate(state: Any, key: jax.Array, episodes: int) -> dict[str, dict[str, float]]:
        play = players(episodes)
        return {name: play(state, key, greedy) for name, greedy in (("sampled", False), ("greedy", True))}

    x = Experiment(
        config,
        agent.learner(),
        agent.policy,
        agent.env,
        agent.env_params,
        evaluate=evaluate,
        baseline=lambda state, key, episodes: {"random": random_evaluation(agent, episodes, key)},
        report=lambda results, episodes: success_table(results, task_names(agent)),
        during=lambda state, key: players(config.eval_episodes)(state, key),
        about={"env": config.glam.env},
        film=lambda state, key, path: write_gif(agent, state, key, path),
    )
    # a language model's products occupy a CPU: 8 seeds of the demo take 11.1 times one at once, and 8 one by one
    one_by_one = isinstance(agent, Glam) and platform_of(agent.mesh) == "cpu"
    return several_seeds(x, config.glam.mesh, one_by_one=one_by_one)


def train(config: TrainConfig) -> RunResult:
    """Train an agent, and write the run to its folder.

    **Returns:** the result of the run. **Raises:** what `make_agent` and `llmrl_jax.run.loop.train` raise.
    """
    glam = config.glam
    if (glam.agent, glam.model, glam.tune) == ("llm", EMBEDDED, "lora"):
        print(
            "note: the embedded model is drawn at random, and adapters hardly make up for that: give --model, a folder "
            "or hub id, or --tune full"
        )
    x = make(config)
    with opened(config.run, "glam") as folder:
        return experiments.train(x, folder, at_end=False)


def evaluate(
    folder: Path, *, episodes: int = 1000, checkpoint: int = -1, seed: int = 0, gif: bool = False, json: bool = False
) -> dict[str, dict[str, float]]:
    """Evaluate a checkpoint of a run of `llmrl glam train`: see `llmrl_jax.workflows.evaluation.evaluate`.

    **Returns:** success, return and length for `sampled`, `greedy` and `random` actions.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    at_least("checkpoint", checkpoint, -1)
    kind_of_run(folder)
    config = configs.load_config(TrainConfig, folder / "config.json")
    options: dict[str, Any] = {"checkpoint": checkpoint, "seed": seed, "gif": gif, "json": json}
    return run_evaluation.evaluate(folder, config, episodes=episodes, **options)
