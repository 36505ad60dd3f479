"""KALM: offline RL from recorded episodes and from those that a language model imagines."""

from __future__ import annotations

from pathlib import Path

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.systems.kalm import published
from llmrl_jax.systems.kalm.config import CollectRun, GroundRun, ImagineRun, TrainRun, settings_class
from llmrl_jax.systems.kalm.worlds import LEVELS


@command(CollectRun)
def collect(config: CollectRun) -> int:
    """Play a scripted expert with noise, and write its episodes with their instructions."""
    from llmrl_jax.systems.kalm import collect as workflow

    workflow.collect(config)
    return 0


@command(
    GroundRun,
    frequent=("data", "model", "tune", "epochs", "run.name", "run.seed", "run.resume", "config"),
    published=published.GROUND,
)
def ground(config: GroundRun) -> int:
    """Ground a language model in recorded episodes: it learns to carry out, predict and explain them.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.kalm import ground as workflow

    workflow.ground(config)
    return 0


@command(ImagineRun, published=published.IMAGINE)
def imagine(config: ImagineRun) -> int:
    """Let a grounded model imagine episodes for other words (`--level rephrase`) or for new goals (`easy`, `hard`).

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.kalm import imagine as workflow

    workflow.imagine_run(config)
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
    published=published.TRAIN,
)
def train(config: TrainRun) -> int:
    """Train an offline algorithm on recorded episodes, or half and half with imagined ones, and test it on all levels.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.kalm import train as workflow

    workflow.train(config)
    return 0


def test(
    folder: tyro.conf.PositionalRequiredArgs[Path],
    levels: tuple[str, ...] = LEVELS,
    episodes: int = 500,
    together: int = 64,
    seed: int = 0,
    cases: Path | None = None,
) -> None:
    """Play an agent of `train` on levels, or a grounded model as a policy, and write `test.json` to its folder.

    Args:
        folder: The folder of a run of `llmrl kalm train`, or of `llmrl kalm ground`.
        levels: The levels.
        episodes: Episodes of each level.
        together: Episodes that a grounded model plays at the same time.
        seed: Seed of the episodes: all agents meet the same first states.
        cases: In CLEVR-Robot: a file of the published test cases of the one level in `levels` (`.npy`), at which
            episodes begin, each at one of them.
    """
    from llmrl_jax.systems.kalm.eval import test_run

    test_run(folder, levels=levels, episodes=episodes, lanes=together, seed=seed, cases=cases)


test.published = published.TEST  # type: ignore[attr-defined]

COMMANDS = {"collect": collect, "ground": ground, "imagine": imagine, "train": train, "test": test}
