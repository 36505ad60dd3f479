"""The model on eight simulated devices computes what it computes on one, with weights that are really split."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import Candidates, Llama, LlamaConfig, LoRAConfig, SamplingConfig, generate, score
from llmrl_jax.parallel import batch_sharding, make_mesh, shardings
from llmrl_jax.workflows.memory import hlo
from tests.lm_random import random_variables


CONFIG = LlamaConfig(32, 16, 32, 3, 4, 2, max_position_embeddings=32)
CANDIDATES = Candidates([[3, 4], [3, 5], [6]])
TOKENS = np.random.default_rng(1).integers(0, 32, (8, 9)).astype(np.int32)
LENGTHS = np.array([9, 1, 5, 7, 2, 9, 8, 3], np.int32)


@pytest.fixture(scope="module")
def variables():
    return random_variables(Llama(CONFIG, lora=LoRAConfig(rank=2)))


def outcome(model, rows):
    def loss(lora, params, tokens, lengths):
        scores = score(model, {"params": params, "lora": lora}, tokens, lengths, CANDIDATES, rows=rows)
        return scores.sum.mean() + scores.hidden.mean(), scores

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize(
    ("spec", "unroll", "rows"),
    [
        pytest.param("data=8", None, None, marks=pytest.mark.slow),
        pytest.param("fsdp=4,tensor=2", None, None, marks=pytest.mark.slow),
        ("data=2,fsdp=2,tensor=2", 1, 4),
    ],
)
def test_scores_and_gradients_do_not_depend_on_the_mesh(variables, spec, unroll, rows):
    model = Llama(CONFIG, lora=LoRAConfig(rank=2), unroll=unroll)
    args = (variables["lora"], variables["params"], TOKENS, LENGTHS)
    (_, want), want_grad = outcome(model, None)(*args)
    mesh = make_mesh(spec)
    placed = jax.device_put(variables, shardings(model.abstract(), model.logical_axes(), mesh))
    rowwise = batch_sharding(mesh, size=8)
    with jax.set_mesh(mesh):
        tokens, lengths = jax.device_put(TOKENS, rowwise), jax.device_put(LENGTHS, rowwise)
        (_, got), grad = outcome(model, rows)(placed["lora"], placed["params"], tokens, lengths)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), (got, grad), (want, want_grad))


def test_each_device_holds_its_part(variables):
    model = Llama(CONFIG, lora=LoRAConfig(rank=2))
    mesh = make_mesh("data=2,fsdp=2,tensor=2")
    placed = jax.device_put(variables, shardings(model.abstract(), model.logical_axes(), mesh))

    def held(tree):
        return sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(tree))

    whole = sum(x.size for x in jax.tree.leaves(variables["params"]))
    norms = 7 * 16
    assert held(placed["params"]) == (whole - norms) // 4 + norms
    logits = jax.jit(lambda v, t: model.apply(v, t).logits)(placed, jnp.asarray(TOKENS))
    np.testing.assert_allclose(logits, model.apply(variables, TOKENS).logits, atol=5e-5)


@pytest.mark.parametrize(
    "spec", ["fsdp=4,tensor=2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("fsdp=8", "data=2,fsdp=4"))]
)
def test_decoding_a_few_rows_leaves_the_weights_where_they_are(spec):
    """Each device adds up its part of a product: rows are exchanged at every token, and never a matrix."""
    model = Llama(LlamaConfig(32, 64, 128, 5, 4, 2, max_position_embeddings=32))
    variables, how = random_variables(model), SamplingConfig(6)
    expected = generate(model, variables, TOKENS, LENGTHS, jax.random.key(2), how)
    mesh = make_mesh(spec)
    placed = jax.device_put(variables, shardings(model.abstract(), model.logical_axes(), mesh))
    rows = batch_sharding(mesh, size=8)
    tokens, lengths = jax.device_put(TOKENS, rows), jax.device_put(LENGTHS, rows)

    def sampled(variables, tokens, lengths):
        return generate(model, variables, tokens, lengths, jax.random.key(2), how)

    program = jax.jit(sampled).lower(placed, tokens, lengths).compile()
    got = program(placed, tokens, lengths)
    np.testing.assert_array_equal(got.tokens, expected.tokens)
    np.testing.assert_allclose(got.log_probs, expected.log_probs, atol=5e-5)
    exchanges = [x for x in hlo.read(program.as_text()).collectives if "Llama.decode" in x.source]
    largest = max(math.prod(shape) * 4 for x in exchanges for _, shape, _ in hlo.arrays(x.result))
    assert largest <= 8 * 128 * 4 < min(64 * 64, 64 * 32) * 4, "numbers of all rows, less than the least matrix"
