"""GLAM's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from llmrl_jax.agents.drrn import DRRN_DQN, DRRNConfig
from llmrl_jax.agents.language import Scoring
from llmrl_jax.core.checks import fields_at_least, refuse_unread
from llmrl_jax.core.config import to_json
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.rl.dqn_config import DQNConfig
from llmrl_jax.rl.ppo_config import PPOConfig
from llmrl_jax.systems.glam.symbolic import SymbolicConfig


EMBEDDED = "embedded"
"""The name of the model that is made on the spot: a small Llama with random weights."""

AgentName = Literal["llm", "symbolic", "drrn", "random", "bot"]
"""Who plays (glam reference, section 4).

* `llm`: the language model, which learns by PPO: GLAM's own.
* `symbolic`: Symbolic-PPO, a recurrent network that sees the grid itself.
* `drrn`: DRRN, Q-learning on the same text.
* `random`: any action as likely as any other; nothing is learnt.
* `bot`: BabyAI's bot, which plans from what it has seen of the grid; nothing is learnt.
"""


@dataclass(frozen=True)
class EmbeddedConfig:
    """The small Llama that `--model embedded` makes; its tokenizer has one token for each word of the prompt."""

    hidden_size: int = 64
    """Width of the residual stream."""
    layers: int = 2
    """Transformer layers."""
    heads: int = 4
    """Attention heads; must divide `hidden_size`."""
    intermediate_size: int = 128
    """Width of the gated feed-forward layer."""
    spare_words: int = 0
    """Tokens for words that no prompt of training has, which are hashed to them, and positions for prompts twice as
    long; 0: such words are refused."""

    def __post_init__(self):
        fields_at_least(self, 1, "hidden_size", "layers", "heads", "intermediate_size", prefix="embedded.")
        fields_at_least(self, 0, "spare_words", prefix="embedded.")
        if self.hidden_size % self.heads:
            raise ValueError(
                f"embedded.hidden_size is {self.hidden_size}; a multiple of embedded.heads ({self.heads}) is needed"
            )


def _with_dqn(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a config.json whose `drrn` once held the learner beside the sizes of the network."""
    sizes = {f.name for f in fields(DRRNConfig)}
    given = values.get("drrn", {})
    learner = {name: value for name, value in given.items() if name not in sizes}
    if not learner or "dqn" in values:
        return values
    sized = {name: value for name, value in given.items() if name in sizes}
    return {**values, "drrn": sized, "dqn": {**to_json(DRRN_DQN), **learner}}


@dataclass(frozen=True)
class GlamConfig:
    """What is learnt, by which model, in which world."""

    upgraded = staticmethod(_with_dqn)

    agent: AgentName = "llm"
    """Who learns: `llm`, the language model; the baselines `symbolic` (Symbolic-PPO) and `drrn`. Each reads its own
    settings only, and refuses others that were changed."""
    env: str = "BabyAI-Text/MixedTrainLocal-v0"
    """World, one of `llmrl envs list BabyAI-Text`."""
    model: str = EMBEDDED
    """A folder with config.json, safetensors and tokenizer.json, a Hugging Face hub id, or `embedded`: a small Llama
    with random weights, made on the spot."""
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    """Sizes of the `embedded` model."""
    init: Literal["pretrained", "random", "embeddings"] = "pretrained"
    """What the base begins with: the model's own weights, a random draw in their place, or a random draw with the
    model's own token embeddings (the ablations NPA and NPAE; with scoring, NPE)."""
    policy: Literal["scoring", "heads"] = "scoring"
    """How the model chooses: by the scores of action strings, or by an MLP with a logit for each action on the
    prompt's hidden state (the ablations AFlan, NPAE and NPA)."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight (as the paper does)."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Keep the frozen base's matrices in 8.5 (int8) or 4.5 (nf4) bits a weight; with adapters only."""
    num_actions: int = 6
    """How many of the world's actions the agent may choose from, in their canonical order: 3, 6 or 9 in the paper. The
    last three of nine do nothing ("sleep", "do nothing", "think")."""
    history: int = 3
    """Observations in the prompt, with the actions between them."""
    list_actions: bool = True
    """Whether the prompt begins with the list of possible actions."""
    max_prompt: int = 0
    """Tokens that the prompt may take; building fails if the longest case needs more. 0: as many as it needs, up to
    the model's positions."""
    candidate_space: Literal["healed", "separate"] = "healed"
    """Where the space between prompt and action goes: to the action, where tokenizers want it, or to the prompt, with
    the action tokenised apart (compat with the released code)."""
    scoring: Scoring = "sum"
    """How scores become action logits: `sum` of token log-probabilities, `mean` per token, `per_word`, or the released
    code's `raw_logits` or `max_normalised`."""
    value_width: int = 1024
    """Width of the two hidden layers of the value head, and of the action head if there is one."""
    value_activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Between the layers of these heads: `sigmoid` is GLAM's; `relu` learns faster."""
    stop_value_gradient: bool = False
    """Keep the critic's gradient out of the language model."""
    competence_coef: float = 0.0
    """Weight of the loss of a head that predicts from each prompt whether the goal will be reached; 0: no such head."""
    stop_competence_gradient: bool = False
    """Keep this head's gradient out of the language model."""
    reward_scale: float = 20.0
    """The learner sees the world's reward times this."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the model computes; what is trained, log-probabilities and losses are float32 in any case."""
    score_rows: int = 0
    """Prompts scored at once, where that divides a batch; 0: all together. On a CPU groups of 16 stay in its cache and
    go twice as fast; on an accelerator leave it 0."""
    score_widths: int = 1
    """How many paddings a group of `score_rows` prompts may choose from, evenly spaced up to the longest prompt: it
    takes the shortest that holds it, after sorting by length. More: less work on padding, longer compilation."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but it needs far less memory."""
    mesh: str = field(default="", metadata={"resume": "free"})  # `llmrl_jax.core.config.FREE`, a layer above
    """Devices by axis, as in `data=4,fsdp=2`: environments are split over `data`, weights over `fsdp` and `tensor`.
    Empty: one device."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The learner of the agents `llm` and `symbolic`."""
    symbolic: SymbolicConfig = field(default_factory=SymbolicConfig)
    """The network of the agent `symbolic`."""
    drrn: DRRNConfig = field(default_factory=DRRNConfig)
    """The network of the agent `drrn`."""
    dqn: DQNConfig = field(default_factory=lambda: DRRN_DQN)
    """The learner of the agent `drrn`."""

    def __post_init__(self):
        fields_at_least(self, 1, "num_actions", "history", "value_width", "score_widths")
        fields_at_least(self, 0, "max_prompt", "score_rows", "competence_coef")
        self.check_widths(meshed=bool(self.mesh))
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )
        if not self.competence_coef:
            refuse_unread(self, ("stop_competence_gradient",), "an agent without --competence-coef")
        if self.policy == "heads":
            refuse_unread(self, ("scoring",), "--policy heads")

    def check_widths(self, meshed: bool) -> None:
        """**Arguments:** `meshed`, whether there is a mesh.
        **Raises:** `ValueError` where several paddings are asked for and cannot be chosen from."""
        if self.score_widths > 1 and (meshed or not self.score_rows):
            raise ValueError(
                f"score_widths is {self.score_widths}, which sorts prompts into groups of --score-rows: that needs "
                "--score-rows above 0 and no mesh; leave --score-widths out"
            )
