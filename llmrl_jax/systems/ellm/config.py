"""Settings of ELLM (environment, goals, agent, learner), presets, and its commands' settings, which config.json has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.core.checks import (
    Checked,
    Fraction,
    FractionBelowOne,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Steps,
    nearest,
    refuse_unread,
)
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.encoder_weights import AUTO
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.novelty import APTConfig, NovelDConfig, RNDConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.ellm.prompts import Parse
from llmrl_jax.workflows.chat_model import ChatConfig


SuggesterName = Literal["oracle", "chat", "novelty", "uniform", "fixed", "none"]
Gate = Literal["effect", "lenient", "none"]
Split = Literal["both", "training", "held-out"]
Tune = Literal["all", "critic", "linear"]
StartValue = Literal["zero", "keep"]


@dataclass(frozen=True)
class ChatGoals(Checked):
    """The table of a chat model's suggestions, and when it is asked."""

    PREFIX: ClassVar[str] = "goals."

    exchange_every: PositiveInt = 8
    """Updates between requests; states met in between have no goals until they are answered."""
    max_states: PositiveInt = 16384
    """States for which suggestions are kept; further ones have no goals, and are counted."""
    max_goals: PositiveInt = 512
    """Different goals that can be known, including one per action; further ones are counted and not used."""
    per_state: PositiveInt = 16
    """Goals kept per state."""
    at_once: PositiveInt = 64
    """States asked about per exchange; others are asked about when met again."""
    parse: Parse = "lines"
    """How replies are read: `lines`, each bulleted or numbered line is a goal; `paper`, as published: a reply with a
    line that does not start with a dash is discarded, and every dash separates goals."""
    shots: NonNegativeInt = 2
    """Examples in the prompt: 0 to 2 published ones, or any number of those of `examples`."""
    examples: str = ""
    """File of `llmrl ellm answers`, over whose rows the examples are spread; empty: the published examples."""


@dataclass(frozen=True)
class Judge(Checked):
    """Settings of questions to a chat model about every object and place, in an environment with closed-form goals."""

    PREFIX: ClassVar[str] = "judge."

    samples: PositiveInt = 1
    """Answers per question."""
    share: FractionBelowOne = 0.5
    """The share of yes among the answers above which the object should be stored there."""


