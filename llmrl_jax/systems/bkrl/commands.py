"""BK-RL: a language model's background knowledge as a shaping potential."""

from __future__ import annotations

from llmrl_jax.options.command import Get, command
from llmrl_jax.systems.bkrl import published
from llmrl_jax.systems.bkrl.config import CodeRun, CollectRun, GoalsRun, PreferRun, TrainRun, preset


PRESET_HELP = """Starting point: `babyai`, `crafter` (two cores: the published hyper-parameters of PPO, dense networks
of symbols); `babyai-published`, `crafter-published` (with the published convolutions)."""


ASKING = (
    *("data", "env", "window", "chat.model", "chat.base-url", "chat.max-usd", "config"),
    *("run.name", "run.seed", "run.resume"),
)


def start_collect(get: Get) -> CollectRun:
    """The settings of a preset."""
    return CollectRun(agent=preset(get("preset") or "babyai", collects=True))


@command(CollectRun, start=start_collect, preset="babyai", preset_help=PRESET_HELP, published=published.COLLECT)
def collect(config: CollectRun) -> int:
    """Play an agent that seeks novelty, and write whole episodes at intervals, for a chat model to look at.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.bkrl import collect as workflow

    workflow.collect(config)
    return 0


def start_train(get: Get) -> TrainRun:
    """The settings of a preset."""
    return TrainRun(agent=preset(get("preset") or "babyai"))


@command(TrainRun, start=start_train, preset="babyai", preset_help=PRESET_HELP, published=published.TRAIN)
def train(config: TrainRun) -> int:
    """Train PPO with the environment's reward and a shaping potential, or a control; flags override the preset.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.bkrl import train as workflow

    workflow.train(config)
    return 0


@command(CodeRun, frequent=ASKING, published=published.CODE)
def code(config: CodeRun) -> int:
    """Ask a chat model for a potential as a program, show it what the program says, and keep the best one.

    Programs run behind a sandbox. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.bkrl import programs

    programs.write_programs(config)
    return 0


@command(PreferRun, frequent=(*ASKING, "pairs"), published=published.PREFER)
def prefer(config: PreferRun) -> int:
    """Ask a chat model which of two pieces of play is better, and learn a potential from its answers.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.bkrl import preferences

    preferences.prefer(config)
    return 0


@command(GoalsRun, frequent=(*ASKING, "encoder", "texts"), published=published.GOALS)
def goals(config: GoalsRun) -> int:
    """Ask a chat model for goals in collected situations; nearness to them is the potential.

    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.bkrl import goals

    goals.propose(config)
    return 0


COMMANDS = {"collect": collect, "code": code, "prefer": prefer, "goals": goals, "train": train}
