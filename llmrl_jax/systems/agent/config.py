"""Settings of agents that write: the contents of config.json and the flags of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import tyro

from llmrl_jax.core.checks import Checked, In, NonNegativeInt, PositiveFloat, PositiveInt, Steps
from llmrl_jax.core.config import FREE
from llmrl_jax.kernels.attention import Attention
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.lm.config import ComputeDtype
from llmrl_jax.lm.small import EMBEDDED, SmallConfig
from llmrl_jax.multiturn.group import GroupConfig
from llmrl_jax.multiturn.policy import Memory
from llmrl_jax.multiturn.ppo import TurnPPOConfig
from llmrl_jax.run.config import RunConfig
from llmrl_jax.tuning import SFTConfig


Algorithm = Literal["turn_ppo", "token_ppo", "grpo", "gigpo"]
"""`turn_ppo`: PPO with a reply as the action; `token_ppo`: with a token; `grpo`: episodes of a group that begins in one
state, compared (`group.advantage`); `gigpo`: also turns with equal observations."""


@dataclass(frozen=True)
class AgentConfig(Checked):
    """The environment, the model, and the rules of the conversation."""

    env: str = "BabyAI-Text/GoToLocalS6N2-v0"
    """An environment with text (`llmrl envs list text`), or one of Python, `FILE.py:FUNCTION`, whose file is
    executed."""
    num_actions: NonNegativeInt = 0
    """Only the first so many actions of the environment; 0: all."""
    task: str = ""
    """Only this task of the environment, as in `--env BabyAI-Text/MixedTrainLocal-v0 --task go_to`; empty: all."""
    max_turns: NonNegativeInt = 0
    """Turns after which an episode ends by a time-out, in environments with the parameter max_steps; 0: as they are."""
    model: str = EMBEDDED
    """`embedded`, a small Llama with random weights; or a model folder, a GGUF file, a packaged model or a hub id."""
    embedded: SmallConfig = field(default_factory=lambda: SmallConfig(hidden_size=96, layers=2, intermediate_size=256))
    tune: Literal["lora", "full"] = "lora"
    """What is trained: adapters over the frozen base, or all weights."""
    lora: LoRAConfig = field(default_factory=lambda: LoRAConfig(rank=16))
    dtype: ComputeDtype = "float32"
    """Dtype of the computation, and of a frozen base."""
    remat: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    attention: Attention = "auto"
    """Implementation of attention."""
    value_width: PositiveInt = 256
    """Units of each of the critic's two hidden layers, with `algo` turn_ppo and token_ppo."""
    wording: Literal["plain", "chatml"] = "plain"
    """The text around that of the environment; `chatml` for chat models with its markers."""
    format: Literal["plain", "tags", "cot", "robust_cot", "naive", "robust_naive", "action"] = "plain"
    """How a reply names its action (`llmrl_jax.multiturn.replies.FORMATS`)."""
    think: bool = True
    """Whether replies may have a thought."""
    reply_tokens: PositiveInt = 16
    """The most tokens of a reply."""
    decoding: Literal["free", "constrained"] = "free"
    """`constrained`: only tokens after which a valid reply is still possible are written."""
    temperature: PositiveFloat = 1.0
    """Temperature of the policy, in play and in the update."""
    default_action: str = ""
    """What a reply that names no action does; empty: the environment's first action."""
    memory: Memory = "append"
    """What the model sees of an episode: all of it, or a prompt built again at each turn."""
    window: NonNegativeInt = 0
    """With memory reprompt: the last turns, with their replies, that are seen besides the current one."""
    mesh: str = field(default="", metadata=FREE)
    """Devices over which environments and weights are split, such as `data=4,fsdp=2`; empty: one device."""


