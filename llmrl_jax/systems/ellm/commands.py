"""ELLM: a language model suggests goals, and reaching them is the reward."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro

from llmrl_jax.options.command import Get, command
from llmrl_jax.options.settings import blank, draft
from llmrl_jax.systems.ellm import published
from llmrl_jax.systems.ellm.config import (
    AGENTS,
    EMBEDDED,
    AccuracyRun,
    AnswersRun,
    CollectRun,
    EllmConfig,
    ExploreRun,
    FinetuneRun,
    OfflineRun,
    PretrainRun,
    preset,
)


PRESET_HELP = """Starting point: `embedded` (minutes on two cores: symbols and captions), `pixels` (two cores: small
pictures and captions), `published` (the published pictures and hyper-parameters; a memory of 38 GB),
`housekeep` and `housekeep-macro` (tasks of Housekeep); the baselines `novelty`, `uniform`, `extrinsic`, `rnd`,
`noveld`, `apt`."""


def start(get: Get) -> PretrainRun:
    """The settings of a preset."""
    return PretrainRun(ellm=preset(get("preset") or "embedded"))


FREQUENT = (
    *("preset", "env", "observe", "suggester", "threshold", "encoder", "learner", "bonus", "steps", "seeds"),
    *("dqn.num-envs", "dqn.learning-rate", "chat.model", "chat.base-url", "chat.max-usd", "mesh", "config"),
    *("run.name", "run.seed", "run.resume", "run.eval-every", "run.checkpoint-every"),
)


@command(
    PretrainRun,
    start=start,
    preset="embedded",
    preset_help=PRESET_HELP,
    frequent=FREQUENT,
    published=published.PRETRAIN,
)
def pretrain(config: PretrainRun) -> int:
    """Train an agent whose reward is to reach suggested goals; flags override the preset.

    Goals come from the scripted oracle unless `--suggester chat` and `--chat.model` name a language model.
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.ellm import train

    train.pretrain(config)
    return 0


AFTER = (
    *("from", "task", "subgoals", "steps", "dqn.learning-rate", "dqn.epsilon-start", "config"),
    *("run.name", "run.seed", "run.resume", "run.eval-every"),
)


def _pretrained(get: Get) -> EllmConfig:
    """The settings of the run named by `--from`; those of the embedded preset if none is."""
    from llmrl_jax.core.config import load_config, read_json

    folder = get("from")
    file = Path(folder) / "config.json" if folder else None
    if file is None or not file.exists():
        return preset("embedded")
    kind = read_json(file).get("kind", "")
    run: Any = load_config(AGENTS.get(kind, PretrainRun), file)
    ellm: EllmConfig = run.ellm
    if kind == OfflineRun.KIND:  # its replay buffer had the size of the recorded one, and was full from the start
        usual = EMBEDDED.dqn
        size = max(ellm.dqn.replay_size, usual.replay_size)
        return replace(ellm, dqn=replace(ellm.dqn, replay_size=size, learning_starts=usual.learning_starts))
    return ellm


def _with_ellm(kind: type, ellm: EllmConfig) -> Any:
    """A run's settings with defaults except for `ellm`; what is required is missing."""
    usual = blank(kind)
    return draft(kind, {f.name: getattr(usual, f.name) for f in fields(kind)} | {"ellm": ellm})


def start_finetune(get: Get) -> FinetuneRun:
    """The pretrained agent's settings with the published changes: half of the actions random until the first reward and
    fewer from then on, and a learning rate that is about a third."""
    ellm = _pretrained(get)
    rate = ellm.dqn.learning_rate * 0.32
    dqn = replace(ellm.dqn, epsilon_start=0.5, epsilon_after_reward=True, learning_rate=rate)
    return _with_ellm(FinetuneRun, replace(ellm, dqn=dqn))


def start_explore(get: Get) -> ExploreRun:
    """The pretrained agent's settings; epsilon waits for the first reward."""
    ellm = _pretrained(get)
    return _with_ellm(ExploreRun, replace(ellm, dqn=replace(ellm.dqn, epsilon_after_reward=True)))


@command(
    FinetuneRun,
    start=start_finetune,
    frequent=(*AFTER[:3], "tune", "reinit", "value", *AFTER[3:]),
    published=published.FINETUNE,
)
def finetune(config: FinetuneRun) -> int:
    """Train a pretrained agent on one task: all of its weights, its heads, or the last layer of each.

    Settings are those of the pretrained run; `--run.resume runs/NAME` continues a run with its own."""
    from llmrl_jax.systems.ellm import train

    train.finetune(config)
    return 0


