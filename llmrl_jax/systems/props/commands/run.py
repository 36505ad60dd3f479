"""`llmrl props run` and `llmrl props list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmrl_jax.options.command import command
from llmrl_jax.systems.props.settings import PropsRun


def read_published_file(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The options in a file of `--config` with one of the two published schemas; options that are read differently are
    printed."""
    if "gym_env_name" not in values and "task" not in values:
        return values
    from llmrl_jax.core.config import to_json
    from llmrl_jax.systems.props.published import read_published

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


FREQUENT = (
    *("tasks", "method", "seeds", "iterations", "episodes", "proposals", "chat.model", "chat.base-url"),
    *("chat.max-usd", "workers", "video", "config", "run.name", "run.seed", "run.resume"),
)


@command(PropsRun, read=read_published_file, frequent=FREQUENT)
def run(config: PropsRun) -> int:
    """Search for policies: ProPS, ProPS+, EvoLLM, the legacy dialogue, or a numeric method, on any of the tasks.

    Without a model it queries a scripted adviser, which is not a language model. `--config FILE` reads both published
    YAML schemas unchanged. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.props.search_run import run_searches

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
        print(
            json_text(
                [
                    {
                        "task": task.name,
                        "world": task.env,
                        "parameters": task.num_params,
                        "optimum_in_prompts": task.props.optimum,
                        "published": {
                            m: {"mean": mean, "spread": spread} for m, (mean, spread) in task.published.items()
                        },
                    }
                    for task in TASKS.values()
                ]
            )
        )
        return
    rows = [["task", "world", "parameters", "optimum in prompts", "ProPS", "ProPS+"]]
    for task in TASKS.values():
        figures = [
            f"{task.published[m][0]:.2f} +- {task.published[m][1]:.2f}" if m in task.published else ""
            for m in ("ProPS", "ProPS+")
        ]
        optimum = "" if task.props.optimum is None else f"{task.props.optimum:g}"
        rows.append([task.name, task.env, str(task.num_params), optimum, *figures])
    print(text_table(rows))
