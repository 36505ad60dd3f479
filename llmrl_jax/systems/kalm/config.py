"""KALM's settings: the contents of config.json and the flags of the commands."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.core.checks import (
    Checked,
    Epochs,
    Fraction,
    In,
    Needs,
    NonNegativeFloat,
    PositiveInt,
    Steps,
    nearest,
    refuse_unread,
)
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.encoder_weights import AUTO
from llmrl_jax.lm.lora import LoRAConfig
from llmrl_jax.lm.small import EMBEDDED, SmallConfig
from llmrl_jax.rl.registry import OFFLINE, algorithm, spelled
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.kalm.prompts import PATTERNS
from llmrl_jax.systems.kalm.worlds import IMAGINED, LEVELS, Cases, level_of
from llmrl_jax.tuning.sft import SFTConfig


@dataclass(frozen=True)
class CollectRun(Checked):
    """Play a scripted expert, or a trained agent, with noise, and write whole episodes."""

    KIND: ClassVar[str] = "kalm collect"

    world: str = "clevr"
    """The environment: `clevr` or `metaworld`."""
    level: str = "real"
    """Goals and words of the episodes."""
    episodes: PositiveInt = 6400
    """Episodes; published: 6,400 of the real ones for offline RL, 100,000 for grounding."""
    file: Annotated[str, tyro.conf.arg(name="from")] = ""
    """A file of KALM's or ImagineBench's (`.npy`, `.h5`, `.parquet`), whose episodes are taken over with our words for
    their goals; empty: episodes are played."""
    agent: str = ""
    """Folder of a run of `llmrl kalm train`, or of `llmrl rl train` in the same environment (`--env
    "CLEVR-Robot-v0?obs=goal"`), whose agent plays; empty: the environment's expert."""
    noise: Fraction = 0.2
    """Probability that an action is drawn at random."""
    together: PositiveInt = field(default=256, metadata=FREE)
    """Episodes that are played at the same time."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "level", level_of(self.level))
        if self.file:
            refuse_unread(self, ("episodes", "agent", "noise", "together"), f"--from {self.file}")


@dataclass(frozen=True)
class Weights(Checked):
    """Weights of the three errors, as in the paper."""

    PREFIX: ClassVar[str] = "weights."

    state: NonNegativeFloat = 0.5
    """Squared error of states, or of their changes, in units of the standard deviation."""
    action: NonNegativeFloat = 0.5
    """Nats of discrete actions; squared error of continuous ones."""
    text: NonNegativeFloat = 1.0
    """Nats per token of an explanation."""


@dataclass(frozen=True)
class GroundRun(Checked):
    """Ground a language model in episodes: it learns to carry out, predict and explain them."""

    KIND: ClassVar[str] = "kalm ground"

    data: str = ""
    """Folder of a run of `llmrl kalm collect`."""
    model: str = EMBEDDED
    """The language model: `embedded`, a small one with random weights and a token for each word; or a folder, a GGUF
    file, smollm2-135m, a hub id, as in `llmrl lm`."""
    embedded: SmallConfig = field(default_factory=lambda: SmallConfig(128, 3, 4, 256))
    """Sizes of the `embedded` model."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Weights of a given model: its own, or random ones of its shape."""
    dtype: Literal["float32", "mixed"] = "float32"
    """Compute dtype of the language model, here and wherever the grounded model is used. `mixed`: float32, with the
    factors of products with weights rounded to bfloat16."""
    tune: Literal["lora", "full"] = "full"
    """Train adapters of a frozen base, or all weights, as published; slots and their heads are always trained."""
    lora: Annotated[LoRAConfig, Needs("tune", "lora")] = field(default_factory=LoRAConfig)
    """The adapters, with `--tune lora`."""
    states: Literal["changes", "absolute"] = "changes"
    """The target of the head of states: the change from the state before, or the state, as published."""
    returns: bool = False
    """States carry the return that is still to come: with `--patterns rollout` a decision transformer, which `llmrl
    kalm test` plays, and which cannot imagine."""
    patterns: tuple[str, ...] = PATTERNS
    """Objectives: `rollout`, `dynamics`, `consequence`, `explanation`."""
    weights: Weights = field(default_factory=Weights)
    copies: PositiveInt = 1
    """Rows of each pair of episode and objective, with other wordings and other steps."""
    held_out: Annotated[float, In("[0, 0.5]")] = 0.05
    """The fraction of the episodes that the model is tested with."""
    length: PositiveInt = 256
    """Places of a row: tokens, states and actions."""
    epochs: Epochs = 10.0
    """Passes over the rows; published: 10 in CLEVR-Robot, 5 in Meta-World."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4,fsdp=2`: rows are split over `data` and `fsdp`, weights over `fsdp` and `tensor`.
    Empty: one device."""
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(batch_size=8, learning_rate=1e-3))
    """The learner. Published: batches of 24, AdamW at 5e-5 with linear decay."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=20, checkpoint_every=200))

    def __post_init__(self):
        super().__post_init__()
        names = [name for item in self.patterns for name in item.split(",")]  # the published form is "0,1,2,3"
        numbers = {str(i): name for i, name in enumerate(PATTERNS)}
        object.__setattr__(self, "patterns", tuple(numbers.get(name, name) for name in names))
        for name in self.patterns:
            if name not in PATTERNS:
                raise ValueError(f"there is no objective {name!r} (there are {', '.join(PATTERNS)})")
        if "rollout" not in self.patterns:
            raise ValueError("patterns has no rollout, without which nothing can be imagined: add it")
        if not self.held_out:
            refuse_unread(self, ("run.eval_every",), "--held-out 0")
        if self.model == EMBEDDED:
            refuse_unread(self, ("init",), "--model embedded")
            if self.tune == "lora":
                raise ValueError(
                    "model is embedded, whose weights are random: adapters are not enough, take --tune full"
                )
        else:
            refuse_unread(self, ("embedded",), f"--model {self.model}")


@dataclass(frozen=True)
class ImagineRun(Checked):
    """Let a grounded model imagine episodes for instructions that no data show."""

    KIND: ClassVar[str] = "kalm imagine"

    grounded: str = ""
    """Folder of a run of `llmrl kalm ground`."""
    data: str = ""
    """Folder of a run of `llmrl kalm collect`, whose first states the episodes begin in. In Meta-World, where a state
    has the objects of one task, they begin in new states of their own task instead. In CLEVR-Robot also a file of the
    published prompts (`.npy`): its first states and goals, one after another, in our words."""
    level: str = "rephrase"
    """`rephrase`: the goals of the data in other words; `easy`, `hard`: goals that no data show."""
    episodes: PositiveInt = 5600
    """Episodes; published: 5,600 (rephrase), 72,400 (easy), 1,680 (hard)."""
    together: PositiveInt = field(default=64, metadata=FREE)
    """Episodes that are imagined at the same time."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "level", level_of(self.level, IMAGINED))
        for name in ("grounded", "data"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: give the --{name} folder of `llmrl kalm {_MAKES[name]}`")


_MAKES = {"grounded": "ground", "data": "collect"}


AGENTS = tuple(sorted(OFFLINE))
AGENT_HELP = f"Offline algorithm: {', '.join(AGENTS)}."


@dataclass(frozen=True)
class TrainRun(Checked):
    """Offline RL from recorded episodes, or from recorded and imagined ones. `settings_class(agent)` adds the
    algorithm's options, under its name."""

    KIND: ClassVar[str] = "kalm train"

    agent: Annotated[str, tyro.conf.arg(help=AGENT_HELP)] = "bc"
    """Offline algorithm, a name in `llmrl_jax.rl.registry`; for discrete actions `discrete_cql` and `discrete_bcq`."""
    data: str = field(default="", metadata=FREE)
    """Folder of a run of `llmrl kalm collect`."""
    imagined: str = field(default="", metadata=FREE)
    """Folder of a run of `llmrl kalm imagine`, of which half of every batch is then made; several, with commas, have
    equal parts of this half."""
    successes: Annotated[bool, Needs("imagined")] = False
    """Learn only from those imagined episodes that reach their goal by the environment's rules, and not from all:
    behaviour cloning copies the others too."""
    levels: tuple[str, ...] = field(default=LEVELS, metadata=FREE)
    """Levels of the test."""
    encoder: str = AUTO
    """Sentence encoder of the instructions: `auto`, MiniLM if it is installed (see `llmrl doctor`), else the hashed
    encoder, which knows equal words only; `hashed`; a name, folder or hub id as in `llmrl lm`; the folder of a run of
    `llmrl kalm ground`: the last hidden states of the grounded model, beside the hashed words. Published: BERT."""
    steps: Steps = field(default=500_000, metadata=FREE)
    """Gradient steps, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=500, metadata=FREE)
    """Test episodes of each level."""
    seeds: PositiveInt = 1
    """Agents that learn in one program, each from random numbers of its own. The test has their mean and its interval;
    metrics have the agent's number as prefix."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=20, checkpoint_every=500))

    def __post_init__(self):
        super().__post_init__()
        refuse_unread(self, ("run.eval_every",), "kalm train", remedy="it tests once, at the end")
        object.__setattr__(self, "agent", spelled(self.agent))
        object.__setattr__(self, "levels", tuple(level_of(level) for level in self.levels))

    @property
    def hyper(self) -> Any:
        """The algorithm's configuration."""
        return getattr(self, self.agent)

    def experiment(self, cases: Cases | None = None) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`.

        **Arguments:** `cases`, where test episodes begin; None: as the environment begins."""
        from llmrl_jax.systems.kalm.train import experiment

        return experiment(self, cases)

    @property
    def imagined_runs(self) -> tuple[str, ...]:
        """The folders of `imagined`."""
        return tuple(folder for folder in self.imagined.split(",") if folder)


@functools.cache
def settings_class(agent: str) -> type[TrainRun]:
    """`TrainRun` with the options of an algorithm, as `agent` and as a field of that name.

    **Raises:** `KeyError`, naming the nearest, for an unknown algorithm, or one that does not learn from data alone.
    """
    if agent != spelled(agent):
        return settings_class(spelled(agent))
    if agent not in OFFLINE:
        agents = ", ".join(AGENTS)
        raise KeyError(f"there is no offline algorithm {agent!r}{nearest(agent, list(AGENTS))} (there are {agents})")
    config = algorithm(agent).config
    name = Annotated[str, tyro.conf.arg(help=AGENT_HELP)]
    return make_dataclass(
        TrainRun.__name__,
        [("agent", name, field(default=agent)), (agent, config, field(default_factory=config))],
        bases=(TrainRun,),
        frozen=True,
        namespace={"__doc__": TrainRun.__doc__, "__module__": __name__},
    )
