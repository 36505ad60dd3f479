"""ELLM: a language model suggests goals, and reaching them is the reward."""

from __future__ import annotations

from llmrl_jax.run.flags import Get, command
from llmrl_jax.systems.ellm import presets
from llmrl_jax.systems.ellm.settings import PretrainRun


PRESET_HELP = """Starting point: `embedded` (minutes on two cores), `published` (the published hyper-parameters); the
baselines `novelty`, `uniform`, `extrinsic`, `rnd`."""


def start(get: Get) -> PretrainRun:
    """The settings of a preset."""
    return PretrainRun(ellm=presets.preset(get("preset") or "embedded"))


FREQUENT = (
    *("preset", "env", "suggester", "threshold", "encoder", "learner", "bonus", "steps", "dqn.num-envs"),
    *("dqn.learning-rate", "chat.model", "chat.base-url", "chat.max-usd", "mesh", "config"),
    *("run.name", "run.seed", "run.resume", "run.eval-every", "run.checkpoint-every"),
)


@command(PretrainRun, start=start, preset="embedded", preset_help=PRESET_HELP, frequent=FREQUENT)
def pretrain(config: PretrainRun) -> int:
    """Train an agent whose reward is to reach suggested goals; flags override the preset.

    Goals come from the scripted oracle unless `--suggester chat` and `--chat.model` name a language model.
    `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.ellm import training

    training.pretrain(config)
    return 0


COMMANDS = {"pretrain": pretrain}
