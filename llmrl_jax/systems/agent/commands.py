"""Agents that think and act in text over many turns, by imitation and RL."""

from __future__ import annotations

from llmrl_jax.options.command import command
from llmrl_jax.systems.agent.config import CloneRun, TrainConfig


@command(
    TrainConfig,
    frequent=(
        *("env", "model", "algo", "steps", "tune", "format", "decoding", "reply-tokens", "temperature", "memory"),
        *("ppo.num-envs", "ppo.num-steps", "ppo.learning-rate", "group.group", "mesh", "config"),
        *("run.name", "run.seed", "run.resume", "run.eval-every", "run.checkpoint-every"),
    ),
)
def train(config: TrainConfig) -> int:
    """Train a language model that writes a thought and an action at every turn, by RL.

    Worlds, text, sampling, credit and gradient steps are one compiled program. `--run.resume runs/NAME` continues a run
    with its own settings, in the middle of a turn. `llmrl eval` and `llmrl play` read its runs."""
    from llmrl_jax.systems.agent import train

    train.train(config)
    return 0


@command(
    CloneRun,
    frequent=(
        *("env", "model", "format", "episodes", "noise", "thoughts", "epochs", "sft.learning-rate", "reply-tokens"),
        *("num-actions", "run.name", "run.seed"),
    ),
)
def clone(config: CloneRun) -> int:
    """Teach a model to write as an expert does in BabyAI, with thoughts; writes `model/`, for the `--model` of `train`.

    The expert acts at random with a probability of `--noise`, so that RL has something to improve."""
    from llmrl_jax.systems.agent import clone

    clone.clone(config)
    return 0


COMMANDS = {"train": train, "clone": clone}
