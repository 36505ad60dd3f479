"""Forward passes over tokens of rows that are at different positions."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from envs_jax.tracing import tracing_for
from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.cache import UNROLLED, Reading, Slots


GROUPS, GROUP, MOST, LENGTH = 2, 3, 5, 18
"""Groups of rows, tokens that two rows of each are given at once, and tokens of a text."""


@pytest.mark.parametrize(
    ("platform", "layers", "window"),
    [("cpu", 2, None), ("cpu", UNROLLED + 1, 5), ("tpu", UNROLLED + 1, None), ("tpu", UNROLLED + 1, 5)],
)
def test_tokens_of_rows_at_different_positions(platform, layers, window):
    """In each pass some rows are given one token, and up to two rows of a group several, which begin their texts or go
    on; hidden states are those of a forward pass over the whole text."""
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
            row, number = np.tile([0, 1], (GROUPS, 1)), np.zeros((GROUPS, 2), int)
            for group in range(GROUPS):
                order = rng.permutation(GROUP)
                waiting = [i for i in order if waits[group * GROUP + i]][: rng.integers(0, 3)]
                row[group] = (waiting + [i for i in order if i not in waiting])[:2]
                for n in range(len(waiting)):
                    number[group, n] = rng.integers(0, MOST - number[group].sum() + 1)
            reads = np.arange(GROUPS)[:, None] * GROUP + row
            read = Reading(row, at[reads] + ~waits[reads], number)
            one = np.where(waits, 0, texts[text, at]).reshape(GROUPS, GROUP)
            many = np.zeros((GROUPS, MOST), int)
            for group, n in np.ndindex(number.shape):
                i, end = reads[group, n], number[group, : n + 1].sum()
                many[group, end - number[group, n] : end] = texts[text[i]][at[i] :][: number[group, n]]
            tokens = np.concatenate([one, many], axis=1)
            hidden, slots = extend(tokens, slots, at.reshape(GROUPS, GROUP), read)
            taken = (~waits).astype(int)
            for group, n in np.ndindex(number.shape):
                taken[reads[group, n]] += number[group, n]
            for i in range(count):
                group, n = i // GROUP, np.flatnonzero(row[i // GROUP] == i % GROUP)
                got = hidden[group, i % GROUP, None]
                if waits[i] and n.size:
                    got = hidden[group, GROUP + number[group, : n[0]].sum() :]
                np.testing.assert_allclose(got[: taken[i]], expected[text[i], at[i] :][: taken[i]], atol=2e-6)
                compared += taken[i]
            begins = np.where(taken > 0, False, begins)
            at = at + taken
            over = (at + MOST >= LENGTH) | (~begins & (rng.random(count) < 0.1))
            text, at = np.where(over, rng.integers(2 * count, size=count), text), np.where(over, 0, at)
            begins = begins | over
        assert compared > 100
