"""ELLM's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from llmrl_jax.core.checks import (
    Checked,
    FractionBelowOne,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    refuse_unread,
)
from llmrl_jax.lm.encoder_names import AUTO
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.novelty import APTConfig, NovelDConfig, RNDConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.ellm.prompts import Parse
from llmrl_jax.systems.ellm.suggested import Gate
from llmrl_jax.systems.ellm.suggesters import SuggesterName


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
    """How a chat model is asked about every object and place, in a world with closed-form goals."""

    PREFIX: ClassVar[str] = "judge."

    samples: PositiveInt = 1
    """Answers per question."""
    share: FractionBelowOne = 0.5
    """The share of yes among the answers above which the object should be stored there."""


@dataclass(frozen=True)
class EllmConfig(Checked):
    """World, goals, agent and learner."""

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
    """Weight of the world's own reward, which is added to that for goals."""
    bonus: Literal["none", "rnd", "noveld", "apt"] = "none"
    """Novelty as a further reward: `rnd`, random network distillation; `noveld`, its gain; `apt`, distance to the
    nearest neighbours in a learned space."""
    encoder: str = AUTO
    """Sentence encoder: `auto`, MiniLM if it is installed (`make minilm`), else the hashed encoder, which knows equal
    words only; `hashed`; a name, folder or hub id as in `llmrl lm`."""
    observe: Literal["symbols", "symbols+text", "text", "pixels", "pixels+text"] = "symbols"
    """What the agent observes, besides goals: `symbols`, the map's codes and the inventory; `text`, the captions;
    `pixels`, pictures: four gray frames of 84 x 84 unless the options of `env` say otherwise, as in
    `CrafterText-v1?pixels=36` or `CrafterText-v1?image=rgb`."""
    goal_conditioned: bool = True
    """Whether the agent observes the goals."""
    learner: Literal["dqn", "ppo"] = "dqn"
    """The learning algorithm."""
    compat: Literal["none", "paper"] = "none"
    """`paper`: as the published code, time-outs are terminal, the target network shares the encoder, and the gate is
    lenient."""
    mesh: str = field(default="", metadata={"resume": "free"})  # `llmrl_jax.core.config.FREE`, a layer above
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
        if self.suggester == "none":
            refuse_unread(self, ("threshold", "once", "intrinsic", "gate"), "--suggester none")
        if self.compat == "paper":
            refuse_unread(self, ("gate",), "--compat paper, whose gate is lenient,")
        if self.suggester == "fixed" and not self.fixed:
            raise ValueError("suggester is fixed, but fixed is empty: name its goals, as in --fixed 'chop tree'")
        goals = self.suggester != "none" and self.intrinsic
        if not goals and not self.extrinsic and self.bonus == "none":
            raise ValueError(
                f"suggester is {self.suggester}, intrinsic {self.intrinsic:g}, extrinsic 0 and bonus none, so that "
                "there is no reward: choose a --suggester, a --bonus, or --extrinsic 1 for the world's own reward"
            )
        if self.suggester == "chat" and self.bonus != "none":
            raise ValueError(f"bonus is {self.bonus}, which does not combine with --suggester chat: leave --bonus out")