def _without_level(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drops the obsolete option `ppo.level`, which had no effect: `algo` decides. A value other than the default that
    contradicts it is left, and refused."""
    ppo, usual = values.get("ppo"), ("turn", "token") if values.get("algo") == "token_ppo" else ("turn",)
    if not isinstance(ppo, Mapping) or ppo.get("level") not in usual:
        return values
    return {**values, "ppo": {name: value for name, value in ppo.items() if name != "level"}}


@dataclass(frozen=True)
class TrainConfig(Checked):
    """A run of RL on an agent that writes."""

    KIND: ClassVar[str] = "agent train"
    upgraded = staticmethod(_without_level)

    agent: Annotated[AgentConfig, tyro.conf.arg(name="")] = field(default_factory=AgentConfig)
    algo: Algorithm = "turn_ppo"
    """The learner."""
    steps: Steps = field(default=5_000_000, metadata=FREE)
    """Tokens of all environments, read and written, rounded up to whole updates."""
    ppo: TurnPPOConfig = field(default_factory=TurnPPOConfig)
    """With `algo` turn_ppo and token_ppo."""
    group: GroupConfig = field(default_factory=GroupConfig)
    """With `algo` grpo and gigpo."""
    eval_episodes: PositiveInt = field(default=200, metadata=FREE)
    """Held-out episodes per evaluation."""
    run: RunConfig = field(default_factory=RunConfig)

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.agent.train import make

        return make(self)


@dataclass(frozen=True)
class CloneConfig(Checked):
    """Imitation of an expert that writes: a thought that says where the goal is, and its action."""

    episodes: PositiveInt = 2000
    """Demonstrated episodes."""
    noise: Annotated[float, In("[0, 1]")] = 0.5
    """Probability that the expert acts at random, which is imitated too."""
    thoughts: bool = True
    """Whether the expert's replies have thoughts."""
    episode_tokens: PositiveInt = 512
    """The most tokens of a demonstration, which is cut to whole turns; with `reprompt` the tokens of a row of several
    prompts with their replies, of which each must fit."""
    epochs: Annotated[float, In("(0, 1000]")] = 1.0
    """Passes over the demonstrations."""
    sft: SFTConfig = field(default_factory=lambda: SFTConfig(batch_size=32, learning_rate=3e-3, warmup=0.1))


@dataclass(frozen=True)
class CloneRun(Checked):
    """A run of imitation, whose model is the `--model` of `llmrl agent train`."""

    KIND: ClassVar[str] = "agent clone"

    agent: Annotated[AgentConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: replace(AgentConfig(), tune="full")
    )
    clone: Annotated[CloneConfig, tyro.conf.arg(name="")] = field(default_factory=CloneConfig)
    eval_episodes: PositiveInt = field(default=200, metadata=FREE)
    """Held-out episodes per evaluation."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=0))

    def experiment(self) -> Any:
        """The learner of the run and its evaluation: an `llmrl_jax.workflows.experiment.Experiment`."""
        from llmrl_jax.systems.agent.clone import make

        return make(self)


# --- the demo ---------------------------------------------------------------------------------------------------------

DEMO = AgentConfig(
    num_actions=3,
    max_turns=24,
    embedded=SmallConfig(hidden_size=64, layers=2, intermediate_size=128),
    lora=LoRAConfig(
        rank=8, alpha=16.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    ),
    value_width=64,
    memory="reprompt",
)
"""The smallest setting in which RL visibly improves a model that thinks, on two cores: one observation in the prompt,
since its length dominates the cost of a small model, and no keys or doors, so that three actions are enough."""

DEMO_CLONE = CloneConfig(
    episodes=6000, noise=0.82, sft=SFTConfig(batch_size=4, learning_rate=3e-3, warmup=0.1, adam_b2=0.98)
)
"""The demo's imitation: of an expert that thinks right, and acts at random in four of five turns."""

DEMO_ENVS = 64
DEMO_RL = {
    "num_envs": DEMO_ENVS,
    "epochs": 2,
    "minibatches": 8,
    "learning_rate": 1e-3,
    "schedule": "linear",
    "gamma": 0.9,
    "entropy_coef": 0.0,
    "kl_coef": 0.03,
    "invalid_reward": -1.0,
}
"""The demo's RL: a short horizon makes detours cost more (not with `grpo`, which discounts nothing), and a learning
rate that falls to zero, without an entropy bonus, lets the policy decide."""
DEMO_UPDATES = 40
"""Updates of the demo's RL: about 28,000 turns with PPO, 17,000 to 27,000 with groups, as episodes get shorter."""
DEMO_TOKENS = {"ppo": 512, "group": 1728}
"""Tokens of each environment in an update: of PPO, and of whole episodes of 24 turns."""
DEMO_AT_ONCE = 16
"""Episodes that a learner on groups plays at a time: a group of rows on a CPU."""


def demo_config(steps: int | None = None, algo: Algorithm = "token_ppo") -> TrainConfig:
    """The demo's RL over so many tokens, at whose end the learning rate is zero. **Arguments:** `steps`, None: those of
    `DEMO_UPDATES`."""
    kind = "ppo" if algo in ("turn_ppo", "token_ppo") else "group"
    tokens = DEMO_TOKENS[kind]
    steps = DEMO_UPDATES * DEMO_ENVS * tokens if steps is None else steps
    options: dict[str, Any] = DEMO_RL | {"schedule_updates": max(1, -(-steps // (DEMO_ENVS * tokens)))}
    learner: Any = (
        TurnPPOConfig(num_steps=tokens, **options)
        if kind == "ppo"
        else GroupConfig(episode_tokens=tokens, at_once=DEMO_AT_ONCE, **options)
    )
    return replace(TrainConfig(agent=DEMO, algo=algo, steps=steps), **{kind: learner})
