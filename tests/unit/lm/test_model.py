"""The model alone: padding, caches, adapters, scan and remat, heads."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm import Cache, Llama, LlamaConfig, LoRAConfig, ValueHead, merge
from llmrl_jax.lm.generate import read_prefix
from llmrl_jax.lm.lora import TARGETS
from tests.lm_random import random_variables


CONFIG = LlamaConfig(40, 16, 24, 3, 4, 2, 6, max_position_embeddings=64)
LORA = LoRAConfig(
    rank=2, alpha=4.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
)
TOKENS = np.random.default_rng(1).integers(0, 40, (3, 10)).astype(np.int32)
LENGTHS = np.array([10, 4, 7], np.int32)


@pytest.fixture(scope="module")
def model():
    return Llama(CONFIG, lora=LORA)


@pytest.fixture(scope="module")
def variables(model):
    return random_variables(model)


@pytest.fixture(scope="module")
def whole(model, variables):
    return jax.jit(model.apply)(variables, TOKENS)


def test_declared_shapes_are_those_made(model):
    made = jax.jit(model.init)(jax.random.key(0), TOKENS)
    abstract = model.abstract()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), made) == jax.tree.map(lambda x: (x.shape, x.dtype), abstract)
    b = made["lora"]["layers"]["mlp"]["up_proj"]["b"]
    assert not b.any() and made["lora"]["layers"]["mlp"]["up_proj"]["a"].any()


def test_padding_is_told_by_lengths_or_positions_never_by_a_token(model, variables, whole):
    apply = jax.jit(model.apply)
    for pad in (0, 7):
        right = np.where(np.arange(10) < LENGTHS[:, None], TOKENS, pad)
        shift = 10 - LENGTHS[:, None]
        left = np.where(np.arange(10) >= shift, np.take_along_axis(TOKENS, (np.arange(10) - shift) % 10, 1), pad)
        positions = np.where(np.arange(10) >= shift, np.arange(10) - shift, -1).astype(np.int32)
        by_length = apply(variables, right, lengths=LENGTHS).logits
        by_position = apply(variables, left, positions=positions).logits
        for row, n in enumerate(LENGTHS):
            np.testing.assert_allclose(by_length[row, :n], whole.logits[row, :n], atol=2e-5)
            np.testing.assert_allclose(by_position[row, 10 - n :], whole.logits[row, :n], atol=2e-5)


def test_cached_is_uncached_for_ragged_rows(model, variables, whole):
    cache = Cache.create(CONFIG, 3, 16)
    out = jax.jit(model.apply)(variables, TOKENS[:, :6], lengths=jnp.minimum(LENGTHS, 6), cache=cache)
    np.testing.assert_array_equal(out.cache.lengths(), [6, 4, 6])
    step = jax.jit(lambda c, t: (lambda o: (o.logits, o.cache))(model.apply(variables, t, cache=c)))
    cache = out.cache
    for _ in range(4):
        at = np.minimum(np.asarray(cache.lengths()), 9)
        logits, cache = step(cache, TOKENS[np.arange(3), at][:, None])
        for row in range(3):
            np.testing.assert_allclose(logits[row, 0], whole.logits[row, at[row]], atol=2e-5)


@pytest.mark.parametrize("prefix", [0, 3])
def test_a_new_cache_is_that_of_an_empty_one(model, variables, prefix):
    shared = read_prefix(model, variables, TOKENS[0, :prefix]) if prefix else None
    read = jax.jit(lambda cache: model.apply(variables, TOKENS, lengths=LENGTHS, cache=cache, prefix=shared))
    old = read(Cache.create(CONFIG, 3, 12))
    new = jax.jit(lambda: model.apply(variables, TOKENS, lengths=LENGTHS, cache=12, prefix=shared))()
    np.testing.assert_array_equal(new.cache.positions, old.cache.positions)
    assert new.cache.index == old.cache.index and new.cache.keys.shape == old.cache.keys.shape
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(new.logits[row, :n], old.logits[row, :n], atol=1e-5)
        for a, b in ((new.cache.keys, old.cache.keys), (new.cache.values, old.cache.values)):
            np.testing.assert_allclose(a[:, row, :n], b[:, row, :n], atol=1e-5)
    for cache in (9, Cache.create(CONFIG, 3, 9), new.cache):
        with pytest.raises(ValueError, match="10 tokens.*(9|12) slots.*(0|10) are"):
            model.apply(variables, TOKENS, cache=cache)
    with pytest.raises(ValueError, match="lengths"):
        model.apply(variables, TOKENS, positions=np.tile(np.arange(10), (3, 1)), cache=12)


def gradient(model, variables):
    return jax.jit(jax.grad(lambda v: (model.apply(v, TOKENS).logits ** 2).mean()))(variables)


@pytest.fixture(scope="module")
def whole_gradient(model, variables):
    return gradient(model, variables)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"unroll": 1}, marks=pytest.mark.slow),
        {"unroll": 1, "remat": True},
        pytest.param({"remat": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_scan_and_remat_change_nothing(variables, whole, whole_gradient, change):
    other = Llama(CONFIG, lora=LORA, **change)
    at = jnp.array([[9, 0], [3, 2], [5, 5]])
    got = jax.jit(lambda v: other.apply(v, TOKENS, at=at).logits)(variables)
    np.testing.assert_allclose(got, jnp.take_along_axis(whole.logits, at[..., None], axis=1), atol=2e-5)
    got = gradient(other, variables)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), got, whole_gradient)


def test_logits_only_where_wanted(model, variables, whole):
    out = jax.jit(lambda v: model.apply(v, TOKENS, logits=False))(variables)
    assert out.logits is None
    np.testing.assert_allclose(out.hidden, whole.hidden, atol=2e-5)


def test_adapters_are_off_when_absent_and_merge_into_the_base(model, variables, whole):
    base = {"params": variables["params"]}
    off = jax.jit(model.apply)(base, TOKENS).logits
    plain = jax.jit(Llama(CONFIG).apply)
    np.testing.assert_array_equal(off, plain(base, TOKENS).logits)
    assert np.abs(off - whole.logits).max() > 0.1
    before = jax.tree.map(np.array, variables["params"])
    merged = merge(variables["params"], variables["lora"], LORA)
    np.testing.assert_allclose(plain({"params": merged}, TOKENS).logits, whole.logits, atol=5e-5)
    jax.tree.map(np.testing.assert_array_equal, variables["params"], before)
    with pytest.raises(ValueError, match="LoRAConfig"):
        Llama(CONFIG).apply(variables, TOKENS)


def test_a_target_left_out_has_no_adapter():
    made = Llama(CONFIG, lora=LoRAConfig(rank=2, targets=("v_proj",))).abstract()["lora"]
    assert list(made["layers"]) == ["self_attn"] and list(made["layers"]["self_attn"]) == ["v_proj"]


def test_only_the_adapters_gradient_is_computed(model, variables):
    def loss(lora, params):
        return model.apply({"params": params, "lora": lora}, TOKENS).logits.mean()

    def flops(function):
        return jax.jit(function).lower(variables["lora"], variables["params"]).compile().cost_analysis()["flops"]

    assert flops(jax.grad(loss)) < 0.85 * flops(jax.grad(loss, argnums=(0, 1)))


def test_bfloat16_keeps_float32_where_it_matters(variables, whole):
    low = Llama(CONFIG, lora=LORA, dtype=jnp.bfloat16)
    out = jax.jit(low.apply)(variables, TOKENS)
    assert out.logits.dtype == jnp.float32 and out.hidden.dtype == jnp.bfloat16
    assert low.abstract()["lora"]["layers"]["self_attn"]["q_proj"]["a"].dtype == jnp.float32
    p, q = jax.nn.log_softmax(whole.logits), jax.nn.log_softmax(out.logits)
    assert float((jnp.exp(p) * (p - q)).sum(-1).mean()) < 0.015


def test_dynamic_rope_looks_at_its_own_row_only():
    config = dataclasses.replace(
        CONFIG, max_position_embeddings=4, rope=dataclasses.replace(CONFIG.rope, type="dynamic", factor=2.0)
    )
    model = Llama(config)
    variables = random_variables(model)
    positions = np.where(np.arange(10) < LENGTHS[:, None], np.arange(10), -1).astype(np.int32)
    apply = jax.jit(model.apply)
    together = apply(variables, TOKENS, positions=positions).logits[1, :4]
    alone = apply(variables, TOKENS[1:2, :4]).logits[0]
    np.testing.assert_allclose(together, alone, atol=2e-5)
    for options in ({}, {"cache": 10}):
        by_length = jax.jit(partial(model.apply, **options))(variables, TOKENS, lengths=LENGTHS).logits
        np.testing.assert_allclose(by_length[1, :4], alone, atol=2e-5)
        np.testing.assert_allclose(by_length[0], apply(variables, TOKENS[:1]).logits[0], atol=2e-5)


def test_adapters_are_those_of_the_configuration(variables):
    for change in ({"rank": 1}, {"targets": ("q_proj",)}):
        other = Llama(CONFIG, lora=dataclasses.replace(LORA, **change))
        with pytest.raises(ValueError, match="lora/layers/.*_proj/"):
            jax.eval_shape(other.apply, variables, TOKENS)
        few = {"params": variables["params"], "lora": random_variables(other)["lora"]}
        with pytest.raises(ValueError, match="lora/layers/.*_proj/"):
            jax.eval_shape(Llama(CONFIG, lora=LORA).apply, few, TOKENS)


def test_value_head_by_hand():
    head = ValueHead(width=2)
    hidden = jnp.array([[1.0, 2.0, 3.0]])
    params = jax.tree.map(jnp.ones_like, head.init(jax.random.key(0), hidden))
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    want = 2 * sigmoid(2 * sigmoid(6.0 + 1) + 1) + 1
    np.testing.assert_allclose(head.apply(params, hidden), [want], rtol=1e-6)


def test_the_gradient_of_adapters_multiplies_little_more_than_twice_the_forward_pass():
    """4N for a step where nothing of the base is trained: the gradients of its matrices are not computed."""
    config = LlamaConfig(16, 128, 256, 6, 4, 4, max_position_embeddings=64)
    model = Llama(config, lora=LoRAConfig(rank=2, alpha=2.0, targets=TARGETS), unroll=6)
    shapes = model.abstract()
    tokens = jax.ShapeDtypeStruct((8, 32), jnp.int32)

    def loss(lora, params, tokens):
        return jnp.sum(model.apply({"params": params, "lora": lora}, tokens).logits ** 2)

    def flops(function):
        return jax.jit(function).lower(shapes["lora"], shapes["params"], tokens).compile().cost_analysis()["flops"]

    assert flops(jax.grad(loss)) < 2.5 * flops(loss)
