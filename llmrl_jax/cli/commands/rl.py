"""Reinforcement learning without language: train an algorithm in an environment, or on recorded steps."""

from __future__ import annotations

from llmrl_jax.options.command import Get, command
from llmrl_jax.workflows.rl_training import RLRun, settings_class


def start(get: Get) -> RLRun:
    """The settings of an algorithm."""
    return settings_class(get("algo") or "ppo")()


FREQUENT = (
    *("algo", "env", "steps", "seeds", "data", "imagined", "ppo.num-envs", "ppo.learning-rate", "dqn.num-envs"),
    *("dqn.learning-rate", "mesh", "eval-episodes", "config", "run.name", "run.seed", "run.resume", "run.eval-every"),
    "run.checkpoint-every",
)


@command(RLRun, start=start, frequent=FREQUENT)
def train(config: RLRun) -> int:
    """Train an algorithm in an environment: `llmrl rl train --algo ppo --env CartPole-v1 --steps 1e6`.

    Offline algorithms learn from recorded steps: `llmrl rl train --algo iql --data FILE`; `--env` evaluates them there.
    The options of the algorithm have its name as prefix, such as `--dqn.n-step 3`: `--algo dqn --help-all` lists them.
    Training ends with held-out episodes, greedy and sampled. `--run.resume runs/NAME` continues a run with its own
    settings."""
    from llmrl_jax.workflows import rl_training

    rl_training.train(config)
    return 0


COMMANDS = {"train": train}
