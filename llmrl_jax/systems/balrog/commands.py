"""BALROG: a language model plays BabyAI and Crafter in text."""

from __future__ import annotations

from llmrl_jax.options.command import command
from llmrl_jax.systems.balrog.config import EvalRun


FREQUENT = (
    *("tasks", "episodes", "agent", "balrog", "fixes", "chat.model", "chat.base-url", "chat.temperature"),
    *("chat.max-tokens", "chat.concurrency", "chat.max-usd", "config", "run.name", "run.seed", "run.resume"),
)


@command(EvalRun, frequent=FREQUENT)
def evaluate(config: EvalRun) -> int:
    """Let a chat model play BALROG's BabyAI and Crafter, and write results in the layout of its leaderboard.

    Without a model a scripted player acts at random. `--run.resume runs/NAME` continues a run with its own settings."""
    from llmrl_jax.systems.balrog import eval as workflow

    workflow.evaluate(config)
    return 0


COMMANDS = {"eval": evaluate}
