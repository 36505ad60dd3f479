"""GLAM's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from llmrl_jax.agents.drrn import DRRN_DQN, DRRNConfig
from llmrl_jax.agents.language import Scoring
from llmrl_jax.core.checks import (
    Checked,
    In,
    Needs,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Width,
)
from llmrl_jax.core.config import to_json
from llmrl_jax.lm import LoRAConfig
from llmrl_jax.lm.attention import Attention
from llmrl_jax.lm.narrow import Computed
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.glam.symbolic import SymbolicConfig


EMBEDDED = "embedded"
"""Name of the built-in model: a small Llama with random weights."""

AgentName = Literal["llm", "symbolic", "drrn", "random", "bot"]
"""The kind of agent (glam reference, section 4).

* `llm`: the language model, trained by PPO; GLAM's own agent.
* `symbolic`: Symbolic-PPO, a recurrent network that observes the grid directly.
* `drrn`: DRRN, Q-learning on the same text.
* `random`: uniformly random actions; does not learn.
* `bot`: BabyAI's bot, which plans from the part of the grid it has seen; does not learn.
"""


@dataclass(frozen=True)
class EmbeddedConfig(Checked):
    """The small Llama created by `--model embedded`; its tokenizer has one token per word of the prompt."""

    PREFIX: ClassVar[str] = "embedded."

    hidden_size: Width = 64
    """Width of the residual stream."""
    layers: Annotated[int, In("[1, 1000]")] = 2
    """Number of transformer layers."""
    heads: Width = 4
    """Number of attention heads; twice this number must divide `hidden_size`."""
    intermediate_size: Width = 128
    """Width of the gated feed-forward layer."""
    spare_words: Annotated[int, In("[0, 1048576]")] = 0
    """Tokens to which words unseen in training prompts are hashed; also doubles the maximum prompt length. 0: unseen
    words are an error."""

    def __post_init__(self):
        super().__post_init__()
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"embedded.hidden_size is {self.hidden_size}; a multiple of twice embedded.heads ({self.heads}) is "
                "needed, since rotary positions turn pairs"
            )


def _with_dqn(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade an old config.json, in which `drrn` holds the learner's settings as well as the network's sizes."""
    sizes = {f.name for f in fields(DRRNConfig)}
    given = values.get("drrn", {})
    learner = {name: value for name, value in given.items() if name not in sizes}
    if not learner or "dqn" in values:
        return values
    sized = {name: value for name, value in given.items() if name in sizes}
    return {**values, "drrn": sized, "dqn": {**to_json(DRRN_DQN), **learner}}


