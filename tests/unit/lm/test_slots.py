"""Forward passes over tokens of rows that are at different positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.cache import UNROLLED, Cache, Slots


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("layers", [2, UNROLLED + 1])
def test_tokens_of_rows_at_different_positions(layers, window):
    """Two groups of three rows: in each pass every row is given one token, and one row of each group four; hidden
    states are those of a forward pass over the whole text."""
    kind = "llama" if window is None else "mistral"
    config = LlamaConfig(19, 16, 24, layers, 4, 2, max_position_embeddings=32, sliding_window=window, model_type=kind)
    model = Llama(config)
    texts = jax.random.randint(jax.random.key(0), (6, 12), 0, 19)
    variables = jax.jit(model.init)(jax.random.key(1), texts[:1])
    hidden_states = np.asarray(jax.jit(model.apply)(variables, texts).hidden)
    lengths = np.array([3, 1, 0, 2, 4, 1])
    positions = jnp.where(jnp.arange(5) < lengths[:, None], jnp.arange(5), -1)
    cache = Cache.create(model.config, 6, 5)
    cache = jax.jit(model.apply)(variables, texts[:, :5], positions=positions, cache=cache).cache
    slots = Slots.create(cache, 11)
    assert slots.capacity == 16 and slots.per_layer == (layers <= UNROLLED)
    extend = jax.jit(lambda *arguments: model.apply(variables, *arguments, method=Llama.extend))

    def grouped(x):
        return jnp.asarray(x).reshape(2, 3)

    for row in ([2, 0], [2, 1]):
        reads = np.arange(2) * 3 + np.array(row)
        token = texts[np.arange(6), lengths]  # of the rows that read it is written over
        many = jnp.stack([texts[i, lengths[i] : lengths[i] + 4] for i in reads])
        tokens = jnp.concatenate([grouped(token), many], axis=1)
        hidden, slots = extend(tokens, slots, grouped(lengths), jnp.array(row), jnp.asarray(lengths[reads]))
        for i in range(6):
            g = i // 3
            if i in reads:
                expected, got = hidden_states[i, lengths[i] : lengths[i] + 4], hidden[g, 3:]
            else:
                expected, got = hidden_states[i, lengths[i]], hidden[g, i % 3]
            np.testing.assert_allclose(got, expected, atol=2e-6)
        lengths = lengths + np.where(np.isin(np.arange(6), reads), 4, 1)
