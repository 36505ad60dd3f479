"""Batches in parts give what whole batches give, gradients included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.kernels.chunked import ROWS, chunked_ensemble_mean, chunked_map, num_chunks
from llmrl_jax.rl.actors import Critics
from llmrl_jax.rl.offline_data import ActionKind


def test_parts_divide_the_batch():
    assert num_chunks(256, 30) == 4 and num_chunks(100, 30) == 2 and num_chunks(256, 100) == 16
    assert num_chunks(7, 1) == 1 and num_chunks(7, 300) == 7 and num_chunks(3, 2 * ROWS) == 3


def test_an_accelerator_has_one_part(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert num_chunks(256, 30) == 1


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_map_in_parts_is_the_map(count):
    x = jnp.arange(12.0).reshape(6, 2)
    double = chunked_map(lambda rows: {"sum": jnp.sum(rows["x"], axis=1), "twice": 2 * rows["x"]}, {"x": x}, count)
    np.testing.assert_array_equal(double["sum"], x.sum(1))
    np.testing.assert_array_equal(double["twice"], 2 * x)


@pytest.mark.parametrize("count", [1, 3])
def test_means_in_parts_have_the_gradients_of_the_whole(count):
    critics = Critics(ActionKind.box(-1.0, 1.0, 2), (5,))
    keys = jax.random.split(jax.random.key(0), 3)
    params = critics.init(keys[0], 3)
    rows = (jax.random.normal(keys[1], (6, 3)), jax.random.normal(keys[2], (6, 4, 2)))
    weight = jnp.array([2.0, -3.0])  # unequal, so that each member's gradient has to get its own

    def values(params, rows):
        return jax.nn.logsumexp(critics(params, *rows), axis=-1)

    def whole(params):
        return weight @ jnp.mean(values(params, rows), axis=1)

    def in_parts(params):
        return weight @ chunked_ensemble_mean(values, params, rows, count)

    wanted, found = (jax.jit(jax.value_and_grad(f))(params) for f in (whole, in_parts))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), wanted, found)
    np.testing.assert_allclose(jax.jit(in_parts)(params), wanted[0], rtol=1e-6)  # also where nothing is differentiated