@command(CollectRun, frequent=("from", "checkpoint", "env", "episodes", "epsilon", "run.name", "run.seed"))
def collect(config: CollectRun) -> int:
    """Record episodes of a pretrained agent, or of random play, for `llmrl ellm offline`."""
    from llmrl_jax.systems.ellm import collect as workflow

    workflow.collect(config)
    return 0


def start_offline(get: Get) -> OfflineRun:
    """The settings of the run that recorded the steps, without a bonus; the oracle's goals instead of those of a chat
    model, and instead of a bonus that was the only reward."""
    folder = get("buffer")
    file = Path(folder or "") / "config.json"
    if not folder or not (file.parent / "buffer.json").exists():  # which is refused later, by name
        return _with_ellm(OfflineRun, preset("embedded"))
    from llmrl_jax.core.config import load_config

    ellm = load_config(CollectRun, file).ellm
    default = EllmConfig()
    if ellm.suggester == "chat":
        ellm = replace(ellm, suggester="oracle", goals=default.goals)
    if ellm.bonus != "none":
        bonus_only = ellm.suggester == "none" and not ellm.extrinsic
        plain: Any = {"bonus": "none", ellm.bonus: getattr(default, ellm.bonus)}
        ellm = replace(ellm, suggester="oracle" if bonus_only else ellm.suggester, **plain)
    return _with_ellm(OfflineRun, ellm)


GOALS = ("suggester", "fixed", "threshold", "gate", "once", "extrinsic")


@command(
    OfflineRun,
    start=start_offline,
    frequent=("buffer", *GOALS, "steps", "dqn.learning-rate", "config", "run.name", "run.seed", "run.resume"),
)
def offline(config: OfflineRun) -> int:
    """Train an agent on recorded steps, whose goals and rewards are computed for the settings given here.

    Settings are those of the run that recorded the steps; `--run.resume runs/NAME` continues a run with its own."""
    from llmrl_jax.systems.ellm import train

    train.learn_offline(config)
    return 0


@command(ExploreRun, start=start_explore, frequent=(*AFTER, "dqn.guide-fraction"), published=published.EXPLORE)
def explore(config: ExploreRun) -> int:
    """Train a new agent on one task; a pretrained agent chooses a part of its random actions.

    Settings are those of the pretrained run; `--run.resume runs/NAME` continues a run with its own."""
    from llmrl_jax.systems.ellm import train

    train.explore(config)
    return 0


def evaluate(
    folder: tyro.conf.Positional[Path],
    episodes: int = 100,
    goals: tuple[str, ...] = (),
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> None:
    """Evaluate a run of `pretrain` on held-out episodes beside random play: achievements, score, goals.

    Args:
        folder: The run's folder, `runs/NAME`.
        episodes: Episodes of each agent and goal.
        goals: Single goals to give the agent, one after another; `all`: every one that can have an effect.
        checkpoint: Checkpoint, by update number; -1: the newest.
        seed: Seed of the episodes.
        gif: Also write `episode.gif` into the folder.
        json: Print the results as JSON.
    """
    from llmrl_jax.systems.ellm import eval as workflow

    workflow.evaluate(folder, episodes=episodes, goals=goals, checkpoint=checkpoint, seed=seed, gif=gif, json=json)


STATES = ("env", "from", "states", "episodes", "half", "goals.shots", "goals.examples")


@command(AccuracyRun, frequent=(*STATES, "chat.model", "chat.adapter", "chat.base-url", "run.name"))
def accuracy(config: AccuracyRun) -> int:
    """Ask a chat model for goals in states that an agent meets, and count how many make sense.

    A goal is good (the oracle has it too), poorly timed, bad (an action without effect) or nonsensical (no action)."""
    from llmrl_jax.systems.ellm import accuracy as workflow

    workflow.accuracy(config)
    return 0


@command(AnswersRun, frequent=("file", *STATES[:-1], "seed"))
def answers(config: AnswersRun) -> int:
    """Write the oracle's answers in states that an agent meets, as data for `llmrl lm sft` and examples for prompts.

    By default those of the training half, so that `llmrl ellm accuracy --half held-out` asks about other states."""
    from llmrl_jax.systems.ellm import accuracy as workflow

    workflow.write_answers(config)
    return 0


COMMANDS = {
    "pretrain": pretrain,
    "finetune": finetune,
    "explore": explore,
    "collect": collect,
    "offline": offline,
    "eval": evaluate,
    "accuracy": accuracy,
    "answers": answers,
}
