"""Hyper-parameters that offline learners share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from llmrl_jax.core.checks import Checked, PositiveInt, Width
from llmrl_jax.rl.offline_data import ActionKind


@dataclass(frozen=True)
class OfflineConfig(Checked):
    """What every offline learner has. Floats are traced (`state.hparams`): they can differ between rows of a vmap."""

    NAME: ClassVar[str] = "offline"
    """The name of the algorithm, as in `llmrl_jax.rl.registry`."""

    batch_size: PositiveInt = 256
    """Steps of a batch; with imagined data half of them are real, half imagined."""
    gradient_steps: PositiveInt = 100
    """Gradient steps per update, in one compiled loop. What is learned does not depend on it."""
    hidden: tuple[Width, ...] = (256, 256)
    """Widths of the dense layers of every network."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation between dense layers."""
    normalize: bool = False
    """Whether features are normalised by their mean and deviation over the real data."""

    def __post_init__(self):
        super().__post_init__()
        if not self.hidden:
            raise ValueError(f"{self.PREFIX}hidden is empty; the width of at least one dense layer is needed")

    def __init_subclass__(cls):
        cls.PREFIX = f"{cls.NAME}."


def needs_continuous(config: OfflineConfig, actions: ActionKind) -> None:
    """**Raises** `ValueError` for discrete actions, naming the algorithms that have them."""
    if actions.discrete:
        raise ValueError(
            f"{config.NAME} needs continuous actions, and the data have {actions.count} discrete ones: use bc, iql, "
            "awac, discrete_cql or discrete_bcq"
        )


def needs_discrete(config: OfflineConfig, actions: ActionKind) -> None:
    """**Raises** `ValueError` for continuous actions, naming the algorithm that has them."""
    if not actions.discrete:
        other = config.NAME.removeprefix("discrete_")
        raise ValueError(f"{config.NAME} needs discrete actions, and those of the data are continuous: use {other}")
