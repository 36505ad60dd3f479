"""BK-RL's settings: the contents of config.json and the flags of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.core.checks import (
    Checked,
    Fraction,
    In,
    Needs,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Steps,
    nearest,
    refuse_unread,
)
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.encoder_weights import AUTO
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.novelty import RNDConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.rl.shaping import ShapingConfig
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.workflows.chat_model import SCRIPTED, ChatConfig


Alg = Literal["none", "rnd", "random", "bk-code", "bk-pref", "bk-goal"]
SHAPING = ShapingConfig(coef=0.1)
"""The usual weights: a potential has a standard deviation of 1 on the collected data."""


@dataclass(frozen=True)
class AgentConfig:
    """Environment, network and learner."""

    env: str = "BabyAI-Text-GoToLocal-RedBall-S20"
    """Environment id, of BabyAI-Text or Crafter-Text."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(128, 64)))
    ppo: PPOConfig = field(default_factory=PPOConfig)
    rnd: RNDConfig = field(default_factory=lambda: RNDConfig(outputs=64, hidden=64))
    """With novelty as a bonus."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4`: environments are split over `data` and `fsdp`. Empty: one device."""

    def __post_init__(self):
        refuse_unread(self.network, ["dueling", "memory"], "BK-RL's actor-critic")


# --- presets: small settings for two cores, and the published ones (Zhang et al., 2407.03964) -------------------------

_PUBLISHED = PPOConfig(
    num_envs=8,
    num_steps=128,
    epochs=4,
    minibatches=4,
    learning_rate=3e-4,
    clip_eps=0.1,
    value_clip=0.1,
    entropy_coef=0.01,
    pool_size=64,
    pool_every=16,
)
_BABYAI_PPO = replace(_PUBLISHED, num_steps=64, learning_rate=1e-3, entropy_coef=0.02)
_CRAFTER_PPO = replace(_PUBLISHED, num_envs=16, num_steps=256)
_SMALL = NetworkConfig(hidden=(128, 64))
_CONVOLUTIONS = NetworkConfig(hidden=(512, 512), channels=(32, 64, 64))
_PUBLISHED_RND = RNDConfig(channels=_CONVOLUTIONS.channels, learning_rate=_PUBLISHED.learning_rate)
_CRAFTER = "Crafter-Text-CollectDrink?view=true&image=none"

PRESETS: dict[str, AgentConfig] = {
    "babyai": AgentConfig(network=_SMALL, ppo=_BABYAI_PPO),
    "crafter": AgentConfig(env=_CRAFTER, network=_SMALL, ppo=_CRAFTER_PPO),
    "babyai-published": AgentConfig(network=_CONVOLUTIONS, ppo=_PUBLISHED, rnd=_PUBLISHED_RND),
    "crafter-published": AgentConfig(
        env="Crafter-Text-CollectDrink", network=_CONVOLUTIONS, ppo=_CRAFTER_PPO, rnd=_PUBLISHED_RND
    ),
}
"""The published hyper-parameters of PPO, but in `babyai` (docs/systems/bkrl.md); the first two with dense networks of
symbols, for two cores."""

COLLECT_ENVS = {
    "babyai": "BabyAI-Text-GoToLocal-Pretraining-S20",
    "crafter": "Crafter-Text-Reward?view=true&image=none",
    "babyai-published": "BabyAI-Text-GoToLocal-Pretraining-S20",
    "crafter-published": "Crafter-Text-Reward",
}
"""The environments in which episodes are collected."""


