"""Products of small networks: against XLA's own, gradients included."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.kernels.products import THIN, convolution_reference, convolve, thin_matmul


@pytest.mark.parametrize(
    ("fast", "reference", "shapes"),
    [
        (convolve, convolution_reference, ((2, 6, 5, 3), (2, 2, 3, 4))),
        (convolve, convolution_reference, ((2, 6, 5, 3), (3, 3, 3, 4))),
        (thin_matmul, jnp.matmul, ((2, 3, 5), (5, 1))),
        (thin_matmul, jnp.matmul, ((2, 3, 5), (5, THIN))),
        (thin_matmul, jnp.matmul, ((2, 3, 5), (5, THIN + 1))),
    ],
)
def test_values_and_gradients_are_those_of_the_reference(fast, reference, shapes):
    a, b, c = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(a, shapes[0]), jax.random.normal(b, shapes[1])
    expected = reference(x, kernel)
    weight = jax.random.normal(c, expected.shape)

    def loss(function, x, kernel):
        return jnp.sum(weight * function(x, kernel))

    np.testing.assert_allclose(fast(x, kernel), expected, atol=1e-5)
    grads, expected_grads = (jax.grad(partial(loss, f), (0, 1))(x, kernel) for f in (fast, reference))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), grads, expected_grads)
