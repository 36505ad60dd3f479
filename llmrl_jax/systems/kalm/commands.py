"""KALM: offline RL from recorded episodes and from those that a language model imagines."""

from __future__ import annotations

from llmrl_jax.run.flags import Get, command
from llmrl_jax.systems.kalm.config import CollectRun, GroundRun, ImagineRun, TrainRun, settings_class


@command(CollectRun)
def collect(config: CollectRun) -> int:
    """Play a scripted expert with noise, and write its episodes with their instructions."""
    from llmrl_jax.systems.kalm import collecting

    collecting.collect(config)
    return 0


@command(GroundRun, frequent=("data", "model", "tune", "epochs", "run.name", "run.seed", "run.resume", "config"))
def ground(config: GroundRun) -> int:
    """Ground a language model in recorded episodes: it learns to carry out, predict and explain them.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.kalm import ground as grounding

    grounding.ground(config)
    return 0


@command(ImagineRun)
def imagine(config: ImagineRun) -> int:
    """Let a grounded model imagine episodes for other words (`--level rephrase`) or for new goals (`easy`, `hard`)."""
    from llmrl_jax.systems.kalm import imagining

    imagining.imagine_run(config)
    return 0


def start_train(get: Get) -> TrainRun:
    """The settings of an algorithm."""
    return settings_class(get("agent") or "bc")()


@command(
    TrainRun,
    start=start_train,
    frequent=(
        "agent",
        "data",
        "imagined",
        "levels",
        "encoder",
        "steps",
        "run.name",
        "run.seed",
        "run.resume",
        "config",
    ),
)
def train(config: TrainRun) -> int:
    """Train an offline algorithm on recorded episodes, or half and half with imagined ones, and test it on all levels.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.kalm import training

    training.train(config)
    return 0


COMMANDS = {"collect": collect, "ground": ground, "imagine": imagine, "train": train}
