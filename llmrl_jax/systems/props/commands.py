"""ProPS: a language model searches for a policy's parameters; also numeric methods, and its fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.systems.props.config import FinetuneRun, PropsRun, TableConfig, preset


def read_published_file(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The options in a file of `--config` with one of the two published schemas; options that are read differently are
    printed."""
    if "gym_env_name" not in values and "task" not in values:
        return values
    from llmrl_jax.core.config import to_json
    from llmrl_jax.systems.props.compat.published import read_published

    published = read_published(values, path.name, path.parent)
    print(f"{path.name}: the published schema `{published.schema}`")
    for note in published.notes:
        print(f"  note: {note}")
    return {
        "tasks": [published.task],
        "seeds": published.seeds,
        "search": to_json(published.config),
        "chat": {"model": published.model, "adapter": published.adapter},
        "video": published.record_video,
        "print_every": published.print_every or 50,
        "run": {"name": Path(published.logdir).name},
    }


RUN_FREQUENT = (
    *("tasks", "method", "seeds", "iterations", "episodes", "proposals", "chat.model", "chat.base-url"),
    *("chat.max-usd", "workers", "video", "config", "run.name", "run.seed", "run.resume"),
)


@command(PropsRun, read=read_published_file, frequent=RUN_FREQUENT)
def run(config: PropsRun) -> int:
    """Search for policies: ProPS, ProPS+, EvoLLM, the legacy dialogue, or a numeric method, on any of the tasks.

    Without a model it queries a scripted adviser, which is not a language model. `--config FILE` reads both published
    YAML schemas unchanged. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.props.train import run_searches

    return run_searches(config)


def list_tasks(json: bool = False) -> None:
    """Print the tasks with their environments, policies and published results.

    Args:
        json: Print them as JSON, with all published results.
    """
    from llmrl_jax.core.files import json_text
    from llmrl_jax.report.figures import text_table
    from llmrl_jax.systems.props.tasks import TASKS

    if json:
        values = [
            {
                "task": task.name, "world": task.env, "parameters": task.num_params,
                "optimum_in_prompts": task.props.optimum,
                "published": {m: {"mean": mean, "spread": spread} for m, (mean, spread) in task.published.items()},
            }
            for task in TASKS.values()
        ]  # fmt: skip
        print(json_text(values))
        return
    rows = [["task", "world", "parameters", "optimum in prompts", "ProPS", "ProPS+"]]
    for task in TASKS.values():
        pairs = (task.published.get(method) for method in ("ProPS", "ProPS+"))
        results = (f"{pair[0]:.2f} +- {pair[1]:.2f}" if pair else "" for pair in pairs)
        optimum = "" if task.props.optimum is None else f"{task.props.optimum:g}"
        rows.append([task.name, task.env, str(task.num_params), optimum, *results])
    print(text_table(rows))


@command(TableConfig)
def table(config: TableConfig) -> int:
    """Measure several methods on the fifteen tasks, and write a page and JSON with the published results for
    comparison.

    `--run.resume runs/props-table` continues stopped searches, and adds tasks and methods to the page."""
    from llmrl_jax.systems.props.table import make_table

    return make_table(config)


PRESET_HELP = "Starting point: `corrected`, or `published` with what is wrong with it (`--compat`)."


def start(get: Get) -> FinetuneRun:
    """The settings of a preset, which does not set the model."""
    return replace(preset(get("preset") or "corrected"), model=tyro.MISSING)


FINETUNE_FREQUENT = (
    *("preset", "model", "tasks", "held-out-tasks", "updates", "tune", "grpo.prompts", "grpo.group"),
    *("grpo.learning-rate", "mesh", "config", "run.name", "run.seed", "run.resume"),
)


@command(FinetuneRun, start=start, preset="corrected", preset_help=PRESET_HELP, frequent=FINETUNE_FREQUENT)
def finetune(config: FinetuneRun) -> int:
    """Fine-tune a language model as the optimizer by GRPO; rewards are the returns of the policies that it proposes.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`), and the held-out
    reward before and after in `summary.json`. Nothing is uploaded anywhere.
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.props.finetune import finetune

    finetune(config)
    return 0


COMMANDS = {"run": run, "list": list_tasks, "table": table, "finetune": finetune}
