"""Forward passes over tokens of rows that are at different positions."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from envs_jax.tracing import tracing_for
from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.cache import UNROLLED, Slots


GROUPS, GROUP, MOST, LENGTH = 2, 3, 4, 18
"""Groups of rows, tokens of which one row of each is given several at once, and tokens of a text."""


@pytest.mark.parametrize(
    ("platform", "layers", "window"),
    [("cpu", 2, None), ("cpu", UNROLLED + 1, 5), ("tpu", UNROLLED + 1, None), ("tpu", UNROLLED + 1, 5)],
)
def test_tokens_of_rows_at_different_positions(platform, layers, window):
    """In each pass some rows are given one token, and one row of a group up to four, which begin its text or go on;
    hidden states are those of a forward pass over the whole text."""
    kind = "llama" if window is None else "mistral"
    config = LlamaConfig(19, 16, 24, layers, 4, 2, max_position_embeddings=32, sliding_window=window, model_type=kind)
    model, count = Llama(config), GROUPS * GROUP
    texts = jax.random.randint(jax.random.key(0), (2 * count, LENGTH), 0, 19)
    variables = jax.jit(model.init)(jax.random.key(1), texts[:1])
    expected = np.asarray(jax.jit(model.apply)(variables, texts).hidden)
    texts, rng = np.asarray(texts), np.random.default_rng(layers)
    at = np.array([3, 1, 0, 2, 5, 1])
    with tracing_for(platform):
        cache = jax.jit(lambda tokens, at: model.apply(variables, tokens, lengths=at, cache=LENGTH).cache)
        slots = Slots.create(cache(texts[:count, :5], at), GROUP, MOST)
        assert (slots.per_layer, slots.merged) == (layers <= UNROLLED, platform == "tpu")
        assert slots.capacity == (32 if platform == "tpu" else LENGTH + MOST)
        extend = jax.jit(lambda *arguments: model.apply(variables, *arguments, method=Llama.extend))
        text, begins, compared = np.arange(count), at == 0, 0
        for _ in range(24):
            waits = begins | (rng.random(count) < 0.4)
            row, number = np.zeros(GROUPS, int), np.zeros(GROUPS, int)
            for group in range(GROUPS):
                if rng.random() < 0.8 and (waiting := np.flatnonzero(waits[group * GROUP :][:GROUP])).size:
                    row[group], number[group] = rng.choice(waiting), rng.integers(1, MOST + 1)
            reads = np.arange(GROUPS) * GROUP + row
            start = at[reads] + ~waits[reads]
            one = np.where(waits, 0, texts[text, at]).reshape(GROUPS, GROUP)
            many = [np.pad(texts[text[i]], (0, MOST))[j : j + MOST] for i, j in zip(reads, start, strict=True)]
            tokens, places = np.concatenate([one, many], axis=1), at.reshape(GROUPS, GROUP)
            hidden, slots = extend(tokens, slots, places, row, start, number)
            taken = (~waits).astype(int)
            taken[reads] = np.where(number > 0, number, taken[reads])
            for i in range(count):
                group, many_of_it = i // GROUP, i in reads[number > 0]
                got = hidden[group, GROUP:] if many_of_it else hidden[group, i % GROUP, None]
                np.testing.assert_allclose(got[: taken[i]], expected[text[i], at[i] :][: taken[i]], atol=2e-6)
                compared += taken[i]
            begins = np.where(taken > 0, False, begins)
            at = at + taken
            over = (at + MOST >= LENGTH) | (~begins & (rng.random(count) < 0.1))
            text, at = np.where(over, rng.integers(2 * count, size=count), text), np.where(over, 0, at)
            begins = begins | over
        assert compared > 100
