"""Hyper-parameters that offline learners share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from llmrl_jax.core.checks import COUNT, WIDTH, check_choices, fields_in, in_interval
from llmrl_jax.rl.offline_data import ActionKind


@dataclass(frozen=True)
class OfflineConfig:
    """What every offline learner has. Floats are traced (`state.hparams`): they can differ between rows of a vmap."""

    NAME: ClassVar[str] = "offline"
    """The name of the algorithm, as in `llmrl_jax.rl.registry`."""

    batch_size: int = 256
    """Steps of a batch; with imagined data half of them are real, half imagined."""
    gradient_steps: int = 100
    """Gradient steps per update, in one compiled loop. What is learned does not depend on it."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the dense layers of every network."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation between dense layers."""
    normalize: bool = False
    """Whether features are normalised by their mean and deviation over the real data."""

    def __post_init__(self):
        fields_in(self, COUNT, "batch_size", "gradient_steps", prefix=self.prefix)
        for width in self.hidden:
            in_interval(f"{self.prefix}hidden", width, WIDTH)
        if not self.hidden:
            raise ValueError(f"{self.prefix}hidden is empty; the width of at least one dense layer is needed")
        check_choices(self, prefix=self.prefix)
        self.check()

    def check(self) -> None:
        """Check the fields of one algorithm. **Raises:** `ValueError`."""

    @property
    def prefix(self) -> str:
        """Before the names of options in messages."""
        return f"{self.NAME}."


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
