"""Settings of the commands: the contents of config.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from llmrl_jax.core.checks import Checked, PositiveInt, Steps
from llmrl_jax.core.config import FREE
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.run.config import BaseRunConfig, RunConfig


@dataclass(frozen=True)
class OpenConfig(Checked):
    """Options of a run: the door, and its folder."""

    KIND: ClassVar[str] = "doors open"
    action: int = 1
    """The door's number."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)


@dataclass(frozen=True)
class TrainRun(Checked):
    """An agent that learns to open doors."""

    KIND: ClassVar[str] = "doors train"
    env: str = "TwoDoors-v0"
    """The environment."""
    steps: Steps = field(default=4096, metadata=FREE)
    """Environment steps over all environments."""
    eval_episodes: PositiveInt = field(default=50, metadata=FREE)
    """Held-out episodes for each way of acting, at the end."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(16,)))
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_envs=16, num_steps=16, learning_rate=0.01))
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=4))

    def experiment(self) -> Any:
        """Training and evaluation of the run."""
        from llmrl_jax.systems.doors.train import make

        return make(self)