@dataclass(frozen=True)
class EllmConfig(Checked):
    """Environment, goals, agent and learner."""

    env: str = "CrafterText-v1"
    """Environment id, such as `CrafterText-v1`, `CrafterText-v1?actions=27` or `Housekeep-Task1-v0`."""
    suggester: SuggesterName = "oracle"
    """The source of goals: `oracle`, rules with access to the state; `chat`, a chat model (`chat.model`); `novelty`,
    all actions; `uniform`, actions at random; `fixed`, always those of `fixed`; `none`."""
    threshold: Annotated[float, In("[-1, 1)", "no cosine exceeds 1: take 0.99 for an exact match")] = 0.99
    """Cosine similarity of a caption and a goal above which the goal is reached. At 0.99 only captions with the
    same words reach a goal."""
    fixed: Annotated[tuple[str, ...], Needs("suggester", "fixed")] = ()
    """With suggester `fixed`: the goals, by the names of actions."""
    intrinsic: NonNegativeFloat = 1.0
    """Weight of the reward for goals."""
    once: bool = True
    """Whether a goal is rewarded once in an episode only."""
    gate: Gate = "effect"
    """Which actions can reach goals: `effect`, those that had their effect; `lenient`, the published flag: also any
    action whose noun is what the player faces or holds; `none`, all."""
    uniform_goals: Annotated[PositiveInt, Needs("suggester", "uniform")] = 10
    """With suggester `uniform`: goals drawn per step."""
    extrinsic: NonNegativeFloat = 0.0
    """Weight of the environment's own reward, which is added to that for goals."""
    bonus: Literal["none", "rnd", "noveld", "apt"] = "none"
    """Novelty as a further reward: `rnd`, random network distillation; `noveld`, the difference of RND's novelty;
    `apt`, distance to the nearest neighbours in a learned space."""
    encoder: str = AUTO
    """Sentence encoder: `auto`, MiniLM if it is installed (see `llmrl doctor`), else the hashed encoder, which knows
    equal words only; `hashed`; a name, folder or hub id as in `llmrl lm`."""
    observe: Literal["symbols", "symbols+text", "text", "pixels", "pixels+text"] = "symbols"
    """What the agent observes, besides goals: `symbols`, the map's codes and the inventory; `text`, the captions;
    `pixels`, pictures: four gray frames of 84 x 84 unless the options of `env` say otherwise, as in
    `CrafterText-v1?pixels=36` or `CrafterText-v1?image=rgb`."""
    goal_conditioned: bool = True
    """Whether the agent observes the goals."""
    learner: Literal["dqn", "ppo"] = "dqn"
    """The learning algorithm."""
    compat: Literal["none", "paper"] = "none"
    """`paper`: as the published code, time-outs are terminal, DQN's target network shares the encoder, and gate
    `effect` stands for `lenient`, with suggester `novelty` for `none`."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4`: environments are split over `data` and `fsdp`. Empty: one device."""
    goals: Annotated[ChatGoals, Needs("suggester", "chat")] = field(default_factory=ChatGoals)
    """With suggester `chat`, in Crafter."""
    judge: Annotated[Judge, Needs("suggester", "chat")] = field(default_factory=Judge)
    """With suggester `chat`, in Housekeep."""
    network: BranchConfig = field(default_factory=BranchConfig)
    dqn: DQNConfig = field(default_factory=DQNConfig)
    """With learner `dqn`."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """With learner `ppo`."""
    rnd: Annotated[RNDConfig, Needs("bonus", "rnd")] = field(default_factory=RNDConfig)
    """With bonus `rnd`."""
    noveld: Annotated[NovelDConfig, Needs("bonus", "noveld")] = field(default_factory=NovelDConfig)
    """With bonus `noveld`."""
    apt: Annotated[APTConfig, Needs("bonus", "apt")] = field(default_factory=APTConfig)
    """With bonus `apt`."""

    def __post_init__(self):
        super().__post_init__()
        refuse_unread(self, ("rnd.channels", "noveld.channels"), "ELLM, whose novelty is that of one vector,")
        if self.suggester == "none":
            refuse_unread(self, ("threshold", "once", "intrinsic", "gate"), "--suggester none")
        if self.suggester == "fixed" and not self.fixed:
            raise ValueError("suggester is fixed, but fixed is empty: name its goals, as in --fixed 'chop tree'")
        goals = self.suggester != "none" and self.intrinsic
        if not goals and not self.extrinsic and self.bonus == "none":
            raise ValueError(
                f"suggester is {self.suggester}, intrinsic {self.intrinsic:g}, extrinsic 0 and bonus none, so that "
                "there is no reward: choose a --suggester, a --bonus, or --extrinsic 1 for that of the environment"
            )
        if self.suggester == "chat" and self.bonus != "none":
            raise ValueError(f"bonus is {self.bonus}, which does not combine with --suggester chat: leave --bonus out")


# --- presets ----------------------------------------------------------------------------------------------------------


EMBEDDED = EllmConfig(
    observe="symbols+text",
    network=BranchConfig(width=128, head_hidden=(128,), pointing=True),
    dqn=DQNConfig(
        num_envs=32,
        num_steps=4,
        gradient_steps=8,
        batch_size=64,
        replay_size=200_000,
        learning_starts=5_000,
        n_step=5,
        replay="prioritized",
        target_steps=2_000,
        huber_delta=1.0,
        learning_rate=3e-4,
        epsilon_end=0.05,
        epsilon_steps=200_000,
        reward_clip=1.0,
        pool_size=64,
        pool_every=50,
    ),
    ppo=PPOConfig(num_envs=32, pool_size=64, pool_every=4),  # for --learner ppo: environments take long to generate
)
"""Minutes on two cores: symbols and captions instead of pictures, a small network, four samples learned per step
played. Rare rewards are drawn more often (prioritised replay) and reach back farther (five steps) than as published,
and actions that are goals share an advantage: one seed of 300,000 steps then finds trees and water, which it does not
without."""

PIXELS = replace(
    EMBEDDED,
    env="CrafterText-v1?pixels=36",
    observe="pixels+text",
    network=replace(EMBEDDED.network, convolutions=((32, 4, 4), (64, 3, 2))),
    dqn=replace(EMBEDDED.dqn, replay_size=100_000),
)
"""Small pictures, for two cores: four gray frames of 36 x 36 pixels instead of 84 x 84, two convolutions, of which the
first sees one tile at a time, and captions. All else as in `embedded`."""

PUBLISHED = EllmConfig(
    observe="pixels+text",
    dqn=DQNConfig(
        num_envs=64,
        num_steps=1,
        gradient_steps=16,
        batch_size=64,
        replay_size=5_000_000,
        learning_starts=5_000,
        n_step=3,
        target_steps=8_000,
        huber_delta=1.0,
        learning_rate=6.25e-5,
        max_grad_norm=float("inf"),
        epsilon_end=0.01,
        epsilon_steps=1_000_000,
        reward_clip=1.0,
        pool_every=100,
    ),
    compat="paper",
)
"""The published input and hyper-parameters (`config.yaml` of ELLM), in 64 environments instead of one: as many
samples per step played. The memory holds every frame of the run, 38 GB."""

HOUSEKEEP = EllmConfig(
    env="Housekeep-Task1-v0",
    observe="symbols+text",
    network=BranchConfig(width=128, head_hidden=(128,)),
    dqn=replace(EMBEDDED.dqn, gradient_steps=4, replay_size=100_000, epsilon_end=0.1, epsilon_steps=150_000),
)
"""A task of Housekeep by low-level actions, on two cores. Unlike the published agent it observes the goals, and where
in view they are: without them, one seed of 300,000 steps put 2% of the misplaced objects right."""

HOUSEKEEP_MACRO = replace(
    HOUSEKEEP,
    env="Housekeep-Macro-Task1-v0",
    goal_conditioned=False,
    dqn=replace(HOUSEKEEP.dqn, epsilon_steps=100_000),
)
"""The same by whole trips as single actions. As published, the agent does not observe the goals."""

PRESETS: dict[str, EllmConfig] = {
    "embedded": EMBEDDED,
    "pixels": PIXELS,
    "published": PUBLISHED,
    "novelty": replace(EMBEDDED, suggester="novelty", gate="none"),
    "uniform": replace(EMBEDDED, suggester="uniform"),
    "extrinsic": replace(EMBEDDED, suggester="none", extrinsic=1.0),
    "rnd": replace(EMBEDDED, suggester="none", bonus="rnd", rnd=RNDConfig(outputs=64, hidden=64)),
    "noveld": replace(EMBEDDED, suggester="none", bonus="noveld", noveld=NovelDConfig(outputs=64, hidden=64)),
    "apt": replace(EMBEDDED, suggester="none", bonus="apt", apt=APTConfig(outputs=64, hidden=128)),
    "housekeep": HOUSEKEEP,
    "housekeep-macro": HOUSEKEEP_MACRO,
}


def preset(name: str) -> EllmConfig:
    """The preset `name`. **Raises** `KeyError`, with the nearest name, for an unknown one."""
    if name not in PRESETS:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
    return PRESETS[name]


# --- settings of the commands -----------------------------------------------------------------------------------------


CHAT = ChatConfig(temperature=0.1, max_tokens=200)
"""The published sampling options."""
Flattened = Annotated[EllmConfig, tyro.conf.arg(name="")]
FromRun = Annotated[str, tyro.conf.arg(name="from")]
Checkpoint = Annotated[int, In("[-1, 2147483647]")]


@dataclass(frozen=True)
class PretrainRun(Checked):
    """Training with goals as the reward. `preset(name)` gives values for `ellm`."""

    KIND: ClassVar[str] = "ellm pretrain"

    ellm: Flattened = field(default_factory=lambda: EMBEDDED)
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

    @property
    def joins_seeds(self) -> bool:
        """Return whether several seeds may learn in one program."""
        return self.ellm.suggester != "chat"

    def experiment(self) -> Any:
        """Training and evaluation of the run: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.ellm.train import experiment

        return experiment(self)


