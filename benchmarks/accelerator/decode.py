"""Decoding: tokens per second, and bytes of weights and cache read per second."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import counts
from benchmarks.accelerator.record import Case, Measured, Settings, clocked
from benchmarks.accelerator.shapes import SHAPES, TINY, described, drawn, dtype, model_of
from benchmarks.harness import compiled
from llmrl_jax import lm
from llmrl_jax.lm.generate import advance, read_prompts, start


def measure(config: lm.LlamaConfig, batch: int, prompt: int, new: int) -> Measured:
    """Greedy continuations: the loop over tokens of `lm.generate`, without the pass over the prompts."""
    model = model_of(config)
    variables = drawn(model)
    fixed, traced = lm.SamplingConfig(max_new_tokens=new, temperature=0.0, stop_tokens=()).split()
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, config.vocab_size, (batch, prompt)), jnp.int32)
    lengths, keys = jnp.full(batch, prompt, jnp.int32), jax.random.split(jax.random.key(1), batch)

    def begin(variables: Any, tokens: jax.Array) -> Any:
        read = read_prompts(model, variables, tokens, lengths)
        return start(model, fixed, traced, None, tokens, lengths, keys, *read)

    def loop(variables: Any, state: Any) -> Any:
        out = advance(model, fixed, variables, traced, None, state, new).output
        return out.tokens, out.log_probs

    first, prompt_compile = compiled(begin, variables, tokens)
    times, took, _, temporary = clocked(loop, variables, first(variables, tokens))
    read = counts.decoding_bytes(config, batch, prompt, new, dtype().itemsize)
    return Measured(
        times,
        took,
        batch * (new - 1),
        "tokens",
        bytes=read,
        bytes_formula=counts.DECODING,
        facts={
            "prompt_compile_seconds": prompt_compile,
            "milliseconds_per_step": 1e3 * statistics.median(times) / (new - 1),
            "bytes_per_step": read / (new - 1),
            "temporary_bytes": temporary,
        },
    )


def cases(settings: Settings) -> Iterator[Case]:
    """Batches of 64 and 1 for each shape."""
    shapes = {"tiny": TINY} if settings.tiny else {name: SHAPES[name] for name in ("1B", "7B", "135M")}
    batches, prompt, new = ((3, 1), 8, 4) if settings.tiny else ((64, 1), 256, 128)
    for name, config in shapes.items():
        for batch in batches:
            sizes = {"batch": batch, "prompt": prompt, "new_tokens": new, "dtype": dtype().name}
            case = f"{name}, batch {batch}, {new} tokens after {prompt}"
            yield Case(case, described(config) | sizes, partial(measure, config, batch, prompt, new))
