"""Codes of grids as one-hot vectors, and the products of symbols with a kernel beside those of their vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import spaces
from llmrl_jax.rl.branches import SymbolLayer
from llmrl_jax.rl.networks import Symbols, dense, one_hots, plane_sizes


SIZES = (4, 3)


def symbols(dtype, numbers=5, rows=6):
    """Codes of a grid of 2 x 3 cells, some of them outside their plane's."""
    rng = np.random.default_rng(0)
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
    grid = jnp.asarray(rng.integers(low, 6, (rows, 2, 3, len(SIZES))), dtype)
    return Symbols(grid, jnp.asarray(rng.normal(size=(rows, numbers)), jnp.float32), SIZES)


def test_planes_by_hand():
    space = spaces.Box(np.array([[[0, 0], [0, 0]]]), np.array([[[2, 1], [1, 0]]]), (1, 2, 2), np.uint8)
    assert plane_sizes(space) == (3, 2)
    grid = jnp.array([[[[2, 0], [1, 1]]]])
    kind, state = one_hots(grid, (3, 2))
    assert kind.tolist() == [[[[0, 0, 1], [0, 1, 0]]]] and state.tolist() == [[[[1, 0], [0, 1]]]]


def test_vector_by_hand():
    grid = jnp.asarray([[[1, 2], [9, 0]]], jnp.uint8)
    seen = Symbols(grid, jnp.asarray([[0.5]]), SIZES)
    wanted = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0.5]
    np.testing.assert_array_equal(seen.vector(), [wanted])
    np.testing.assert_array_equal(seen.rows(), [[1, 15, 10, 11]])
    assert seen.width == 15


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("numbers", [0, 5])
def test_products_and_gradients_are_those_of_the_vector(dtype, numbers):
    seen = symbols(dtype, numbers)
    kernel = jax.random.normal(jax.random.key(0), (seen.width, 8))
    with_numbers = lambda numbers: seen.replace(numbers=numbers)  # noqa: E731
    ours = lambda kernel, numbers: jnp.sin(with_numbers(numbers).product(kernel))  # noqa: E731
    plain = lambda kernel, numbers: jnp.sin(with_numbers(numbers).vector() @ kernel)  # noqa: E731
    np.testing.assert_allclose(ours(kernel, seen.numbers), plain(kernel, seen.numbers), atol=2e-6)
    gradients = [jax.jit(jax.grad(lambda *x, f=f: jnp.sum(f(*x)), (0, 1))) for f in (ours, plain)]
    for got, wanted in zip(*(f(kernel, seen.numbers) for f in gradients)):
        np.testing.assert_allclose(got, wanted, atol=4e-6)


def test_products_of_many_kernels_are_those_of_each():
    seen = symbols(np.uint8)
    kernels = jax.random.normal(jax.random.key(0), (3, seen.width, 8))
    loss = lambda kernel: jnp.sum(jnp.square(seen.product(kernel)))  # noqa: E731
    values, gradients = jax.vmap(jax.value_and_grad(loss))(kernels)
    for i, kernel in enumerate(kernels):
        value, gradient = jax.value_and_grad(loss)(kernel)
        np.testing.assert_allclose(values[i], value, rtol=1e-6)
        np.testing.assert_allclose(gradients[i], gradient, atol=1e-4)


def test_other_backends_multiply_the_vector(monkeypatch):
    seen = symbols(np.uint8)
    kernel = jax.random.normal(jax.random.key(0), (seen.width, 8))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_array_equal(seen.product(kernel), seen.vector() @ kernel)


def test_the_layer_starts_as_a_dense_one():
    seen = symbols(np.uint8)
    layer, plain = SymbolLayer(8, 2.0, name="symbols"), dense(8, 2.0, "symbols")
    ours, wanted = layer.init(jax.random.key(3), seen), plain.init(jax.random.key(3), seen.vector())
    jax.tree.map(np.testing.assert_array_equal, ours, wanted)
    np.testing.assert_allclose(layer.apply(ours, seen), plain.apply(ours, seen.vector()), atol=2e-6)
