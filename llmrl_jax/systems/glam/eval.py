"""Held-out episodes of GLAM's agents, their summaries and tables, and the checkpoints of runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.agents.agent import Agent
from llmrl_jax.agents.competence import calibration
from llmrl_jax.agents.evaluate import Episodes, make_evaluator, play_random
from llmrl_jax.agents.language import LanguagePolicy
from llmrl_jax.agents.play import record_episode
from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.checks import COUNT, at_least, check_seed, in_interval
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.report.figures import text_table
from llmrl_jax.report.video import write_episode
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import CloneRun, TrainConfig
from llmrl_jax.workflows import evaluation as run_evaluation
from llmrl_jax.workflows.experiment import Experiment, Language, check_saved, kind_of_run, restore_first


Weights = Callable[[Any], tuple[Any, Any]]
"""From a learner's state to `(params, frozen)` of its policy."""


def weights_of(state: Any) -> tuple[Any, Any]:
    return state.params, state.frozen


def summarise(episodes: Episodes, tasks: Sequence[str]) -> dict[str, float]:
    """Success with its 95% Wilson interval, return and length, and the calibration of success estimates if the policy
    gives any; also per task if there are several."""

    def rate(chosen: Any) -> dict[str, float]:
        success = episodes.success[chosen]
        estimates = {} if episodes.estimate is None else calibration(episodes.estimate[chosen], success)
        return {**stats.wilson(int(success.sum()), int(success.size)).results("success"), **estimates}

    summary = rate(slice(None))
    summary["episode_return"] = float(episodes.episode_return.mean())
    summary["episode_length"] = float(episodes.episode_length.mean())
    summary["episodes"] = float(episodes.success.size)
    if len(tasks) > 1:
        for i, task in enumerate(tasks):
            summary |= {f"{task}/{name}": value for name, value in rate(episodes.task == i).items()}
    return summary


def task_names(agent: Agent) -> Sequence[str]:
    return getattr(agent.env.unwrapped, "task_names", ("task",))  # type: ignore[attr-defined]


def evaluation(agent: Agent, episodes: int, weights: Weights = weights_of) -> Callable[..., dict[str, float]]:
    """`(state, key, greedy=False) -> summary`, one compiled program."""
    run = make_evaluator(agent.env, agent.env_params, agent.policy, episodes=episodes)

    def evaluate(state: Any, key: jax.Array, greedy: bool = False) -> dict[str, float]:
        return summarise(run(*weights(state), key, greedy=greedy), task_names(agent))

    return evaluate


def random_evaluation(agent: Agent, episodes: int, key: jax.Array) -> dict[str, float]:
    """The summary of random actions, among those that the agent has, in the episodes that `evaluation` plays with the
    same key."""
    actions = agent.config.num_actions
    played = play_random(agent.env, agent.env_params, key, episodes=episodes, num_actions=actions)
    return summarise(played, task_names(agent))


def make_experiment(
    config: Any, agent: Agent, learner: Learner, weights: Weights = weights_of, **options: Any
) -> Experiment:
    """A run that trains an agent, evaluated with sampled and greedy actions beside random ones.

    **Arguments:** `config`, a `TrainConfig` or `CloneRun`; `options`, further fields of `Experiment`.
    """
    players = functools.cache(lambda episodes: evaluation(agent, episodes, weights))  # compiled once for each number

    def evaluate(state: Any, key: jax.Array, episodes: int) -> dict[str, dict[str, float]]:
        return {mode: players(episodes)(state, key, greedy) for mode, greedy in (("sampled", False), ("greedy", True))}

    defaults: dict[str, Any] = {
        "evaluate": evaluate,
        "baseline": lambda state, key, episodes: {"random": random_evaluation(agent, episodes, key)},
        "report": lambda results, episodes: success_table(results, task_names(agent)),
        "during": lambda state, key: players(config.eval_episodes)(state, key),
        "about": {"env": config.glam.env},
        "variables": lambda x, state: (*weights(state), x.env_params),
        "video": lambda state, key, path: write_gif(agent, *weights(state), key, path),
    }
    if isinstance(agent.policy, LanguagePolicy):
        base = "" if config.glam.model == EMBEDDED else config.glam.model
        glam: Any = agent
        defaults["language"] = Language(agent.policy.model, glam.tokenizer, base)
    return Experiment(config, learner, agent.policy, agent.env, agent.env_params, **{**defaults, **options})


ESTIMATES = {"estimate": "estimated before", "brier": "Brier score", "calibration_error": "calibration error"}
"""Labels in `success_table` of the results of `calibration`."""


def success_table(results: Mapping[str, Mapping[str, float]], tasks: Sequence[str]) -> str:
    """Success by row of `results` and by task, with intervals; below each, the policy's own estimates."""
    columns = ["", *(tasks if len(tasks) > 1 else ())]
    rows = [["success", "all" if len(tasks) > 1 else tasks[0], *columns[1:]]]
    for name, values in results.items():
        rates = (stats.estimate_of(values, f"{task}/success" if task else "success") for task in columns)
        rows.append([name, *map(str, rates)])
        for part, label in ESTIMATES.items():
            if part in values:
                estimates = (values[f"{task}/{part}" if task else part] for task in columns)
                rows.append([f"  {label}", *(f"{value:.3f}" for value in estimates)])
    return text_table(rows)


def write_gif(agent: Agent, params: Any, frozen: Any, key: jax.Array, path: Path) -> Path:
    """Write a GIF of an episode of at least five steps, or of the fifth episode if the first four are shorter."""
    for i in range(5):
        frames, success = record_episode(
            agent.env, agent.env_params, agent.policy, params, frozen, jax.random.fold_in(key, i)
        )
        if len(frames) > 5:
            break
    return write_episode(path, agent.env, frames, success)


# --- finished and interrupted runs ------------------------------------------------------------------------------------


def load_run(folder: Path, checkpoint: int) -> tuple[TrainConfig, Any, Any, int]:
    """A run of `llmrl glam train`: its settings, its `Agent` (a `Glam` for the language model), a checkpoint's state
    (-1: the newest) and its update.

    **Raises:** `FileNotFoundError` for a missing run or checkpoint."""
    kind_of_run(folder)
    config = configs.load_config(TrainConfig, folder / "config.json")
    check_saved(folder, checkpoint)
    agent = make_agent(config.glam)
    return config, agent, *restore_first(folder, config, agent.learner(), checkpoint)


def evaluate(
    folder: Path, *, episodes: int = 1000, checkpoint: int = -1, seed: int = 0, gif: bool = False, json: bool = False
) -> dict[str, dict[str, float]]:
    """Evaluate a checkpoint of a run of `llmrl glam train` or `clone`: see `llmrl_jax.workflows.evaluation.evaluate`.

    **Returns:** success, return and length for `sampled`, `greedy` and `random` actions.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    at_least("checkpoint", checkpoint, -1)
    settings = CloneRun if kind_of_run(folder) == CloneRun.KIND else TrainConfig
    config = configs.load_config(settings, folder / "config.json")
    options: dict[str, Any] = {"checkpoint": checkpoint, "seed": seed, "gif": gif, "json": json}
    return run_evaluation.evaluate(folder, config, episodes=episodes, **options)
