"""Sizes of a small Llama with random weights, its configuration, and settings that other models do not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from llmrl_jax.core.checks import Checked, In, Width, refuse_unread
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.tokens import FastTokenizer


EMBEDDED = "embedded"
"""Name of the built-in model: a small Llama with random weights."""


@dataclass(frozen=True)
class SmallConfig(Checked):
    """The small Llama of `--model embedded`; its tokenizer has one token per word."""

    PREFIX: ClassVar[str] = "embedded."

    hidden_size: Width = 64
    """Width of the residual stream."""
    layers: Annotated[int, In("[1, 1000]")] = 2
    """Number of transformer layers."""
    heads: Width = 4
    """Number of attention heads; twice this number must divide `hidden_size`."""
    intermediate_size: Width = 128
    """Width of the gated feed-forward layer."""

    def __post_init__(self):
        super().__post_init__()
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"embedded.hidden_size is {self.hidden_size}; a multiple of twice embedded.heads ({self.heads}) is "
                "needed, since rotary positions turn pairs"
            )

    def llama(self, tokenizer: FastTokenizer, positions: int) -> LlamaConfig:
        """The configuration of the model, given its tokenizer and its number of positions."""
        return LlamaConfig(
            vocab_size=-(-tokenizer.vocab_size // 8) * 8,  # a multiple of 8, divisible by common meshes
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=positions,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_id,
            eos_token_id=tokenizer.eos_id,
        )


def refuse_unread_weights(config: Any, usual: Any) -> None:
    """**Raises** `ValueError` for sizes of a model that is loaded, and for adapters where all weights are trained.

    **Arguments:** `config`, with `model`, `embedded`, `tune` and `lora`; `usual`, as of `refuse_unread`: presets set
    these too."""
    if config.model != EMBEDDED:
        refuse_unread(config, ("embedded",), f"--model {config.model}", usual=usual)
    if config.tune == "full":
        refuse_unread(config, ("lora",), "--tune full", usual=usual)
