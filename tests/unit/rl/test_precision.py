"""Bounds of the first ratio: by dtype, device and jax's option, and wide enough for GLAM's model in bfloat16."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.lm import Candidates, Llama, LlamaConfig, ValueHead
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo
from llmrl_jax.rl.precision import (
    DENSITY_BOUND,
    LENGTHS_BOUND,
    RATIO_BOUNDS,
    SAMPLING_METRICS,
    exact_rounding,
    matmul_precision,
    ratio_bound,
    ratio_error,
    sampling_metrics,
)


@pytest.mark.parametrize(
    ("dtype", "platform", "option", "precision"),
    [
        ("float32", "cpu", None, "float32"),
        ("float32", "cpu", "bfloat16", "float32"),  # a CPU does not read the option
        ("float32", "gpu", None, "tensorfloat32"),
        ("float32", "gpu", "high", "tensorfloat32"),
        ("float32", "gpu", "highest", "float32"),
        ("float32", "gpu", "BF16_BF16_F32", "bfloat16"),
        ("float32", "gpu", "BF16_BF16_F32_X9", "float32"),
        ("float32", "tpu", None, "bfloat16"),
        ("float32", "tpu", "float32", "float32"),
        ("bfloat16", "cpu", None, "bfloat16"),
        ("bfloat16", "gpu", "highest", "bfloat16"),
        ("float16", "gpu", None, "float16"),
    ],
)
def test_the_precision_of_products(dtype, platform, option, precision):
    with jax.default_matmul_precision(option) if option else nullcontext():
        assert matmul_precision(jnp.dtype(dtype), platform) == precision


def test_sampling_metrics_by_hand():
    ratios = np.array([0.9985, 0.9995, 1.0015, 1.003])
    terms = ratios - 1 - np.log(ratios)
    log_ratio = jnp.log(jnp.asarray(ratios, jnp.float32))
    found = sampling_metrics(log_ratio)
    assert tuple(found) == SAMPLING_METRICS
    assert float(found["sampling_kl"]) == pytest.approx(terms.mean(), rel=1e-3)
    assert float(found["sampling_near_one"]) == 0.5
    # rows of unequal weight, of which one is left out although it has no ratio
    weight = jnp.array([0.5, 0.25, 0.25, 0.0])
    found = sampling_metrics(log_ratio.at[3].set(jnp.nan), weight)
    assert float(found["sampling_kl"]) == pytest.approx((2 * terms[0] + terms[1] + terms[2]) / 4, rel=1e-3)
    assert float(found["sampling_near_one"]) == 0.5


@pytest.mark.parametrize("log_ratio", [-1e-4, 1e-5])
def test_the_kl_of_ratios_very_near_one_is_no_rounding(log_ratio):
    """In float32 a ratio minus 1 has an error of 6e-8, more than all of this KL."""
    found = sampling_metrics(jnp.full(3, log_ratio, jnp.float32))
    assert float(found["sampling_kl"]) == pytest.approx(log_ratio**2 / 2, rel=0.1, abs=0)
    assert float(found["sampling_near_one"]) == 1


def test_programs_of_16_bits_are_compiled_without_excess_precision():
    off = {"xla_allow_excess_precision": False}
    assert [exact_rounding(dtype) for dtype in (jnp.float32, jnp.bfloat16, jnp.float16)] == [{}, off, off]


def test_the_bound_of_a_policy():
    assert ratio_bound(SimpleNamespace(), None) == 1e-5
    assert ratio_bound(SimpleNamespace(dtype=jnp.bfloat16), None) == RATIO_BOUNDS["bfloat16"]
    assert ratio_bound(SimpleNamespace(widths=()), None) == 1e-5
    assert ratio_bound(SimpleNamespace(widths=(64, 128)), None) == LENGTHS_BOUND
    assert ratio_bound(SimpleNamespace(widths=(64, 128), dtype=jnp.bfloat16), None) == RATIO_BOUNDS["bfloat16"]
    assert ratio_bound(SimpleNamespace(), None, density=True) == DENSITY_BOUND
    assert ratio_bound(SimpleNamespace(dtype=jnp.bfloat16), None, density=True) == RATIO_BOUNDS["bfloat16"]


def test_the_bound_of_a_density_leaves_room_for_one_unit_in_the_last_place_of_the_mean():
    mean, std = np.float32(0.7), 1e-3
    near = np.nextafter(mean, np.float32(1))
    log_prob = norm.logpdf(float(mean) + 3 * std, [float(mean), float(near)], std)
    error = abs(np.exp(log_prob[1] - log_prob[0]) - 1)
    assert RATIO_BOUNDS["float32"] < error < DENSITY_BOUND / 3


@pytest.mark.parametrize("id, bound", [("Debug-Aim-v0", DENSITY_BOUND), ("Debug-Match-v0", RATIO_BOUNDS["float32"])])
def test_ppo_bounds_the_ratio_by_the_kind_of_actions(id, bound):
    env, params = envs_jax.make(id)
    policy = NetworkPolicy(env.action_space(params), hidden=(4,))
    assert make_ppo(PPOConfig(), EpisodeStatistics(env), params, policy).bounds["first_ratio_error"] == bound


@pytest.mark.slow
def test_a_sound_program_in_bfloat16_stays_within_its_bound_and_not_within_that_of_float32():
    """The shapes of GLAM's preset, scaled down: a batch of environments acts, a minibatch of other rows learns. A CPU
    sums a row in the same order in any batch, so what another order of summation may do is measured against float32."""
    lengths = np.array([96, 80, 64, 96, 72, 88, 48, 96] * 2, np.int32)
    tokens = np.random.default_rng(0).integers(3, 32, (16, 96)).astype(np.int32)
    first = jnp.ones((1, 16), bool)

    few = {"tokens": jnp.asarray(tokens[:8]), "lengths": jnp.asarray(lengths[:8])}
    many = {"tokens": jnp.asarray(tokens[None]), "lengths": jnp.asarray(lengths[None])}

    def policy_of(dtype):
        model = Llama(LlamaConfig(32, 32, 64, 2, 4, 4, max_position_embeddings=128), dtype=dtype)
        return ScoringPolicy(
            model=model,
            prompts=lambda obs: (obs["tokens"], obs["lengths"]),
            base=lambda key: model.init(key, jnp.zeros((1, 1), jnp.int32))["params"],
            value_head=ValueHead(8, "sigmoid"),
            candidates=Candidates([[3, 4], [3, 5], [6, 7], [8, 9], [10], [11]]),
        )

    def learning(policy):
        return np.asarray(jax.jit(policy.unroll)(params, {}, many, (), first)[0].log_probs[0, :8])

    full, half = policy_of(jnp.float32), policy_of(jnp.bfloat16)
    bound = ratio_bound(half, None)
    assert (ratio_bound(full, None), bound) == (1e-5, RATIO_BOUNDS["bfloat16"])
    params, _ = jax.jit(full.init)(jax.random.key(0), {})
    params["params"] |= {"lm_head": {"kernel": 12 * params["params"]["lm_head"]["kernel"]}}  # probabilities apart
    acting = np.asarray(jax.jit(half.step)(params, {}, few, (), first[0, :8])[0].log_probs)
    assert ratio_error(jnp.asarray(learning(half) - acting)) < bound
    assert 100 * 1e-5 < ratio_error(jnp.asarray(learning(full) - acting)) < bound / 2
