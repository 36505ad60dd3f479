"""The workload and its devices: the options of `llmrl lm fit`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from llmrl_jax import lm
from llmrl_jax.core.checks import Checked, In, Needs, NonNegativeInt, PositiveInt, nearest
from llmrl_jax.kernels.attention import Attention
from llmrl_jax.parallel.absent import Target


LANGUAGE = ("sft", "grpo", "score", "generate")
"""Workloads of a language model alone."""


@dataclass(frozen=True)
class FitConfig(Checked):
    """The workload and its devices."""

    KIND: ClassVar[str] = "lm fit"

    WORKLOADS: ClassVar[tuple[str, ...]] = LANGUAGE
    """The workloads of this class."""

    model: str = ""
    """A model folder, its config.json, a GGUF file, a Hugging Face hub id, or smollm2-135m. No weights are read."""
    workload: str = "sft"
    """A step of fine-tuning or of GRPO as `llmrl lm` runs it; `score`: the gradient of a batch of scored prompts, as
    in PPO's minibatches (without the critic); `generate`: sampling."""
    batch_size: PositiveInt = 16
    """Rows per step: texts (sft), prompts (grpo, score, generate)."""
    length: PositiveInt = 512
    """Tokens per row of text, or of the longest prompt."""
    new_tokens: PositiveInt = 128
    """grpo, generate: maximum tokens of a continuation."""
    samples: PositiveInt = 1
    """grpo (the group size, at least 2), generate: continuations per prompt."""
    candidates: PositiveInt = 6
    """score: number of candidates, of `candidate_tokens` tokens each."""
    candidate_tokens: PositiveInt = 4
    """score: tokens per candidate."""
    rows: NonNegativeInt = 0
    """sft, grpo: rows of data, held by every device; 0: as many as a step uses."""
    microbatches: PositiveInt = 1
    """sft, grpo: microbatches of a step's gradient."""
    head_chunk: NonNegativeInt = 0
    """sft, grpo: positions whose logits are in memory at once; 0: all."""
    tune: Literal["lora", "full"] = "lora"
    """Train adapters over a frozen base, or every weight."""
    lora: Annotated[lm.LoRAConfig, Needs("tune", "lora")] = field(default_factory=lm.LoRAConfig)
    """The adapters, if `tune` is `lora`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation."""
    param_dtype: Literal["same", "float32", "bfloat16"] = "same"
    """Type of the weights; `same`: as the commands store them, float32 if every weight is trained, else as `dtype`."""
    quantize: Literal["none", "int8", "nf4"] = "none"
    """Type of the matrices of a frozen base, instead of `param_dtype`."""
    remat: bool = False
    """Recompute activations in the backward pass."""
    attention: Attention = "auto"
    """How attention is computed; `auto` is by device."""
    target: str = ""
    """Compile for devices that are absent, as v5e:2x4, v5p:4x4x4, v6e:4x4 (TPUs), h100:8 or h200:1 (GPUs), with the
    compiler that they have (extras aot-tpu, aot-cuda). Also predicts the time. Empty: for this machine's devices."""
    mesh: str = ""
    """Devices by axis, as in `data=4,fsdp=2`. Empty: one device."""
    devices: Annotated[int, In("[0, 4096]")] = 0
    """Compile for this many simulated CPU devices; 0: for the devices of this machine."""
    memory: str = ""
    """Memory of a device, such as 16GiB or 80GB. Empty: as the devices report it (CPUs do not)."""
    advise: bool = True
    """If the workload does not fit: compile again with each option that saves memory, and print those that help."""
    json: bool = False
    """Print the results as JSON, in bytes and seconds."""
    compare: tuple[str, ...] = ()
    """Two files with results of --json: print what differs, and compile nothing."""

    def __post_init__(self):
        super().__post_init__()
        if self.workload not in self.WORKLOADS:
            close = nearest(self.workload, list(self.WORKLOADS))
            raise ValueError(f"there is no workload {self.workload!r}{close} (known: {', '.join(self.WORKLOADS)})")
        self._check_parts()
        if self.quantize != "none" and self.trains and self.tune == "full":
            raise ValueError(f"quantize {self.quantize} needs a frozen base: choose --tune lora")
        if self.memory:
            parse_bytes(self.memory)
        if self.target:
            Target.parse(self.target)
            if self.devices:
                raise ValueError("--target compiles for absent devices, --devices for simulated ones: give one of them")
        if self.compare and len(self.compare) != 2:
            raise ValueError(f"compare takes two files, not {len(self.compare)}")

    def _check_parts(self) -> None:
        """**Raises:** `ValueError` for a step that `microbatches` or `head_chunk` does not divide."""
        rows, product = self.batch_size, f"batch_size {self.batch_size}"
        if self.workload == "grpo":
            group = max(2, self.samples)
            rows, product = rows * group, f"{product} x {group} samples = {rows * group}"
        if self.workload in ("sft", "grpo") and rows % self.microbatches:
            raise ValueError(f"microbatches is {self.microbatches}; it must divide {product}")
        if self.workload in ("sft", "grpo") and self.head_chunk:
            product, size = ("length", self.length) if self.workload == "sft" else ("new_tokens", self.new_tokens)
            if size % self.head_chunk:
                raise ValueError(f"head_chunk is {self.head_chunk}; it must divide {product}, {size}")

    def described(self) -> str:
        """The sizes of the workload in words."""
        rows, prompts = f"{self.batch_size} rows", f"{self.batch_size} prompts of {self.length} tokens"
        return {
            "sft": f"a step on {rows} of {self.length} tokens",
            "grpo": f"a step on {prompts}, {max(2, self.samples)} x {self.new_tokens} new",
            "score": f"the gradient of {prompts}, {self.candidates} candidates each",
            "generate": f"{prompts}, {self.samples} x {self.new_tokens} new",
        }.get(self.workload, rows)

    @property
    def trains(self) -> bool:
        """Return whether the workload has a gradient and an optimiser."""
        return self.workload != "generate"

    @property
    def adapts(self) -> bool:
        """Return whether the trained parameters are adapters of a frozen base."""
        return self.tune == "lora" and self.trains

    @property
    def repeats(self) -> bool:
        """Return whether the program is that of a run, a loop over any number of updates."""
        return self.workload not in ("score", "generate")


# --- numbers and sizes as text --------------------------------------------------------------------------------------


def count(n: int) -> str:
    """A number with three digits and a unit: 1.10B, 27.3M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return str(n)


def parse_bytes(text: str) -> int:
    """`16GiB`, `80GB`, `512 MiB` or a plain number of bytes. **Raises:** `ValueError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"the memory is {text!r}; a size is needed, as 16GiB or 80GB")
    power = "KMGT".index(match[2].upper()) + 1 if match[2] else 0
    n = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if not n:
        raise ValueError(f"the memory is {text!r}; a device has some")
    return n
