"""Products with adapters: every form agrees with the formula, in values and gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.kernels import lora_matmul as kernels
from llmrl_jax.lm.layers import projections


RANK, SCALE, BF16 = 4, 2.0, jnp.bfloat16
SHAPES = [
    (("k", "v"), (32,), (2, 8), ()),
    (("o",), (2, 16), (24,), ()),
    (("gate", "up"), (32,), (24,), ("gate",)),
    (("up",), (32,), (24,), ("up",)),
]
"""Matrices of one input, its axes, those of their outputs, and which have no adapters."""


def matrices(names, inputs, outputs, left_out, draw):
    keys = iter(jax.random.split(jax.random.key(0), 3 * len(names)))
    params = {name: {"kernel": draw(next(keys), (*inputs, *outputs))} for name in names}
    adapted = [name for name in names if name not in left_out]
    lora = {n: {"a": draw(next(keys), (*inputs, RANK)), "b": draw(next(keys), (RANK, *outputs))} for n in adapted}
    return params, lora


def formula(x, names, params, lora, fan_in):
    """`projections` by `lora_reference`."""
    flat, order = x.reshape(*x.shape[:-fan_in], -1), [*lora, *(name for name in names if name not in lora)]
    kernels_ = [params[name]["kernel"].reshape(flat.shape[-1], -1) for name in order]
    a = [ab["a"].reshape(flat.shape[-1], -1) for ab in lora.values()]
    b = [ab["b"].reshape(RANK, -1) for ab in lora.values()]
    outputs = dict(zip(order, kernels.lora_reference(SCALE, flat, tuple(kernels_), tuple(a), tuple(b)), strict=True))
    return [outputs[n].reshape(*flat.shape[:-1], *params[n]["kernel"].shape[fan_in:]) for n in names]


def integers(key, shape):
    """Small ones, which bfloat16 has: rounding changes nothing, and sums are exact."""
    return jax.random.randint(key, shape, -1, 2).astype(jnp.float32)


@pytest.mark.parametrize(
    ("tokens", "dtype"),
    [pytest.param(5, None, marks=pytest.mark.slow), (64, None), (5, BF16)],
)
@pytest.mark.parametrize(("names", "inputs", "outputs", "left_out"), SHAPES)
def test_values_and_gradients_are_those_of_the_formula(tokens, dtype, names, inputs, outputs, left_out):
    draw = jax.random.normal if dtype is None else integers
    params, lora = matrices(names, inputs, outputs, left_out, draw)
    x = draw(jax.random.key(9), (2, tokens, *inputs))
    weights = [draw(jax.random.key(10 + i), (2, tokens, *outputs)) for i in range(len(names))]
    sizes = [int(np.prod(outputs))] * len(lora)
    assert kernels.merges(x.reshape(2, tokens, 32), sizes) == (tokens == 64 and bool(lora))

    def loss(how):
        return lambda *given: sum(jnp.sum(c * y) for c, y in zip(weights, how(*given), strict=True))

    ways = (
        lambda x, params, lora: formula(x, names, params, lora, len(inputs)),
        lambda x, params, lora: projections(x, names, params, lora, SCALE, len(inputs), dtype),
    )
    expected, computed = (
        (jax.jit(way)(x, params, lora), jax.jit(jax.grad(loss(way), (0, 1, 2)))(x, params, lora)) for way in ways
    )
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(expected[1][2])) == bool(lora)
    if dtype is not None:
        jax.tree.map(np.testing.assert_array_equal, expected, computed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-3), expected, computed)


def test_adapters_are_not_added_to_matrices_in_a_narrow_dtype():
    x = jnp.ones((100, 8), BF16)
    assert not kernels.merges(x, [8]) and kernels.merges(x.astype(jnp.float32), [8])


def test_factors_are_rounded_and_sums_are_not():
    """1 + 1/256 is between two numbers of bfloat16 and goes to the even one, 1; 256 + 1 is kept by the float32 sum."""
    x, w = jnp.array([[1 + 1 / 256, 256.0]]), jnp.array([[1.0], [1.0]])
    assert float(kernels.rounded_matmul(BF16, x, w)[0, 0]) == 257.0
    assert float(kernels.rounded_matmul(jnp.float32, x, w)[0, 0]) == 257.00390625
    assert float(kernels.rounded_matmul_transposed(BF16, x, w.T)[0, 0]) == 257.0


def test_small_adapters_are_not_lost_beside_the_rounded_matrix():
    """`W + s A B` is 1.001 and would be 1 in bfloat16."""
    x, w, a, b = jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.full((1, 1), 2.0**-10), jnp.ones((1, 1))
    (y,) = kernels.mixed_precision_matmul(BF16, 1.0, x, (w,), (a,), (b,))
    assert y.dtype == jnp.float32 and float(y[0, 0]) == 1 + 2.0**-10
