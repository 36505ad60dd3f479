"""A toy system: it opens doors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.run.flags import command


@dataclass(frozen=True)
class OpenConfig:
    """Which door, and how the run is kept."""

    KIND: ClassVar[str] = "doors open"
    action: int = 1
    """The door's number."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)


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


COMMANDS = {"open": open_door}