@dataclass(frozen=True, kw_only=True)
class Downstream(PretrainRun):
    """Training on one task with a pretrained agent."""

    from_run: FromRun
    """Folder of the run of `llmrl ellm pretrain` whose agent is used."""
    checkpoint: Checkpoint = -1
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

    tune: Tune = "all"
    """What is trained: all weights; `critic`, the heads of value and advantages; `linear`, the last layer of each."""
    reinit: bool = False
    """Whether the weights that `tune` names start at random; with `all` these are those of the heads."""
    value: StartValue = "zero"
    """How the value of a state starts: `zero`, so that values of actions begin as advantages, which choose the same
    actions; `keep`, as pretrained and as published: a sum over many goals, beside which the success of one task is a
    loss, and the agent avoids it at first."""


@dataclass(frozen=True, kw_only=True)
class ExploreRun(Downstream):
    """Training of a new agent that a pretrained one guides."""

    KIND: ClassVar[str] = "ellm explore"


@dataclass(frozen=True, kw_only=True)
class StatesConfig(Checked):
    """Different states that an agent visits, and how a chat model is asked about them."""

    ellm: Flattened = field(default_factory=lambda: replace(EMBEDDED, suggester="chat"))
    from_run: FromRun = ""
    """Folder of a run of `llmrl ellm pretrain`: states that its agent meets; empty: those of random play."""
    checkpoint: Checkpoint = -1
    """Its checkpoint, by update number; -1: the newest."""
    states: PositiveInt = 200
    """Different states, at most."""
    episodes: PositiveInt = 64
    """Episodes in which they are met."""
    half: Split = "both"
    """Only the states of one half, which a hash of their key decides, so that it is the same for every run and seed:
    `training`, `held-out`; or `both`."""


