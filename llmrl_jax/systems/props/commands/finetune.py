"""`llmrl props finetune`."""

from __future__ import annotations

from dataclasses import replace

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.systems.props import settings
from llmrl_jax.systems.props.settings import FinetuneRun


PRESET_HELP = "Starting point: `corrected`, or `published` with what is wrong with it (`--compat`)."


def start(get: Get) -> FinetuneRun:
    """The settings of a preset, which does not set the model."""
    return replace(settings.preset(get("preset") or "corrected"), model=tyro.MISSING)


FREQUENT = (
    *("preset", "model", "tasks", "held-out-tasks", "updates", "tune", "grpo.prompts", "grpo.group"),
    *("grpo.learning-rate", "mesh", "config", "run.name", "run.seed", "run.resume"),
)


@command(FinetuneRun, start=start, preset="corrected", preset_help=PRESET_HELP, frequent=FREQUENT)
def finetune(config: FinetuneRun) -> int:
    """Fine-tune a language model as the optimizer by GRPO; rewards are the returns of the policies that it proposes.

    Writes `adapter/`, which peft loads (or `model/`, which transformers loads, with `--tune full`), and the held-out
    reward before and after in `summary.json`. Nothing is uploaded anywhere.
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.props import finetune_run

    finetune_run.finetune(config)
    return 0
