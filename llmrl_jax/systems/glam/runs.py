"""Shared by GLAM's workflows: loading a run's checkpoints, and held-out episodes with their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.agents.competence import calibration
from llmrl_jax.agents.contract import Agent
from llmrl_jax.agents.evaluate import Episodes, make_evaluator, play_random
from llmrl_jax.agents.recording import record_episode
from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.checks import at_least
from llmrl_jax.report.video import write_episode
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.settings import TrainConfig
from llmrl_jax.workflows.experiment import HELD_OUT as HELD_OUT, check_saved, kind_of_run, restore_first


def summarise(episodes: Episodes, tasks: Sequence[str]) -> dict[str, float]:
    """Success with its 95% Wilson interval, return and length, and the calibration of success estimates if the policy
    gives any; also per task if there are several."""

    def rate(chosen: Any) -> dict[str, float]:
        won = episodes.success[chosen]
        interval = stats.wilson(int(won.sum()), int(won.size))
        guessed = {} if episodes.estimate is None else calibration(episodes.estimate[chosen], won)
        return {"success": interval.mean, "success_low": interval.low, "success_high": interval.high, **guessed}

    out = rate(slice(None))
    out["episode_return"] = float(episodes.episode_return.mean())
    out["episode_length"] = float(episodes.episode_length.mean())
    out["episodes"] = float(episodes.success.size)
    if len(tasks) > 1:
        for i, task in enumerate(tasks):
            out |= {f"{task}/{name}": value for name, value in rate(episodes.task == i).items()}
    return out


def task_names(agent: Agent) -> Sequence[str]:
    return getattr(agent.env.unwrapped, "task_names", ("task",))  # type: ignore[attr-defined]


def evaluation(agent: Agent, episodes: int) -> Callable[..., dict[str, float]]:
    """`(state, key, greedy=False) -> summary`, one compiled program."""
    run = make_evaluator(agent.env, agent.env_params, agent.policy, episodes=episodes)

    def evaluate(state: Any, key: jax.Array, greedy: bool = False) -> dict[str, float]:
        return summarise(run(state.params, state.frozen, key, greedy=greedy), task_names(agent))

    return evaluate


def random_evaluation(agent: Agent, episodes: int, key: jax.Array) -> dict[str, float]:
    """The summary of random actions, among those that the agent has, in the episodes that `evaluation` plays with the
    same key."""
    actions = agent.config.num_actions
    played = play_random(agent.env, agent.env_params, key, episodes=episodes, num_actions=actions)
    return summarise(played, task_names(agent))


def updates_of(learner: Any, steps: int) -> int:
    at_least("steps", steps, 1)
    return -(-steps // learner.steps_per_update)


def load_run(folder: Path, checkpoint: int) -> tuple[TrainConfig, Any, Any, int]:
    """A finished or interrupted run: its settings, its `Agent` (a `Glam` for the language model), a checkpoint's state
    (-1: the newest) and its update.

    **Raises:** `FileNotFoundError` for a missing run or checkpoint."""
    kind_of_run(folder)
    config = configs.load_config(TrainConfig, folder / "config.json")
    check_saved(folder, checkpoint)
    agent = make_agent(config.glam)
    return config, agent, *restore_first(folder, config, agent.learner(), checkpoint)


ESTIMATES = {"estimate": "estimated before", "brier": "Brier score", "calibration_error": "calibration error"}
"""Labels in `success_table` of the results of `calibration`."""


def success_table(found: Mapping[str, Mapping[str, float]], tasks: Sequence[str]) -> str:
    """Success by row of `found` and by task, with intervals; below each, the policy's own estimates."""
    columns = ["", *(tasks if len(tasks) > 1 else ())]
    header = ["success", "all" if len(tasks) > 1 else tasks[0], *columns[1:]]
    rows = [header]
    for name, values in found.items():
        cells = [name]
        for task in columns:
            prefix = f"{task}/" if task else ""
            rate, low, high = (values[f"{prefix}{part}"] for part in ("success", "success_low", "success_high"))
            cells.append(f"{rate:.3f} [{low:.3f}, {high:.3f}]")
        rows.append(cells)
        for part, said in ESTIMATES.items():
            if part in values:
                guessed = (values[f"{task}/{part}" if task else part] for task in columns)
                rows.append([f"  {said}", *(f"{value:.3f}" for value in guessed)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def write_gif(agent: Agent, state: Any, key: jax.Array, path: Path) -> Path:
    """Write a GIF of an episode of at least five steps, or of the fifth episode if the first four are shorter."""
    for i in range(5):
        frames, success = record_episode(
            agent.env, agent.env_params, agent.policy, state.params, state.frozen, jax.random.fold_in(key, i)
        )
        if len(frames) > 5:
            break
    return write_episode(path, agent.env, frames, success)
