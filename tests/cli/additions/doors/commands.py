"""A toy system: it opens doors."""

from __future__ import annotations

from llmrl_jax.options.command import command
from llmrl_jax.systems.doors.config import OpenConfig, TrainRun


@command(OpenConfig)
def open_door(config: OpenConfig) -> int:
    """Open a door for a whole episode."""
    import jax

    import envs_jax

    env, params = envs_jax.make("TwoDoors-v0")
    _, state = env.reset(jax.random.key(config.run.seed), params)
    total = 0.0
    for i in range(int(params.length)):
        _, state, reward, *_ = env.step(jax.random.key(i), state, config.action, params)
        total += float(reward)
    print(f"the return is {total:g}")
    return 0


@command(TrainRun)
def train(config: TrainRun) -> int:
    """Train an agent that opens doors."""
    from llmrl_jax.systems.doors import train as workflow

    workflow.train(config)
    return 0


COMMANDS = {"open": open_door, "train": train}
