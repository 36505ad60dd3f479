"""Agents that think and act in text over many turns, by imitation and RL."""

from __future__ import annotations

from dataclasses import replace

from llmrl_jax.options.command import command
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.agent.config import Algorithm, CloneRun, TrainConfig, demo_config


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

    Environments, text, sampling, credit and gradient steps are one compiled program. `--run.resume runs/NAME` continues
    a run with its own settings, in the middle of a turn. `llmrl eval` and `llmrl play` read its runs."""
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

    The expert acts at random with a probability of `--noise`, so that RL has something to improve. `llmrl eval` and
    `llmrl play` read its runs, once the demonstrations are played again."""
    from llmrl_jax.systems.agent import clone

    clone.clone(config)
    return 0


def demo(
    steps: int | None = None,
    algo: Algorithm = "token_ppo",
    episodes: int = 300,
    run: RunConfig = RunConfig(),  # noqa: B008 - frozen
) -> int:
    """Create a small Llama, teach it to write a thought and an action, improve it by RL in BabyAI-Text, and report the
    gain from RL. Downloads nothing.

    The model imitates an expert that thinks right and often acts at random; it is saved as an ordinary model folder,
    from which RL starts.

    Args:
        steps: Tokens of RL, read and written; by default those of 40 updates of the learner.
        algo: The learner.
        episodes: Held-out episodes for each evaluation, before and after.
        run: Settings of the run's folder, checkpoints and logs.
    """
    from llmrl_jax.core.checks import COUNT, STEPS, in_interval
    from llmrl_jax.systems.agent import demo

    if steps is not None:
        in_interval("steps", steps, STEPS)
    in_interval("episodes", episodes, COUNT)
    demo.demo(replace(demo_config(steps, algo), eval_episodes=episodes, run=run))
    return 0


COMMANDS = {"demo": demo, "train": train, "clone": clone}
