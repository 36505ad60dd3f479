"""Training runs of GLAM and its baselines: the implementation of `llmrl glam train`, and their log as published."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from llmrl_jax.agents.agent import Agent
from llmrl_jax.core.files import new_draft
from llmrl_jax.lm.small import EMBEDDED, refuse_unread_weights
from llmrl_jax.rl.precision import platform_of
from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam.build import Glam, make_agent
from llmrl_jax.systems.glam.config import PRESETS, GlamConfig, TrainConfig
from llmrl_jax.systems.glam.eval import make_experiment
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment, several_seeds


def make(config: TrainConfig, agent: Agent | None = None) -> Experiment:
    """The agent of a run, with its environment, learner and evaluation. **Raises:** what `make_agent` raises."""
    agent = make_agent(config.glam) if agent is None else agent
    x = make_experiment(config, agent, agent.learner())
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
    if glam.agent == "llm" and not config.run.resume:  # runs made before may have what is refused now
        refuse_unread_weights(glam, (GlamConfig(), *PRESETS.values()))
    x = make(config)
    with opened(config.run, "glam") as folder:
        return experiments.train(x, folder, at_end=False)


LOG_COLUMNS = (
    *("update", "episodes", "frames", "FPS", "duration"),
    *(f"return_{statistic}" for statistic in ("mean", "std", "min", "max")),
    "success_rate",
    *(f"reshaped_return_{statistic}" for statistic in ("mean", "std", "min", "max")),
    *(f"reshaped_return_bonus_{statistic}" for statistic in ("mean", "std", "min", "max")),
    *(f"num_frames_{statistic}" for statistic in ("mean", "std", "min", "max")),
    *("entropy", "policy_loss", "value_loss", "loss", "grad_norm"),
)
"""The header of the published `log.csv`."""


def write_log(folder: str | Path, reward_scale: float) -> Path:
    """Write `log.csv` in the published columns, from the training lines of a run's `metrics.jsonl`.

    Episodes and frames are cumulative; the duration is in seconds of training. Values that a run does not record stay
    empty: standard deviations, minima and maxima; means if no episode ended. There is no bonus: 0.

    **Arguments:** `folder`, the run's; `reward_scale`, ratio of the learner's reward to the environment's.
    **Returns:** the file. **Raises:** `FileNotFoundError` if the run has no metrics; `ValueError` if they have no line
    of training.
    """
    source, path = Path(folder) / "metrics.jsonl", Path(folder) / "log.csv"
    if not source.exists():
        raise FileNotFoundError(f"there are no metrics in {folder}: it has no metrics.jsonl")
    needs = ("steps", "seconds", "steps_per_second")
    lines = [line for line in sinks.read(source, needs=needs) if line["kind"] == "train"]
    if not lines:
        raise ValueError(f"{source} has no line of training yet, so there is nothing to export")
    episodes = 0
    with new_draft(path) as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS, restval="")
        writer.writeheader()
        for line in lines:
            values = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            episodes += int(np.nan_to_num(values.get(sinks.COUNT, 0)))
            row = {
                "update": line["update"],
                "episodes": episodes,
                "frames": line["steps"],
                "FPS": line["steps_per_second"],
                "duration": line["seconds"],
                "return_mean": values.get("episode_return", math.nan),
                "success_rate": values.get("success", math.nan),
                "reshaped_return_mean": values.get("episode_return", math.nan) * reward_scale,
                "num_frames_mean": values.get("episode_length", math.nan),
                **{name: 0.0 for name in LOG_COLUMNS if name.startswith("reshaped_return_bonus_")},
                **{name: values.get(name, math.nan) for name in LOG_COLUMNS[-5:]},
            }
            writer.writerow({name: "" if math.isnan(value) else value for name, value in row.items()})
    return path