def preset(name: str, *, collects: bool = False) -> AgentConfig:
    """The preset `name`. **Arguments:** `collects`, whether its environment is that in which episodes are collected.

    **Raises:** `KeyError`, with the nearest name, for an unknown one.
    """
    if name not in PRESETS:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
    return replace(PRESETS[name], env=COLLECT_ENVS[name]) if collects else PRESETS[name]


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CollectRun(Checked):
    """Play with novelty as a bonus, and write whole episodes at intervals. `preset(name, collects=True)` gives
    values for `agent`."""

    KIND: ClassVar[str] = "bkrl collect"

    agent: Annotated[AgentConfig, tyro.conf.arg(name="")] = field(default_factory=AgentConfig)
    steps: Steps = field(default=500_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    episodes: PositiveInt = 50
    """Episodes that are written at the start, every `run.eval_every` updates, and at the end; actions are drawn."""
    npy: bool = False
    """Whether to write the published layout as well: pickled lists, for the original programs."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=10, checkpoint_every=200, eval_every=50))

    def __post_init__(self):
        super().__post_init__()
        if not self.run.eval_every:
            raise ValueError("run.eval_every is 0, so that episodes are never written: give updates between two times")

    @property
    def eval_episodes(self) -> int:
        """Held-out episodes of `llmrl eval`."""
        return self.episodes

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.bkrl.collect import experiment

        return experiment(self)


@dataclass(frozen=True)
class TrainRun(Checked):
    """PPO with a shaping potential, or a control. `preset(name)` gives values for `agent`."""

    KIND: ClassVar[str] = "bkrl train"

    agent: Annotated[AgentConfig, tyro.conf.arg(name="")] = field(default_factory=AgentConfig)
    alg: Alg = "none"
    """The source of the potential: `bk-code`, a program; `bk-pref`, preferences; `bk-goal`, goals; `random`, a random
    network; `rnd`, no potential, but novelty as a bonus; `none`, the environment's reward alone."""
    potential: str = ""
    """With `bk-code`, `bk-pref`, `bk-goal`: the folder of the run of `llmrl bkrl code`, `prefer` or `goals`."""
    data: str = ""
    """With `random`: the folder of a run of `llmrl bkrl collect`, by which the potential is scaled."""
    shaping: ShapingConfig = field(default_factory=lambda: SHAPING)
    """With a potential; without one the weight of the environment's reward alone. Published: `compat` paper, and the
    weights 1 and 10."""
    steps: Steps = field(default=500_000, metadata=FREE)
    """Environment steps over all environments, rounded up to whole updates."""
    eval_episodes: PositiveInt = field(default=100, metadata=FREE)
    """Held-out episodes per evaluation: at the end, and every `run.eval_every` updates."""
    seeds: PositiveInt = 1
    """Seeds that learn in one program: `run.seed`, `run.seed` + 1, ... Results are means with intervals over them, and
    metrics with the number of a run as prefix, `0/loss`, its own. Steps are those of each."""
    run: RunConfig = field(default_factory=lambda: RunConfig(log_every=10, checkpoint_every=200))

    def __post_init__(self):
        super().__post_init__()
        if self.seeds > 1 and not self.joins_seeds:
            raise ValueError(
                f"seeds is {self.seeds}, but --run.seed draws the random potential: leave --seeds out, and start a run "
                "for each --run.seed"
            )
        for name, needed, source in (
            ("potential", self.alg.startswith("bk-"), "`llmrl bkrl code`, `prefer` or `goals`"),
            ("data", self.alg == "random", "`llmrl bkrl collect`"),
        ):
            value = getattr(self, name)
            if needed and not value:
                raise ValueError(f"alg is {self.alg} and {name} is empty: give the --{name} folder of {source}")
            if value and not needed:
                raise ValueError(f"alg is {self.alg} and {name} is {value!r}, which nothing reads: leave it out")
        if self.alg == "rnd":
            refuse_unread(self, ("shaping",), f"--alg {self.alg}")
        if self.alg == "none":  # the environment's reward has the same weight as with a potential
            unread = ("coef", "compat")
            refuse_unread(self.shaping, unread, f"--alg {self.alg}", usual=SHAPING)
        if self.alg != "rnd" and self.agent.rnd not in (_PUBLISHED_RND, RNDConfig()):  # of the published presets
            refuse_unread(self.agent, ("rnd",), f"--alg {self.alg}")

    @property
    def joins_seeds(self) -> bool:
        """Return whether several seeds may learn in one program."""
        return self.alg != "random"

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.bkrl.train import experiment

        return experiment(self)


@dataclass(frozen=True)
class WindowConfig(Checked):
    """The windows of the collected episodes that a chat model is shown."""

    data: str = ""
    """Folder of a run of `llmrl bkrl collect`, or one of its files; or an npy file of the published layout."""
    env: str = "BabyAI-Text-GoToLocal-Pretraining-S20"
    """The environment of the data, for its words."""
    window: PositiveInt = 8
    """Actions of a window. Published: 5."""
    seed: NonNegativeInt = 0
    """Of the draw of windows."""

    @staticmethod
    def upgraded(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Drops the obsolete option `unpickle`."""
        return {name: value for name, value in values.items() if name != "unpickle"}


@dataclass(frozen=True)
class CodeRun(Checked):
    """A chat model writes potentials as programs, and improves them."""

    KIND: ClassVar[str] = "bkrl code"

    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    program: str = ""
    """A file with a program, which is judged and kept in place of one that a model writes: `compute_potential`, as a
    model is asked for it, or the published `compute_reward` (`code-final.py`). It passes the same sandbox."""
    chat: ChatConfig = field(default_factory=lambda: ChatConfig(temperature=0.5, max_tokens=3000))
    rounds: PositiveInt = 5
    """Rounds of improvement."""
    candidates: PositiveInt = 4
    """Programs that are requested per round."""
    shown: PositiveInt = 5
    """Windows that the model is shown with their values, per round."""
    repairs: NonNegativeInt = 3
    """Times that a refused program is requested again with the reason."""
    tests: Annotated[int, In("[32, 4096]")] = 2048
    """Windows of held-out episodes on which programs are compared. The rank correlation that is reported is that on
    these windows, by which the program was chosen."""
    gamma: Fraction = 0.99
    """Discount of the rewards with which potentials are compared."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        if self.program:
            refuse_unread(self, ("chat", "rounds", "candidates", "shown", "repairs"), f"--program {self.program}")


@dataclass(frozen=True)
class PreferenceModelConfig(Checked):
    """Sizes of the preference transformer, and how it is fitted."""

    PREFIX: ClassVar[str] = "model."

    width: PositiveInt = 128
    """Of embeddings; one attention head."""
    feed_forward: PositiveInt = 256
    """Of the hidden layer after attention."""
    hidden: PositiveInt = 128
    """Of the hidden layer of the encoder of observations."""
    epochs: PositiveInt = 5
    """Passes over the pairs."""
    batch_size: PositiveInt = 32
    """Pairs per gradient step."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of AdamW, whose weight decay is 0.01."""
    smoothing: Annotated[float, In("[0, 0.5)")] = 0.1
    """Probability of the other answer that is assumed for every pair."""
    max_grad_norm: PositiveFloat = 1.0
    """Global norm to which gradients are clipped."""


@dataclass(frozen=True)
class PreferRun(Checked):
    """A chat model compares windows, and a preference transformer learns a potential from its answers."""

    KIND: ClassVar[str] = "bkrl prefer"

    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=WindowConfig)
    labels: str = ""
    """A file of answers about pairs of windows, in place of a model's: the `preferences.jsonl` of another run on the
    same data, or lines such as `{"windows": [[episode, step], [episode, step]], "second": 1}` (1: the second is
    better; 0: the first; 0.5: a tie)."""
    chat: ChatConfig = field(default_factory=lambda: ChatConfig(temperature=0.5, max_tokens=400))
    pairs: PositiveInt = 5000
    """Pairs of windows; each is asked about twice, in both orders."""
    answers: Literal["written", "chosen"] = "written"
    """`written`: the model writes thoughts and an answer; `chosen`: it chooses between both answers, without thoughts,
    which small models can too (vLLM's field `guided_choice`). A `local:` model chooses by their log-probabilities, and
    the sums over both orders decide, so that a preference for the first window cancels out."""
    validation_share: Annotated[float, In("(0, 0.5]")] = 0.1
    """The part of the pairs that is drawn from other episodes, and decides which epoch's model is kept."""
    gamma: Fraction = 0.99
    """Discount of the rewards with which answers are compared."""
    model: PreferenceModelConfig = field(default_factory=PreferenceModelConfig)
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        if self.labels:
            refuse_unread(self, ("chat", "pairs", "answers"), f"--labels {self.labels}")
        elif self.answers == "chosen" and self.chat.model == SCRIPTED:
            raise ValueError("answers is chosen, and the scripted adviser writes: take --answers written")


@dataclass(frozen=True)
class GoalsRun(Checked):
    """A chat model proposes goals for situations, and nearness to them is the potential."""

    KIND: ClassVar[str] = "bkrl goals"

    windows: Annotated[WindowConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: WindowConfig(window=4))
    library: str = ""
    """A folder of the published program (`trajectory_text.json`, `goal_library.json`, `goal_index.json`), with
    situations and their goals in place of a model's. Its embeddings are not read: those of `encoder` are computed."""
    chat: ChatConfig = field(default_factory=lambda: ChatConfig(temperature=0.5, max_tokens=300))
    situations: PositiveInt = 500
    """Windows that the model is asked about."""
    at_once: PositiveInt = 8
    """Windows per batch of requests; those of a batch do not see each other's goals."""
    shown: NonNegativeInt = 20
    """Earlier goals that a prompt shows, the most frequent first."""
    encoder: str = AUTO
    """Sentence encoder: `auto`, MiniLM if it is installed (see `llmrl doctor`), else the hashed encoder, which knows
    equal words only; `hashed`; a name, folder or hub id as in `llmrl lm`."""
    threshold: Annotated[float, In("[-1, 1)", "no cosine exceeds 1: take 0.99 for an exact match")] = 0.0
    """Cosine that must be exceeded; below it the potential is 0. Published: 0.85, for an encoder whose cosines are all
    high."""
    texts: Literal["phrases", "whole"] = "phrases"
    """How texts are embedded: `phrases`, the sum of the embeddings of their phrases, which tables on the device give
    exactly; `whole`, as one text, to whose potential a network is fitted."""
    distilled: Annotated[PositiveInt, Needs("texts", "whole")] = 20_000
    """With texts `whole`: windows that the network is fitted to."""
    model: Annotated[PreferenceModelConfig, Needs("texts", "whole")] = field(default_factory=PreferenceModelConfig)
    """With texts `whole`: the network."""
    run: BaseRunConfig = field(default_factory=BaseRunConfig)

    def __post_init__(self):
        super().__post_init__()
        if self.library:
            refuse_unread(self, ("chat", "situations", "at_once", "shown"), f"--library {self.library}")
        if self.windows.window < 2:
            raise ValueError("window is 1; situations of goals need at least 2 actions: what led there, and the last")
