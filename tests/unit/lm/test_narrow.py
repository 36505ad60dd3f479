"""Products whose factors are rounded to bfloat16: values, gradients, and whole models that compute so."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm import narrow
from llmrl_jax.lm.layers import projections
from tests.lm_random import random_variables
from tests.unit.lm.test_adapted import SCALE, formula, matrices


CONFIG = lm.LlamaConfig(40, 16, 24, 3, 4, 2, 6, max_position_embeddings=64)
LORA = lm.LoRAConfig(rank=2, alpha=4.0, targets=lm.lora.TARGETS)
TOKENS = np.random.default_rng(1).integers(0, 40, (3, 10)).astype(np.int32)
BF16 = jnp.bfloat16


def test_factors_are_rounded_and_sums_are_not():
    """1 + 1/256 is between two numbers of bfloat16 and goes to the even one, 1; 256 + 1 is kept by the float32 sum."""
    x, w = jnp.array([[1 + 1 / 256, 256.0]]), jnp.array([[1.0], [1.0]])
    assert float(narrow.with_columns(BF16, x, w)[0, 0]) == 257.0
    assert float(narrow.with_columns(jnp.float32, x, w)[0, 0]) == 257.00390625
    assert float(narrow.with_rows(BF16, x, w.T)[0, 0]) == 257.0


def test_small_adapters_are_not_lost_beside_the_rounded_matrix():
    """`W + s A B` is 1.001 and would be 1 in bfloat16."""
    x, w, a, b = jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.full((1, 1), 2.0**-10), jnp.ones((1, 1))
    (y,) = narrow.adapted(BF16, 1.0, x, (w,), (a,), (b,))
    assert y.dtype == jnp.float32 and float(y[0, 0]) == 1 + 2.0**-10


def integers(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-1, 2, shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("names", "inputs", "outputs", "left_out"),
    [
        (("k", "v"), (32,), (2, 8), ()),
        (("o",), (2, 16), (24,), ()),
        (("gate", "up"), (32,), (24,), ("gate",)),
        (("up",), (32,), (24,), ("up",)),
    ],
)
def test_values_and_gradients_are_those_of_the_formula(names, inputs, outputs, left_out):
    """Of small integers, which bfloat16 has: rounding changes nothing, and both are exact."""
    params, lora = matrices(names, inputs, outputs)
    params, lora = (jax.tree.map(lambda x: integers(x.size, x.shape)[0], tree) for tree in (params, lora))
    lora = {name: ab for name, ab in lora.items() if name not in left_out}
    x, *weights = integers(1, (2, 7, *inputs), *[(2, 7, *outputs)] * len(names))

    def loss(how):
        return lambda *given: sum(jnp.sum(c * y) for c, y in zip(weights, how(*given), strict=True))

    ways = (
        lambda x, params, lora: formula(x, names, params, lora, len(inputs)),
        lambda x, params, lora: projections(x, names, params, lora, SCALE, len(inputs), BF16),
    )
    want, got = (
        (jax.jit(way)(x, params, lora), jax.jit(jax.grad(loss(way), (0, 1, 2)))(x, params, lora)) for way in ways
    )
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(want[1][2])) == bool(lora)
    jax.tree.map(np.testing.assert_array_equal, want, got)


def test_a_whole_model_is_near_float32_and_nearer_than_bfloat16():
    full = lm.Llama(dataclasses.replace(CONFIG, tie_word_embeddings=True), lora=LORA)
    variables = random_variables(full)
    mixed, half = full.clone(factors=BF16), full.clone(dtype=BF16)

    def answers(model):
        def loss(lora):
            out = model.apply({**variables, "lora": lora}, TOKENS)
            return -jax.nn.log_softmax(out.logits)[..., 3].mean(), out

        (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["lora"])
        return out, np.concatenate([np.ravel(x) for x in jax.tree.leaves(grads)])

    (want, slope), (got, own), rough = answers(full), answers(mixed), jax.jit(half.apply)(variables, TOKENS)
    assert got.hidden.dtype == got.logits.dtype == own.dtype == jnp.float32 and mixed.precision == BF16
    errors = [float(jnp.sqrt(jnp.mean((x.logits - want.logits) ** 2))) for x in (got, rough)]
    assert 0 < errors[0] < 0.9 * errors[1]
    assert own @ slope > 0.995 * np.linalg.norm(own) * np.linalg.norm(slope)


def test_a_quantised_base():
    """The same as with the floats that it stands for."""
    model = lm.Llama(CONFIG, lora=LORA, factors=BF16)
    variables = random_variables(model)
    coded = lm.quantize(variables["params"], "int8")
    floats = lm.dequantize(coded)
    want, got = (jax.jit(model.apply)({**variables, "params": p}, TOKENS).logits for p in (floats, coded))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * float(jnp.std(want)))


def test_cached_generation_is_that_of_the_whole_pass():
    """A token at a time: other shapes, the same rounding of the same factors, but for sums in another order."""
    model = lm.Llama(CONFIG, factors=BF16)
    variables = random_variables(model)
    whole = jax.jit(model.apply)(variables, TOKENS).logits
    cache, step = lm.Cache.create(CONFIG, 3, 10, model.dtype), jax.jit(model.apply)
    for i in range(10):
        out = step(variables, TOKENS[:, i : i + 1], cache=cache)
        cache = out.cache
        np.testing.assert_allclose(out.logits[:, 0], whole[:, i], atol=2e-2)


@pytest.mark.parametrize(
    ("name", "want"), [("float32", ("float32", None)), ("bfloat16", ("bfloat16", None)), ("mixed", ("float32", BF16))]
)
def test_names(name, want):
    how = narrow.computed(name)
    assert (how["dtype"], how["factors"]) == (jnp.dtype(want[0]), want[1])
