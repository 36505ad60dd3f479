"""The settings of fine-tuning runs: what config.json holds, and what the commands' flags change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from llmrl_jax import lm
from llmrl_jax.core.checks import above, at_least, fields_at_least
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import RunConfig
from llmrl_jax.tuning import GRPOConfig, SFTConfig


Quantize = Literal["none", "int8", "nf4"]
"""How a frozen base is kept."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What fine-tuning asks of a model, whatever it learns from."""

    model: str
    """A folder with config.json, safetensors and tokenizer.json, or a Hugging Face hub id."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    quantize: Quantize = "none"
    """Keep the frozen base's matrices in 8.5 (int8) or 4.5 (nf4) bits a weight; with adapters only."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the frozen base and of what the model computes; what is trained and the loss are float32 in any case."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but it needs far less memory."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=100))

    def __post_init__(self):
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )


@dataclass(frozen=True, kw_only=True)
class TuneConfig(Tuned):
    """A run of supervised fine-tuning: which model, on which text, and how the run is kept."""

    KIND: ClassVar[str] = "lm sft"

    data: Path
    """Rows to learn, .jsonl or .parquet: `prompt` and `response`, or `messages` for the model's chat template."""
    eval_data: str = ""
    """Rows to measure the loss on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    length: int = 512
    """Tokens in a row."""
    pack: bool = True
    """Put several examples into a row; they do not see one another."""
    overflow: Literal["refuse", "cut"] = "refuse"
    """What happens to an example longer than a row: an error that names it, or its end is cut off."""
    epochs: float = 1.0
    """Passes over the rows."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""

    def __post_init__(self):
        super().__post_init__()
        above("epochs", self.epochs, 0)
        at_least("length", self.length, 1)


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Tuned):
    """A run of GRPO: which model, on which prompts, rewarded for what, and how the run is kept."""

    KIND: ClassVar[str] = "lm grpo"

    data: Path
    """Prompts, .jsonl or .parquet: `prompt`, or `messages` for the model's chat template, and what the reward reads."""
    reward: str
    """`exact`, `contains` or `last-number` (against the row's `response`), or your own `FILE.py:FUNCTION`, which is
    run: function(prompts, completions, rows) -> a number for each completion."""
    eval_data: str = ""
    """Prompts to measure the reward on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    updates: int = field(default=100, metadata=FREE)
    """Updates; each samples `grpo.prompts` x `grpo.group` completions."""
    max_prompt: int = 512
    """Tokens of the longest prompt that is taken; a longer one is refused by its line."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """The learner."""

    def __post_init__(self):
        super().__post_init__()
        fields_at_least(self, 1, "updates", "max_prompt")
