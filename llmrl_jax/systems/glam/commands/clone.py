"""`llmrl glam clone`: a language model imitates demonstrations."""

from __future__ import annotations

from llmrl_jax.options.command import Get, command
from llmrl_jax.systems.glam import cloning
from llmrl_jax.systems.glam.settings import CloneRun


PRESET_HELP = """Starting point: `bc` (published values, every weight), `bc-lora` (the same with adapters), `bc-demo`
(small)."""


def start(get: Get) -> CloneRun:
    """The settings of a preset."""
    glam, clone = cloning.preset(get("preset") or "bc")
    return CloneRun(glam=glam, clone=clone)


FREQUENT = (
    *("preset", "env", "model", "demos", "from", "pairs", "epochs", "tune", "sft.batch-size", "sft.learning-rate"),
    *("mesh", "config", "run.name", "run.seed", "run.resume"),
)


@command(CloneRun, start=start, preset="bc", preset_help=PRESET_HELP, frequent=FREQUENT)
def clone(config: CloneRun) -> int:
    """Fine-tune a language model on demonstrations by the bot, from a file or by another run's agent; flags override
    the preset.

    Evaluates before and after, and writes `model/`, for the `--model` of `train` and `test`; with `--tune lora` also
    the adapters as `adapter/`, which peft loads. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.glam import cloning_run

    cloning_run.clone(config)
    return 0
