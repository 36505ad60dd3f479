"""The settings of fine-tuning runs: the contents of config.json, and the flags of the commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from llmrl_jax import lm
from llmrl_jax.core.checks import Checked, Epochs, PositiveInt
from llmrl_jax.core.config import FREE
from llmrl_jax.lm.attention import Attention
from llmrl_jax.lm.narrow import Computed
from llmrl_jax.run.config import RunConfig
from llmrl_jax.tuning import GRPOConfig, SFTConfig


Quantize = Literal["none", "int8", "nf4"]
"""How the frozen base is stored."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Checked):
    """The settings that all fine-tuning runs share."""

    model: str
    """A Hugging Face folder or hub id, a GGUF file, or smollm2-135m (see `make smollm2`)."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, if `tune` is `lora`."""
    quantize: Quantize = "none"
    """Store the frozen base's matrices in 8.5 (int8) or 4.5 (nf4) bits per weight; with adapters only."""
    dtype: Computed = "float32"
    """Type of the frozen base and of the computation; trained parameters and the loss are always float32. `mixed`:
    float32, with the factors of products with weights rounded to bfloat16."""
    remat: bool = False
    """Recompute activations in the backward pass: slower, but with far less memory."""
    attention: Attention = "auto"
    """How attention is computed: `auto` takes cuDNN's kernel on GPUs and splash attention on TPUs where they can, else
    `recomputed` scores, and on a CPU `saved` ones."""
    mesh: str = field(default="", metadata=FREE)
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    date: str = ""
    """The date, as in 2026-11-23, for chat templates that write one; empty: that of the start, which a resumed run
    keeps."""
    run: RunConfig = field(default_factory=lambda: RunConfig(checkpoint_every=100))

    def __post_init__(self):
        super().__post_init__()
        if self.quantize != "none" and self.tune == "full":
            raise ValueError(
                f"quantize is {self.quantize}, which freezes the base: take --tune lora, or leave --quantize out"
            )
        try:
            datetime.fromisoformat(self.date or "2000-01-01")
        except ValueError as error:
            raise ValueError(f"date is {self.date!r}; a date as in 2026-11-23 is needed") from error


@dataclass(frozen=True, kw_only=True)
class TuneConfig(Tuned):
    """Settings of supervised fine-tuning: model, text and run."""

    KIND: ClassVar[str] = "lm sft"

    data: Path
    """Training data, .jsonl or .parquet: `prompt` and `response`, or `messages` for the model's chat template."""
    eval_data: str = ""
    """Evaluation data for the loss, at the start, every `run.eval_every` updates and at the end; empty: none."""
    length: PositiveInt = 512
    """Tokens per row."""
    pack: bool = True
    """Pack several examples into a row; they do not attend to one another."""
    overflow: Literal["refuse", "cut"] = "refuse"
    """Handling of an example longer than a row: an error that names it, or truncation of its end."""
    epochs: Epochs = 1.0
    """Passes over the data."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""


@dataclass(frozen=True, kw_only=True)
class GrpoRun(Tuned):
    """Settings of GRPO: model, prompts, reward and run."""

    KIND: ClassVar[str] = "lm grpo"

    data: Path
    """Prompts, .jsonl or .parquet: `prompt`, or `messages` for the model's chat template, and the fields that the
    reward reads."""
    reward: str
    """`exact`, `contains` or `last-number` (against the row's `response`), or your own `FILE.py:FUNCTION`, whose code
    is executed: function(prompts, completions, rows) -> a number for each completion."""
    eval_data: str = ""
    """Prompts to evaluate the reward on, at the start, every `run.eval_every` updates and at the end; empty: none."""
    updates: PositiveInt = field(default=100, metadata=FREE)
    """Updates; each samples `grpo.prompts` x `grpo.group` completions."""
    max_prompt: PositiveInt = 512
    """Maximum number of tokens of a prompt; for a longer one the run fails with its line."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """The learner."""
