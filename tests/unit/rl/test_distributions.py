"""Distributions: densities by hand, samples by frequency, rows independent of one another."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.distributions import Categorical, Normal, TanhNormal, Uniform


def test_categorical_by_hand():
    d = Categorical(jnp.log(jnp.array([[1.0, 2.0, 5.0]])) + 7)
    np.testing.assert_allclose(d.probs, [[0.125, 0.25, 0.625]], rtol=1e-6)
    np.testing.assert_allclose(d.log_prob(jnp.array([1])), [math.log(0.25)], rtol=1e-6)
    entropy = -sum(p * math.log(p) for p in (0.125, 0.25, 0.625))
    np.testing.assert_allclose(d.entropy(), [entropy], rtol=1e-6)
    assert d.mode().tolist() == [2]
    assert d.log_prob(jnp.array([1])).dtype == jnp.float32


def test_categorical_samples_with_its_probabilities():
    d = Categorical(jnp.log(jnp.tile(jnp.array([0.1, 0.2, 0.7]), (20000, 1))))
    counts = np.bincount(np.asarray(d.sample(jax.random.key(0))), minlength=3) / 20000
    np.testing.assert_allclose(counts, [0.1, 0.2, 0.7], atol=0.012)


def test_masked_actions_are_never_taken_and_leave_no_nan():
    logits = jnp.tile(jnp.array([9.0, 0.0, 0.0]), (1000, 1))
    d = Categorical.masked(logits, jnp.array([False, True, True]))
    assert set(np.asarray(d.sample(jax.random.key(0))).tolist()) == {1, 2}
    np.testing.assert_allclose(d.entropy(), math.log(2), rtol=1e-6)
    np.testing.assert_allclose(d.probs[0], [0.0, 0.5, 0.5])
    only = Categorical.masked(logits[:1], jnp.array([[False, True, False]]))
    np.testing.assert_allclose(only.entropy(), 0.0, atol=1e-6)

    def loss(x):
        d = Categorical.masked(x, jnp.array([False, True, True]))
        return jnp.sum(d.entropy() + d.log_prob(jnp.ones(1000, jnp.int32)))

    assert jnp.all(jnp.isfinite(jax.grad(loss)(logits)))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Categorical(jnp.zeros((n, 5))),
        lambda n: Normal(jnp.zeros((n, 2)), jnp.zeros((n, 2))),
        lambda n: TanhNormal(jnp.zeros((n, 2)), jnp.zeros((n, 2)), jnp.full((n, 2), -1.0), jnp.full((n, 2), 3.0)),
    ],
)
def test_a_rows_sample_does_not_depend_on_the_other_rows(make):
    key = jax.random.key(3)
    few, many = make(4).sample(key), make(64).sample(key)
    np.testing.assert_array_equal(few, many[:4])
    assert len(np.unique(np.asarray(many), axis=0)) > 1


def test_normal_by_hand():
    d = Normal(jnp.array([[1.0, 2.0]]), jnp.log(jnp.array([[1.0, 2.0]])))
    # z = (1, -1): log density = -0.5 - 0.5 log 2 pi  +  -0.5 - log 2 - 0.5 log 2 pi
    expected = -1 - math.log(2) - math.log(2 * math.pi)
    np.testing.assert_allclose(d.log_prob(jnp.array([[2.0, 0.0]])), [expected], rtol=1e-6)
    np.testing.assert_allclose(d.entropy(), [1 + math.log(2 * math.pi) + math.log(2)], rtol=1e-6)
    draws = Normal(jnp.full((20000, 1), 3.0), jnp.full((20000, 1), math.log(2))).sample(jax.random.key(0))
    assert abs(float(draws.mean()) - 3) < 0.06 and abs(float(draws.std()) - 2) < 0.06


def test_tanh_normal_is_a_density_over_its_box():
    grid = jnp.linspace(-2, 4, 20001)[1:-1, None]
    shape = grid.shape
    d = TanhNormal(jnp.full(shape, 0.3), jnp.full(shape, -0.5), jnp.full(shape, -2.0), jnp.full(shape, 4.0))
    assert abs(float(jnp.sum(jnp.exp(d.log_prob(grid)))) * 6 / 20000 - 1) < 1e-3
    draws = d.sample(jax.random.key(0))
    assert float(draws.min()) > -2 and float(draws.max()) < 4
    np.testing.assert_allclose(d.mode()[0], -2 + 3 * (math.tanh(0.3) + 1), rtol=1e-5)


def test_tanh_normal_entropy_is_exact_where_the_squashing_is_linear():
    shape = (1, 1)
    d = TanhNormal(jnp.zeros(shape), jnp.full(shape, -4.0), jnp.full(shape, -1.0), jnp.full(shape, 1.0))
    np.testing.assert_allclose(d.entropy(), Normal(d.mean, d.log_std).entropy(), atol=1e-5)


def test_tanh_normal_knows_the_value_behind_an_action_as_well_as_float32_does():
    """Against float64, up to the rounding of actions that the class describes; beyond 7.25, as at 7.25."""
    x = np.linspace(-9, 9, 361)
    one = jnp.ones((x.size, 1))
    d = TanhNormal(0 * one, 0.5 * one, -2 * one, 4 * one)
    noise = jnp.asarray(x[:, None] / np.exp(0.5), jnp.float32)
    found = np.asarray(jax.jit(lambda d, noise: d.log_prob(d.choose(noise)))(d, noise))
    edge = np.arctanh(np.float64(np.float32(1 - 1e-6)))
    assert edge == pytest.approx(7.25, abs=0.01)
    x = np.clip(x, -edge, edge)
    density = -0.5 * x**2 / np.e - 0.5 - 0.5 * math.log(2 * math.pi)
    exact = density - (math.log(3) + 2 * (math.log(2) - x - np.logaddexp(0, -2 * x)))
    slope = np.abs(-x / np.e + 2 * np.tanh(x))
    assert np.all(np.abs(found - exact) < 1e-5 + slope * 2e-7 / (1 - np.abs(np.tanh(x))))


def test_a_fixed_number_of_an_action_has_no_part_in_densities():
    low, high = jnp.array([[-1.0, 0.5]]), jnp.array([[1.0, 0.5]])
    both = TanhNormal(jnp.array([[0.3, 0.7]]), jnp.array([[-0.5, -0.1]]), low, high)
    one = TanhNormal(*(x[:, :1] for x in (both.mean, both.log_std, low, high)))
    action = both.sample(jax.random.key(0))
    assert float(action[0, 1]) == 0.5
    np.testing.assert_allclose(both.log_prob(action), one.log_prob(action[:, :1]), rtol=1e-6)
    np.testing.assert_allclose(both.entropy(), one.entropy(), rtol=1e-6)
    slopes = jax.grad(lambda mean: both.replace(mean=mean).log_prob(action)[0] + both.replace(mean=mean).entropy()[0])
    gradient = slopes(both.mean)
    assert np.all(np.isfinite(gradient)) and float(gradient[0, 1]) == 0


def test_a_number_that_is_no_action_has_no_probability():
    d = Categorical(jnp.zeros((4, 3)))
    assert d.log_prob(jnp.array([0, 2, 3, -1])).tolist() == [*[-np.float32(math.log(3))] * 2, -math.inf, -math.inf]
    gradient = jax.grad(lambda logits: jnp.sum(jnp.exp(Categorical(logits).log_prob(jnp.array([1, 3])))))
    assert np.isfinite(gradient(jnp.zeros((2, 3)))).all()


def test_log_prob_gradient_of_an_action_at_the_bound_is_finite():
    def loss(mean):
        one = jnp.ones((1, 1))
        return TanhNormal(mean, 0 * one, -one, one).log_prob(one)[0]

    assert jnp.isfinite(jax.grad(loss)(jnp.zeros((1, 1)))).all()


def test_uniform_by_hand():
    d = Uniform(jnp.array([[-1.0, 0.0]]), jnp.array([[1.0, 4.0]]))
    np.testing.assert_allclose(d.log_prob(jnp.array([[0.5, 3.0]])), [-math.log(8)], rtol=1e-6)
    assert d.log_prob(jnp.array([[0.5, 4.1]])).tolist() == [-math.inf]
    np.testing.assert_allclose(d.entropy(), [math.log(8)], rtol=1e-6)
    assert d.mode().tolist() == [[0.0, 2.0]]
    many = Uniform(jnp.tile(d.low, (4000, 1)), jnp.tile(d.high, (4000, 1))).sample(jax.random.key(0))
    np.testing.assert_allclose(many.mean(0), [0.0, 2.0], atol=0.1)
    np.testing.assert_allclose(many.var(0), [4 / 12, 16 / 12], atol=0.1)
