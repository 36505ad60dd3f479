"""Settings of GLAM runs: the contents of config.json and the flags of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import tyro

from llmrl_jax.core.checks import Checked, In, Needs, NonNegativeInt, PositiveInt, Steps
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam import cloning, presets
from llmrl_jax.systems.glam.cloning import CloningConfig
from llmrl_jax.systems.glam.config import GlamConfig


def _without_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, which also holds the name of the preset: drop it."""
    return {name: value for name, value in values.items() if name != "preset"}


@dataclass(frozen=True)
class TrainConfig(Checked):
    """A GLAM training run. `presets.preset(name)` gives values for `glam`."""

    KIND: ClassVar[str] = "glam train"
    upgraded = staticmethod(_without_preset)

    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: presets.preset("glam"))
    steps: Steps = field(default=1_500_000, metadata=FREE)
    """Total environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=200, metadata=FREE)
    """Held-out episodes per evaluation during training (see `run.eval_every`)."""
    seeds: PositiveInt = 1
    """Seeds that learn in one program: `run.seed`, `run.seed` + 1, ... Results are means with intervals over them, and
    metrics with the number of a run as prefix, `0/loss`, its own. Steps are those of each."""
    run: RunConfig = field(default_factory=RunConfig)

    def experiment(self) -> Any:
        """What the run trains, and how it is judged: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.glam.training import make

        return make(self)


@dataclass(frozen=True)
class CloneRun(Checked):
    """A behaviour-cloning run: the demonstrator, the environment and the model. `cloning.preset(name)` gives values for
    `glam` and `clone`."""

    KIND: ClassVar[str] = "glam clone"
    upgraded = staticmethod(_without_preset)

    glam: Annotated[GlamConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: cloning.preset("bc")[0])
    demos: str = ""
    """File of demonstrations, written by `llmrl envs demos`; empty: the bot, or the agent of `--from`, generates them,
    and they are saved as `demos.parquet`."""
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Folder of a run of `llmrl glam train`, whose agent's successful episodes are imitated; empty: the bot's."""
    checkpoint: Annotated[int, In("[-1, inf)"), Needs("from_run")] = -1
    """With `from`: the checkpoint, by update number; -1: the newest."""
    greedy: Annotated[bool, Needs("from_run")] = False
    """With `from`: the agent takes its most likely actions instead of sampling."""
    episodes: PositiveInt = 100_000
    """Maximum number of episodes played to generate demonstrations."""
    clone: Annotated[CloningConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: cloning.preset("bc")[1])
    eval_episodes: NonNegativeInt = field(default=1000, metadata=FREE)
    """Held-out episodes before and after training, each for sampled and greedy actions; 0: none."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=0))

    def __post_init__(self):
        super().__post_init__()
        if self.demos and self.from_run:
            raise ValueError(f"--demos is {self.demos} and --from is {self.from_run}: give one of them")
