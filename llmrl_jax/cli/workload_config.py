"""The options of `llmrl lm fit`: `FitConfig` with workloads of systems, of algorithms, and of environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from llmrl_jax.core.checks import NonNegativeInt, PositiveInt
from llmrl_jax.workflows.memory.config import LANGUAGE, FitConfig


Workload = Literal[
    "sft", "grpo", "score", "generate",
    "glam", "agent", "ellm", "bkrl", "kalm-ground", "kalm-imagine", "offline", "ppo", "dqn", "world",
]  # fmt: skip
OF_A_MODEL = (*LANGUAGE, "glam", "agent", "kalm-ground", "kalm-imagine")
"""Workloads that need a model's architecture."""
WITHOUT_UPDATES = ("score", "generate", "kalm-imagine", "world")
"""Workloads that are no update in a run's loop."""


@dataclass(frozen=True)
class WorkloadConfig(FitConfig):
    """The workload and its devices."""

    WORKLOADS: ClassVar[tuple[str, ...]] = get_args(Workload)

    model: str = ""
    """A model folder, its config.json, a GGUF file, a Hugging Face hub id, or smollm2-135m. No weights are read. Only
    workloads without a language model (ellm, bkrl, offline, ppo, dqn, world) go without."""
    workload: Workload = "sft"
    """A step of fine-tuning or of GRPO as `llmrl lm` runs it; `score`: the gradient of a batch of scored prompts, as
    in PPO's minibatches (without the critic); `generate`: sampling; glam to dqn: an update of the system or algorithm
    with its default settings; kalm-imagine: imagined episodes; `world`: random actions in an environment alone."""
    batch_size: PositiveInt = 16
    """Rows per step: texts (sft), prompts (grpo, score, generate), environments, imagined episodes, or transitions of a
    gradient step (offline)."""
    steps: NonNegativeInt = 0
    """Systems, ppo, dqn, world: steps of an update in every environment (agent: tokens); offline: gradient steps of an
    update; kalm-imagine: steps of an episode. 0: the default."""
    env: str = ""
    """glam, agent, ellm, ppo, dqn, world: the environment, one of `llmrl envs list`. Empty: the default."""
    algo: str = ""
    """offline: the algorithm, one of `llmrl rl train --algo`; agent: one of `llmrl agent train --algo`. Empty: iql,
    turn_ppo."""

    def described(self) -> str:
        """The sizes of the workload in words."""
        return super().described() + (f", {self.steps} steps" if self.steps else "")

    @property
    def trains(self) -> bool:
        """Return whether the workload has a gradient and an optimiser."""
        return self.workload not in ("generate", "kalm-imagine", "world")

    @property
    def adapts(self) -> bool:
        """Return whether the trained parameters are adapters of a frozen base."""
        return super().adapts and self.workload in OF_A_MODEL

    @property
    def repeats(self) -> bool:
        """Return whether the program is that of a run, a loop over any number of updates."""
        return self.workload not in WITHOUT_UPDATES