@dataclass(frozen=True)
class GlamConfig(Checked):
    """Environment, agent, model and learner."""

    upgraded = staticmethod(_with_dqn)

    agent: AgentName = "llm"
    """The agent to train: `llm` (the language model) or a baseline, `symbolic` (Symbolic-PPO) or `drrn`. Changing a
    setting that the agent does not read is an error."""
    env: str = "BabyAI-Text/MixedTrainLocal-v0"
    """Environment id, one of `llmrl envs list BabyAI-Text`."""
    model: str = EMBEDDED
    """A Hugging Face folder or hub id, a GGUF file, smollm2-135m (see `make smollm2`), or `embedded`: a small Llama
    with random weights."""
    embedded: EmbeddedConfig = field(default_factory=EmbeddedConfig)
    """Sizes of the `embedded` model."""
    init: Literal["pretrained", "random", "embeddings"] = "pretrained"
    """Initial base weights: `pretrained`, the model's own; `random`, randomly initialised; `embeddings`, random except
    for the model's token embeddings (the ablations NPA and NPAE; with scoring, NPE)."""
    policy: Literal["scoring", "heads"] = "scoring"
    """How actions are chosen: `scoring`, by the probabilities of the action strings; `heads`, by an MLP over the
    prompt's hidden state with one logit per action (the ablations AFlan, NPAE and NPA)."""
    tune: Literal["lora", "full"] = "lora"
    """`full`: train all weights, as in the paper; `lora`: train adapters on a frozen base, which needs a learning rate
    about 100 times as large."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    """The adapters, if `tune` is `lora`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Quantise the frozen base's matrices to 8.5 (int8) or 4.5 (nf4) bits per weight; requires `tune` to be `lora`."""
    num_actions: PositiveInt = 6
    """Number of available actions, in the environment's canonical order: 3, 6 or 9 in the paper. The last three of nine
    have no effect ("sleep", "do nothing", "think")."""
    history: Annotated[int, In("[1, 256]")] = 3
    """Number of observations in the prompt, with the actions between them."""
    list_actions: bool = True
    """Whether the prompt begins with the list of possible actions."""
    max_prompt: NonNegativeInt = 0
    """Maximum prompt length in tokens; it is an error if the longest possible prompt exceeds it. 0: as long as needed,
    up to the model's maximum length."""
    candidate_space: Literal["healed", "separate"] = "healed"
    """Tokenisation of the space between prompt and action: `healed`, as part of the action, as tokenizers expect;
    `separate`, as part of the prompt, with the action tokenised separately (compatible with the released code)."""
    scoring: Annotated[Scoring, Needs("policy", "scoring")] = "sum"
    """How scores become action logits: `sum` of token log-probabilities, `mean` per token, `per_word`, or the released
    code's `raw_logits` or `max_normalised`."""
    value_width: Width = 1024
    """Width of the two hidden layers of the value head, and of the action head if used."""
    value_activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Activation function of these heads: `sigmoid` is GLAM's; `relu` learns faster."""
    stop_value_gradient: bool = False
    """Stop the critic's gradient at the language model."""
    competence_coef: NonNegativeFloat = 0.0
    """Loss coefficient of a head that predicts from each prompt whether the goal will be reached; 0: no such head."""
    stop_competence_gradient: Annotated[bool, Needs("competence_coef")] = False
    """Stop the competence head's gradient at the language model."""
    reward_scale: PositiveFloat = 20.0
    """Factor applied to the environment's reward before learning."""
    dtype: Computed = "float32"
    """Compute dtype of the model; trained weights, log-probabilities and losses are always float32. `mixed`: float32,
    with the factors of products with weights rounded to bfloat16 (see docs/language-model.md, Precision)."""
    score_rows: NonNegativeInt = 0
    """Number of prompts scored at once, if it divides the batch. On a CPU, groups of 16 fit into the cache and run
    twice as fast. 0: all with one length; with several, a size that suits play and learning."""
    score_widths: Annotated[int, In("[0, 64]")] = 0
    """Number of padded lengths, evenly spaced up to the longest prompt. Prompts are sorted by length, and each group of
    `score_rows` uses the shortest length that fits it. More lengths: less computation on padding, longer
    compilation. If microbatches (`ppo.microbatches`) have at most `score_rows` prompts, they are sorted by length
    instead, and the gradient does not repeat the forward pass; with `score_rows` 0, microbatches are groups of that
    size. 1: all prompts have the longest length. 0: by device, 1 on a CPU and for small models, else 4."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but uses far less memory."""
    attention: Attention = "auto"
    """How attention is computed: `auto` takes cuDNN's kernel on GPUs and splash attention on TPUs where they can, else
    `recomputed` scores, and on a CPU `saved` ones."""
    mesh: str = field(default="", metadata={"resume": "free"})  # `llmrl_jax.core.config.FREE`, a layer above
    """Device mesh, e.g. `data=4,fsdp=2`: environments are sharded over `data`, weights over `fsdp` and `tensor`. Empty:
    one device."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """The learner of the agents `llm` and `symbolic`."""
    symbolic: SymbolicConfig = field(default_factory=SymbolicConfig)
    """The network of the agent `symbolic`."""
    drrn: DRRNConfig = field(default_factory=DRRNConfig)
    """The network of the agent `drrn`."""
    dqn: DQNConfig = field(default_factory=lambda: DRRN_DQN)
    """The learner of the agent `drrn`."""

    def __post_init__(self):
        super().__post_init__()
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )
