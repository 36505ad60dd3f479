"""What is to be run, and on what: the options of `llmrl lm fit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from llmrl_jax import lm
from llmrl_jax.core.checks import fields_at_least
from llmrl_jax.run.memory.sizes import parse_bytes


@dataclass(frozen=True)
class FitConfig:
    """What is to be run, and on what."""

    model: str
    """A model folder, its config.json, or a Hugging Face hub id. No weights are read."""
    workload: Literal["sft", "grpo", "score", "generate"] = "sft"
    """A step of fine-tuning or of GRPO as `llmrl lm` runs it; `score`: the gradient of a batch of scored prompts, as
    in PPO's minibatches (without the critic); `generate`: sampling."""
    batch_size: int = 16
    """Rows in a step: texts (sft), prompts (grpo, score, generate)."""
    length: int = 512
    """Tokens in a row of text, or in the longest prompt."""
    new_tokens: int = 128
    """grpo, generate: tokens in a continuation, at most."""
    samples: int = 1
    """grpo (where it is the group, at least 2), generate: continuations of each prompt."""
    candidates: int = 6
    """score: candidates to choose from, of `candidate_tokens` tokens each."""
    candidate_tokens: int = 4
    """score: tokens in a candidate."""
    rows: int = 0
    """sft, grpo: rows of data, which every device holds; 0: as many as a step takes."""
    microbatches: int = 1
    """sft, grpo: parts in which a step's gradient is computed."""
    head_chunk: int = 0
    """sft, grpo: positions whose logits exist at once; 0: all."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: lm.LoRAConfig = field(default_factory=lm.LoRAConfig)
    """The adapters, where `tune` is `lora`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the model computes in."""
    param_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """What its weights are kept in; `same`: as the commands keep them, which is float32 where every weight is trained
    and else as `dtype`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """What the matrices of a frozen base are kept in, in place of `param_dtype`."""
    remat: bool = False
    """Recompute activations in the backward pass."""
    mesh: str = ""
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    devices: int = 0
    """Compile for so many simulated CPU devices in place of those that are present; 0: those that are."""
    memory: str = ""
    """Memory of a device, as 16GiB or 80GB. Empty: what the devices say they have (CPUs say nothing)."""
    advise: bool = True
    """Where it does not fit: compile again with each option that saves memory, and say what helps."""

    def __post_init__(self):
        fields_at_least(self, 1, "batch_size", "length", "new_tokens", "samples", "candidates", "candidate_tokens")
        fields_at_least(self, 1, "microbatches")
        fields_at_least(self, 0, "rows", "devices", "head_chunk")
        if self.quantize != "none" and self.trains and self.tune == "full":
            raise ValueError(f"quantize {self.quantize} needs a frozen base: choose --tune lora")
        if self.memory:
            parse_bytes(self.memory)

    @property
    def trains(self) -> bool:
        """Whether there is a gradient and an optimiser."""
        return self.workload != "generate"
