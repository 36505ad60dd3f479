"""Products with adapters: both ways to compute them agree with the formula, and no unused gradient is computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm.adapted import sums_first
from llmrl_jax.lm.layers import projections


RANK, SCALE = 4, 2.0


def matrices(names, inputs, outputs, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 3 * len(names)))
    params, lora = {}, {}
    for name in names:
        params[name] = {"kernel": jax.random.normal(next(keys), (*inputs, *outputs))}
        a, b = (jax.random.normal(next(keys), shape) for shape in ((*inputs, RANK), (RANK, *outputs)))
        lora[name] = {"a": a, "b": b}
    return params, lora


def formula(x, names, params, lora, fan_in):
    """`x W + s (x A) B`, product by product."""
    axes = tuple(range(-fan_in, 0)), tuple(range(fan_in))
    outs = []
    for name in names:
        y = jnp.tensordot(x, params[name]["kernel"], axes)
        if name in lora:
            y = y + SCALE * jnp.tensordot(jnp.tensordot(x, lora[name]["a"], axes), lora[name]["b"], 1)
        outs.append(y)
    return outs


@pytest.mark.parametrize("tokens", [5, 64])
@pytest.mark.parametrize(
    ("names", "inputs", "outputs", "left_out"),
    [(("k", "v"), (32,), (2, 8), ()), (("o",), (2, 16), (24,), ()), (("gate", "up"), (32,), (24,), ("gate",))],
)
def test_values_and_gradients_are_those_of_the_formula(tokens, names, inputs, outputs, left_out):
    params, lora = matrices(names, inputs, outputs)
    lora = {name: ab for name, ab in lora.items() if name not in left_out}
    x = jax.random.normal(jax.random.key(9), (2, tokens, *inputs))
    kernels = [params[name]["kernel"] for name in lora]
    assert sums_first(x.reshape(2, tokens, 32), kernels, len(inputs)) == (tokens == 64)

    def loss(how):
        return lambda *given: sum(jnp.sum(jnp.sin(0.01 * y)) for y in how(*given))

    ways = (
        lambda x, params, lora: formula(x, names, params, lora, len(inputs)),
        lambda x, params, lora: projections(x, names, params, lora, SCALE, len(inputs)),
    )
    want, got = (
        (jax.jit(way)(x, params, lora), jax.jit(jax.grad(loss(way), (0, 1, 2)))(x, params, lora)) for way in ways
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), want, got)


def test_a_sum_in_a_narrow_dtype_would_lose_small_adapters():
    x, kernel = jnp.ones((100, 8), jnp.bfloat16), jnp.ones((8, 8), jnp.bfloat16)
    assert not sums_first(x, [kernel])
    assert sums_first(x.astype(jnp.float32), [kernel.astype(jnp.float32)])


def test_the_gradient_of_adapters_multiplies_little_more_than_twice_the_forward_pass():
    """4N for a step where nothing of the base is trained: the gradients of its matrices are not computed."""
    config = lm.LlamaConfig(16, 128, 256, 6, 4, 4, max_position_embeddings=64)
    model = lm.Llama(config, lora=lm.LoRAConfig(rank=2, alpha=2.0, targets=lm.lora.TARGETS), unroll=6)
    shapes = model.abstract()
    tokens = jax.ShapeDtypeStruct((8, 32), jnp.int32)

    def loss(lora, params, tokens):
        return jnp.sum(model.apply({"params": params, "lora": lora}, tokens).logits ** 2)

    def flops(function):
        return jax.jit(function).lower(shapes["lora"], shapes["params"], tokens).compile().cost_analysis()["flops"]

    assert flops(jax.grad(loss)) < 2.5 * flops(loss)
