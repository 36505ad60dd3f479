"""LoRA training: tokens per second of the library's supervised fine-tuning, and the share of the device's peak."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.accelerator import counts
from benchmarks.accelerator.record import Case, Measured, Settings, clocked, peak_of_device, spread
from benchmarks.accelerator.shapes import AFTER, BEFORE, SHAPES, TINY, attending, described, drawn, dtype, model_of
from benchmarks.language_model import LORA
from llmrl_jax import lm
from llmrl_jax.tuning import Example, SFTConfig, make_sft, pack


@dataclass(frozen=True)
class Step:
    """The sizes and options of a gradient step."""

    batch: int
    """Rows of `length` tokens."""
    length: int
    remat: bool = False
    microbatches: int = 1
    head_chunk: int = 0
    attention: str = AFTER


FULL = [
    # before and after: attention and the head, all else equal
    ("1B", Step(8, 1024, microbatches=4, attention=BEFORE)),
    ("1B", Step(8, 1024, microbatches=4, head_chunk=256)),
    ("135M", Step(32, 1024, microbatches=4, attention=BEFORE)),
    ("135M", Step(32, 1024, microbatches=4, head_chunk=256)),
    # what the memory that this frees is for
    ("1B", Step(8, 1024, head_chunk=256)),
    ("135M", Step(32, 1024, head_chunk=256)),
    ("1B", Step(8, 1024)),
    ("135M", Step(32, 1024)),
    # each of the two alone
    ("1B", Step(8, 1024, microbatches=4)),
    ("1B", Step(8, 1024, microbatches=4, head_chunk=256, attention="recomputed")),
    ("135M", Step(32, 1024, microbatches=4)),
    ("7B", Step(4, 1024, remat=True, head_chunk=256)),
    ("1B", Step(32, 1024, remat=True, head_chunk=256)),
    ("7B", Step(4, 1024, remat=True, attention=BEFORE)),
    ("1B", Step(8, 1024, remat=True, attention=BEFORE)),
    ("135M", Step(32, 1024, remat=True, attention=BEFORE)),
    ("7B", Step(16, 1024, remat=True, microbatches=4, head_chunk=256)),
]
"""The cases of `--size full`, the most important first. Without `remat`, the activations of a 7B model do not fit."""


def measure(config: lm.LlamaConfig, how: Step) -> Measured:
    """A gradient step of LoRA on full rows of random tokens, optimiser included."""
    model = model_of(config, lora=LORA, remat=how.remat, **attending(how.attention))
    tokens = np.random.default_rng(0).integers(3, config.vocab_size, (how.batch, how.length))
    rows = pack([Example(row.tolist(), [True] * how.length) for row in tokens], how.length)
    sft = SFTConfig(
        batch_size=how.batch,
        microbatches=how.microbatches,
        learning_rate=1e-4,
        schedule="constant",
        warmup=0.0,
        head_chunk=how.head_chunk,
    )
    learner = make_sft(sft, model, drawn(model), rows, 1000)

    def step(state: Any) -> Any:
        after, metrics = learner.update(state)
        return after.params, after.opt_state, metrics  # not the frozen base, which would be copied

    times, took, (*_, metrics), temporary = clocked(step, learner.init(jax.random.key(1)))
    count = how.batch * how.length
    whole, peak = counts.training_flop_with_attention(config, count, how.length), peak_of_device()
    rate = whole / spread(times)["median"]
    attention = {
        "per_call": whole,
        "formula": counts.TRAINING_WITH_ATTENTION,
        "per_second": rate,
        "mfu": peak and rate / peak.flops,
    }
    flop = counts.training_flop(config, count)
    facts = {"flop_with_attention": attention, "temporary_bytes": temporary, "loss": float(metrics["loss"])}
    return Measured(times, took, count, "tokens", flop, counts.TRAINING, facts=facts)


def cases(settings: Settings) -> Iterator[Case]:
    """A step of each shape: before and after what is meant to make it fast, and the parts of that."""
    shapes = {"tiny": TINY, **SHAPES}
    tiny = [("tiny", Step(4, 16, True, 2, attention=BEFORE)), ("tiny", Step(4, 16, True, 2, 8))]
    for name, how in tiny if settings.tiny else FULL:
        options = [f"{how.batch} x {how.length} tokens"]
        options += ["remat"] * how.remat
        options += [f"{how.microbatches} microbatches"] * (how.microbatches > 1)
        options += [f"head in chunks of {how.head_chunk}"] * (how.head_chunk > 0)
        options += [f"attention {how.attention}"]
        lora = {"rank": LORA.rank, "targets": list(LORA.targets)}
        shape = described(shapes[name]) | dataclasses.asdict(how) | {"lora": lora, "dtype": dtype().name}
        shape |= {"attention": attending(how.attention).get("attention", "the model has one form")}
        yield Case(f"{name}, {', '.join(options)}", shape, partial(measure, shapes[name], how))
