"""Settings of ELLM's runs: the contents of config.json and the flags of the commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.core.checks import Checked, Fraction, In, PositiveInt, Steps
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.ellm import presets
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.workflows.chat_model import ChatConfig


CHAT = ChatConfig(temperature=0.1, max_tokens=200)
"""The published sampling options."""


@dataclass(frozen=True)
class PretrainRun(Checked):
    """Training with goals as the reward. `presets.preset(name)` gives values for `ellm`."""

    KIND: ClassVar[str] = "ellm pretrain"

    ellm: Annotated[EllmConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: presets.preset("embedded"))
    chat: ChatConfig = field(default_factory=lambda: CHAT)
    """With suggester `chat`."""
    steps: Steps = field(default=300_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation: at the end, and every `run.eval_every` updates."""
    seeds: PositiveInt = 1
    """Seeds that learn in one program: `run.seed`, `run.seed` + 1, ... Results are means with intervals over them, and
    metrics with the number of a run as prefix, `0/loss`, its own. Steps are those of each."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=50, checkpoint_every=1000))

    def experiment(self) -> Any:
        """What the run trains, and how it is judged: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.ellm.training import experiment

        return experiment(self)


@dataclass(frozen=True, kw_only=True)
class Downstream(PretrainRun):
    """Training on one task with a pretrained agent."""

    from_run: Annotated[str, tyro.conf.arg(name="from")]
    """Folder of the run of `llmrl ellm pretrain` whose agent is used."""
    checkpoint: Annotated[int, In("[-1, 2147483647]")] = -1
    """Its checkpoint, by update number; -1: the newest."""
    task: str
    """The single task that is rewarded, such as `place_table` or `deforestation` (see the page of Crafter); in
    Housekeep `task1` to `task4`."""
    subgoals: bool = False
    """Whether the agent sees all steps of the task as goals, instead of the last one; for tasks of Crafter with several
    different steps."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Downstream):
    """Finetuning of a pretrained agent."""

    KIND: ClassVar[str] = "ellm finetune"

    tune: Literal["all", "critic", "linear"] = "all"
    """What is trained: all weights; `critic`, the heads of value and advantages; `linear`, the last layer of each."""
    reinit: bool = False
    """Whether the weights that `tune` names start at random; with `all` these are those of the heads."""
    value: Literal["zero", "keep"] = "zero"
    """How the value of a state starts: `zero`, so that values of actions begin as advantages, which choose the same
    actions; `keep`, as pretrained and as published: a sum over many goals, beside which the success of one task is a
    loss, and the agent avoids it at first."""


@dataclass(frozen=True, kw_only=True)
class ExploreRun(Downstream):
    """Training of a new agent that a pretrained one guides."""

    KIND: ClassVar[str] = "ellm explore"


Half = Literal["both", "training", "held-out"]


def _asking() -> EllmConfig:
    return replace(presets.preset("embedded"), suggester="chat")


@dataclass(frozen=True, kw_only=True)
class StatesMet(Checked):
    """Different states that an agent meets, and how a chat model is asked about them."""

    ellm: Annotated[EllmConfig, tyro.conf.arg(name="")] = field(default_factory=_asking)
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Folder of a run of `llmrl ellm pretrain`: states that its agent meets; empty: those of random play."""
    checkpoint: Annotated[int, In("[-1, 2147483647]")] = -1
    """Its checkpoint, by update number; -1: the newest."""
    states: PositiveInt = 200
    """Different states, at most."""
    episodes: PositiveInt = 64
    """Episodes in which they are met."""
    half: Half = "both"
    """Only the states of one half, which a hash of their key decides, so that it is the same for every run and seed:
    `training`, `held-out`; or `both`."""


@dataclass(frozen=True, kw_only=True)
class AccuracyRun(StatesMet):
    """Which states a chat model is asked about, and how."""

    KIND: ClassVar[str] = "ellm accuracy"

    chat: ChatConfig = field(default_factory=lambda: CHAT)
    run: BaseRunConfig = field(default_factory=BaseRunConfig)


@dataclass(frozen=True, kw_only=True)
class AnswersRun(StatesMet):
    """Which states the oracle answers, and the file that receives its answers."""

    KIND: ClassVar[str] = "ellm answers"

    file: Path
    """The file, .jsonl: a row per state with the request and the oracle's answer as `messages`, for `llmrl lm sft`, and
    its `key`, `state` and `goals`, for `goals.examples`."""
    half: Half = "training"
    seed: Annotated[int, In("[0, 4294967295]")] = 0
    """Seed of the episodes."""


@dataclass(frozen=True)
class CollectRun(Checked):
    """Play that is recorded for `llmrl ellm offline`."""

    KIND: ClassVar[str] = "ellm collect"

    ellm: Annotated[EllmConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: presets.preset("embedded"))
    """With random play: the world, and goals for the report."""
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Folder of a run of `llmrl ellm pretrain` or `offline`: its agent plays; empty: random play."""
    checkpoint: Annotated[int, In("[-1, 2147483647]")] = -1
    """Its checkpoint, by update number; -1: the newest."""
    epsilon: Fraction = 0.2
    """Fraction of the agent's actions that are random, if it was trained by DQN."""
    episodes: PositiveInt = 500
    """Whole episodes."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)


@dataclass(frozen=True, kw_only=True)
class OfflineRun(Checked):
    """Learning from recorded steps, without play."""

    KIND: ClassVar[str] = "ellm offline"

    ellm: Annotated[EllmConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: presets.preset("embedded"))
    """The goals that recorded steps are given, and the agent."""
    buffer: str
    """Folder of a run of `llmrl ellm collect`, with the steps."""
    steps: Steps = field(default=20_000, metadata=FREE)
    """Gradient steps, rounded up to whole updates of `dqn.gradient_steps`."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation, which are played: at the end, and every `run.eval_every` updates."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=50, checkpoint_every=1000))

    def experiment(self) -> Any:
        """What the run trains, and how it is judged: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.ellm.training import experiment

        return experiment(self)


AGENTS = {kind.KIND: kind for kind in (PretrainRun, OfflineRun)}
"""Commands whose runs have an agent for any goal: what other commands can use, by the kind in config.json."""
