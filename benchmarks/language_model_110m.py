"""A language model of 110 million weights, one sequence at a time, compared with transformers and peft on torch."""

from __future__ import annotations

import os

from benchmarks.harness import Result
from benchmarks.language_model import measure, note
from llmrl_jax import lm


TITLE = "The language model, 110 million weights: forward, greedy text and fine-tuning, compared with torch"


def run(quick: bool = False) -> Result:
    """Tokens per second."""
    threads, layers = len(os.sched_getaffinity(0)), 1 if quick else 12
    config = lm.LlamaConfig(32_000, 768, 2048, layers, 12, 12, max_position_embeddings=2048, tie_word_embeddings=True)
    return Result(*measure("110M", config, (1,), threads), [note(threads)])
