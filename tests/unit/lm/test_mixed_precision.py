"""Whole models whose products have factors rounded to bfloat16."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm.config import dtype_options
from tests.lm_random import random_variables


CONFIG = lm.LlamaConfig(40, 16, 24, 3, 4, 2, 6, max_position_embeddings=64)
LORA = lm.LoRAConfig(rank=2, alpha=4.0, targets=lm.lora.TARGETS)
TOKENS = np.random.default_rng(1).integers(0, 40, (3, 10)).astype(np.int32)
BF16 = jnp.bfloat16


def test_a_whole_model_is_near_float32_and_nearer_than_bfloat16():
    full = lm.Llama(dataclasses.replace(CONFIG, tie_word_embeddings=True), lora=LORA)
    variables = random_variables(full)
    mixed, half = full.clone(matmul_dtype=BF16), full.clone(dtype=BF16)

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


@pytest.mark.slow
def test_a_quantised_base():
    """The same as with the floats that it stands for."""
    model = lm.Llama(CONFIG, lora=LORA, matmul_dtype=BF16)
    variables = random_variables(model)
    coded = lm.quantize(variables["params"], "int8")
    floats = lm.dequantize(coded)
    want, got = (jax.jit(model.apply)({**variables, "params": p}, TOKENS).logits for p in (floats, coded))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * float(jnp.std(want)))


def test_cached_generation_is_that_of_the_whole_pass():
    """A token at a time: other shapes, the same rounding of the same factors, but for sums in another order."""
    model = lm.Llama(CONFIG, matmul_dtype=BF16)
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
    how = dtype_options(name)
    assert (how["dtype"], how["matmul_dtype"]) == (jnp.dtype(want[0]), want[1])
