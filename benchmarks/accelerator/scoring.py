"""Scoring of six actions after prompts of 192 tokens: prompts per second, which are the steps of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import counts
from benchmarks.accelerator.record import Case, Measured, Settings, clocked
from benchmarks.accelerator.shapes import SHAPES, TINY, described, drawn, dtype, model_of
from benchmarks.scoring import ACTIONS, PROMPT
from llmrl_jax import lm


BATCH = 64


def measure(config: lm.LlamaConfig, batch: int, prompt: int) -> Measured:
    """Scores of `benchmarks.scoring.ACTIONS` after `batch` prompts."""
    model = model_of(config)
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, config.vocab_size, (batch, prompt)), jnp.int32)
    args = (drawn(model), tokens, jnp.full(batch, prompt, jnp.int32))
    times, took, _, temporary = clocked(lambda v, t, n: lm.score(model, v, t, n, ACTIONS).sum, *args)
    flop = batch * counts.scoring_flop(config, prompt, ACTIONS)
    form = lm.choose_form(config, prompt, ACTIONS)
    return Measured(
        times, took, batch, "prompts", flop, counts.SCORING, facts={"form": form, "temporary_bytes": temporary}
    )


def cases(settings: Settings) -> Iterator[Case]:
    """One batch for each shape."""
    batch, prompt = (2, 12) if settings.tiny else (BATCH, PROMPT)
    shapes = {"tiny": TINY} if settings.tiny else {name: SHAPES[name] for name in ("1B", "135M", "7B")}
    for name, config in shapes.items():
        sizes = {"batch": batch, "prompt": prompt, "actions": len(ACTIONS), "dtype": dtype().name}
        case = f"{name}, batch {batch}, {len(ACTIONS)} actions under {prompt} tokens"
        yield Case(case, described(config) | sizes, partial(measure, config, batch, prompt))
