"""The codes of quantised weights: by hand and beside bitsandbytes; their errors beside theory."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm.quantize import NF4, encode, matmul
from tests.paths import DATA


# As published with bitsandbytes (csrc and functional.py).
PUBLISHED = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def held(*trees):
    """The same trees as NumPy arrays: each operation on a jax array of another shape is a program to compile."""
    return jax.tree.map(np.asarray, trees)


@functools.partial(jax.jit, static_argnums=1)
def as_floats(quantized, dtype=jnp.float32):
    """Values that a quantised array computes with."""
    return quantized.astype(dtype)


coded = jax.jit(encode, static_argnames=("kind", "fan_in", "stacked"))
product = jax.jit(matmul, static_argnums=2)


def test_the_levels_are_the_published_ones():
    np.testing.assert_allclose(NF4, PUBLISHED, rtol=0, atol=1.5e-7)
    assert NF4[7] == 0 and NF4[0] == -1 and NF4[15] == 1


def test_int8_by_hand():
    """The largest magnitude is 63.5, so a step is 0.5 and halves are exact; 0.3 goes to 0.5, 0.2 to 0."""
    weights = np.zeros((1, 64, 2), np.float32)
    weights[0, :5, 0] = [63.5, -63.5, 1.0, 0.3, 0.2]
    found = coded(weights, "int8")
    (held_codes, floats) = held(found.codes, as_floats(found))
    assert found.codes.shape == (1, 1, 64, 2) and found.codes.dtype == jnp.int8
    assert held_codes[0, 0, :6, 0].tolist() == [127, -127, 2, 1, 0, 0]
    assert found.scales.tolist() == [[[0.5, 0.0]]]
    assert floats[0, :6, 0].tolist() == [63.5, -63.5, 1.0, 0.5, 0.0, 0.0]
    assert not floats[..., 1].any()  # a block of zeros stays zeros


def test_nf4_by_hand():
    """Codes count the midpoints of levels below a weight: 0.0397 and 0.0399 lie about that of 0 and 0.0796."""
    weights = np.zeros((1, 64, 2), np.float32)
    weights[0, :6, 0] = [2.0, -2.0, 2 * 0.0397, 2 * 0.0399, 2 * 0.7, 0.0]
    found = coded(weights, "nf4")
    (held_codes, floats) = held(found.codes, as_floats(found))
    assert found.codes.shape == (1, 1, 32, 2) and found.codes.dtype == jnp.uint8
    assert held_codes[0, 0, :4, 0].tolist() == [15 << 4 | 0, 7 << 4 | 8, 14 << 4 | 7, 7 << 4 | 7]
    assert found.scales.tolist() == [[[2.0, 0.0]]]
    np.testing.assert_allclose(floats[0, :6, 0], [2, -2, 0, 2 * PUBLISHED[8], 2 * PUBLISHED[14], 0], atol=1e-6)
    assert not floats[..., 1].any()


def test_nf4_is_that_of_bitsandbytes():
    """Recorded by `tests/parity/record_lm_quantize.py`, in Hugging Face's layout `[out, in]`."""
    with np.load(DATA / "lm_quantize.npz") as file:
        recorded = dict(file)
    np.testing.assert_allclose(NF4, recorded["levels"], rtol=0, atol=1.5e-7)
    found = coded(jnp.asarray(recorded["weight"].T), "nf4", stacked=False)
    codes, scales, floats = held(found.codes, found.scales, as_floats(found))
    np.testing.assert_array_equal(codes.transpose(2, 0, 1), recorded["packed"])
    np.testing.assert_array_equal(scales.T, recorded["absmax"])
    np.testing.assert_allclose(floats.T, recorded["floats"], rtol=2e-6, atol=1e-9)


def theory(kind: str) -> float:
    """The relative error of normal weights in blocks of 64, by quadrature over a block's largest magnitude `m`.

    The largest one is exact; the 63 others are normal within `[-m, m]`.
    """
    m = np.linspace(1.0, 6.0, 400)
    normal = NormalDist()
    inside = np.array([2 * normal.cdf(x) - 1 for x in m])
    weight = inside**63 * np.array([normal.pdf(x) for x in m])
    if kind == "int8":
        error = (m / 127) ** 2 / 12
    else:
        u = np.linspace(-1, 1, 4001)
        nearest = np.abs(u[:, None] - PUBLISHED).min(1) ** 2
        density = np.exp(-0.5 * (m[:, None] * u) ** 2)
        error = m**2 * (density * nearest).sum(1) / density.sum(1)
    return math.sqrt(63 / 64 * (weight * error).sum() / weight.sum())


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_the_error_is_that_of_theory(kind):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2048, 256)).astype(np.float32)
    x = rng.standard_normal((64, 2048)).astype(np.float32)
    found = coded(weights, kind, stacked=False)
    want = x @ weights
    of_weights = np.linalg.norm(as_floats(found) - weights) / np.linalg.norm(weights)
    of_matmul = np.linalg.norm(product(x, found, jnp.float32) - want) / np.linalg.norm(want)
    assert float(of_weights) == pytest.approx(theory(kind), rel=0.02)
    assert float(of_matmul) == pytest.approx(theory(kind), rel=0.05)
    assert float(of_matmul) < (0.01 if kind == "int8" else 0.1)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_odd_sizes_fill_up_their_last_block(kind):
    """70 inputs are one block and 6; in two axes as well."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((2, 7, 10, 3)).astype(np.float32)
    x = rng.standard_normal((5, 7, 10)).astype(np.float32)
    found = coded(weights, kind, fan_in=2)
    assert found.scales.shape == (2, 2, 3) and found.shape == weights.shape
    floats = np.asarray(as_floats(found))
    step = 1 / 254 + 1e-6 if kind == "int8" else 0.16
    assert np.abs(floats - weights).max() <= step * np.abs(weights).max()
    second = jax.jit(lambda x, found: matmul(x, jax.tree.map(lambda a: a[1], found), jnp.float32))(x, found)
    np.testing.assert_allclose(second, np.tensordot(x, floats[1], 2), atol=1e-5)


def test_a_half_precision_product_is_summed_in_what_is_asked_for():
    rng = np.random.default_rng(3)
    found = coded(rng.standard_normal((128, 8)).astype(np.float32), "nf4", stacked=False)
    x = jnp.asarray(rng.standard_normal((4, 128)), jnp.bfloat16)
    wide = product(x, found, jnp.float32)
    want = np.float32(x) @ np.float32(as_floats(found, jnp.bfloat16))
    assert wide.dtype == jnp.float32 and jax.eval_shape(product, x, found, jnp.bfloat16).dtype == jnp.bfloat16
    np.testing.assert_allclose(wide, want, rtol=1e-5, atol=1e-5)
    back = jax.jit(jax.grad(lambda x: matmul(x, found, jnp.float32).sum()))(x)
    assert back.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(back)[0], np.asarray(as_floats(found)).sum(1), rtol=1e-2, atol=1e-2)