@dataclass(frozen=True, kw_only=True)
class AccuracyRun(StatesConfig):
    """States that a chat model is asked about, and the questions."""

    KIND: ClassVar[str] = "ellm accuracy"

    chat: ChatConfig = field(default_factory=lambda: CHAT)
    run: BaseRunConfig = field(default_factory=BaseRunConfig)


@dataclass(frozen=True, kw_only=True)
class AnswersRun(StatesConfig):
    """States that the oracle answers, and the file that receives its answers."""

    KIND: ClassVar[str] = "ellm answers"

    file: Path
    """The file, .jsonl: a row per state with the request and the oracle's answer as `messages`, for `llmrl lm sft`, and
    its `key`, `state` and `goals`, for `goals.examples`."""
    half: Split = "training"
    seed: Annotated[int, In("[0, 4294967295]")] = 0
    """Seed of the episodes."""


@dataclass(frozen=True)
class CollectRun(Checked):
    """Play that is recorded for `llmrl ellm offline`."""

    KIND: ClassVar[str] = "ellm collect"

    ellm: Flattened = field(default_factory=lambda: EMBEDDED)
    """With random play: the environment, and goals for the report."""
    from_run: FromRun = ""
    """Folder of a run of `llmrl ellm pretrain` or `offline`: its agent plays; empty: random play."""
    checkpoint: Checkpoint = -1
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

    ellm: Flattened = field(default_factory=lambda: EMBEDDED)
    """The goals that recorded steps are given, and the agent."""
    buffer: str
    """Folder of a run of `llmrl ellm collect`, with the steps."""
    steps: Steps = field(default=20_000, metadata=FREE)
    """Gradient steps, rounded up to whole updates of `dqn.gradient_steps`."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation, which are played: at the end, and every `run.eval_every` updates."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=50, checkpoint_every=1000))

    def experiment(self) -> Any:
        """Training and evaluation of the run: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.ellm.train import experiment

        return experiment(self)


AGENTS = {kind.KIND: kind for kind in (PretrainRun, OfflineRun)}
"""Commands whose runs have an agent for any goal: what other commands can use, by the kind in config.json."""


def refuse_other_settings(
    settings: EllmConfig, usual: EllmConfig, of_run: EllmConfig, read: Collection[str] = ()
) -> None:
    """**Raises** `ValueError` for settings beside `--from`, whose run has its own.

    **Arguments:** `settings`, of the command; `usual`, those without any flag; `of_run`, the run's, which may be
    repeated; `read`, the fields that the command reads all the same."""
    if settings != of_run:
        unread = [f.name for f in fields(EllmConfig) if f.name not in read]
        refuse_unread(settings, unread, "--from, whose run has its own,", usual=usual)
