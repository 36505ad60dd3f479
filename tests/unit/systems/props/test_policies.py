"""Policies as flat vectors: their order by hand, the box, first candidates, and what they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from llmrl_jax.systems.props.policies import Policy, make_policy


LINEAR = Policy("linear", 2, 3, discrete=False)
W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
B = np.array([0.5, -0.5, 0.25])
FLAT = jnp.asarray([1, 2, 3, 4, 5, 6, 0.5, -0.5, 0.25], jnp.float32)
OBS = jnp.asarray([2.0, -1.0])


def test_linear_order():
    assert LINEAR.num_params == 9
    np.testing.assert_allclose(LINEAR.act(FLAT, OBS), [2 - 4 + 0.5, 4 - 5 - 0.5, 6 - 6 + 0.25])
    weights, bias = LINEAR.weights(FLAT)
    np.testing.assert_array_equal(weights, W)
    np.testing.assert_array_equal(bias, B)


def test_other_continuous_kinds():
    bare = Policy("linear_nobias", 2, 3, discrete=False)
    assert bare.num_params == 6
    np.testing.assert_allclose(bare.act(FLAT[:6], OBS), [-2, -1, 0])
    squashed = Policy("sigmoid", 2, 3, discrete=False).act(FLAT, OBS)
    np.testing.assert_allclose(squashed, 1 / (1 + np.exp([1.5, 1.5, -0.25])), rtol=1e-6)


def test_argmax_takes_the_first_of_equals():
    policy = Policy("linear", 1, 3, discrete=True)
    for bias, expected in ([(0, 0, 0), 0], [(0, 1, 1), 1], [(-1, 0, 2), 2], [(3, -1, 2), 0]):
        action = policy.act(jnp.asarray([0, 0, 0, *bias], jnp.float32), jnp.zeros(1))
        assert action.dtype == jnp.int32 and int(action) == expected


def test_argmax_is_that_of_a_matrix_product():
    policy = Policy("linear", 5, 4, discrete=True)
    rng = np.random.default_rng(0)
    params = rng.normal(size=(200, 24)).astype(np.float32)
    obs = rng.normal(size=(200, 5)).astype(np.float32)
    scores = np.einsum("ns,nsa->na", obs, params[:, :20].reshape(-1, 5, 4)) + params[:, 20:]
    np.testing.assert_array_equal(jax.vmap(policy.act)(jnp.asarray(params), jnp.asarray(obs)), scores.argmax(1))


def test_tables():
    table = Policy("table", 3, 4, True, 0.0, 3.0, 0, "box")
    params = jnp.asarray([0, 3, 2.6])
    assert [int(table.act(params, jnp.int32(s))) for s in range(3)] == [0, 3, 3]  # the nearest whole action
    assert int(table.act(params + 9, jnp.int32(0))) == 3  # and within the box
    values = Policy("q_table", 2, 3, True, 0.0, 1.0, 4, "box")
    params = jnp.asarray([0.1, 0.9, 0.5, 0.3, 0.2, 0.7])
    assert [int(values.act(params, jnp.int32(s))) for s in range(2)] == [1, 2]


def test_projection():
    policy = Policy("projection", 2, 3, False, rank=4)
    q = policy.projection
    assert policy.num_params == 4 and q.shape == (9, 4)
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-6)
    low = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    np.testing.assert_allclose(policy.act(jnp.asarray(low), OBS), LINEAR.act(jnp.asarray(q @ low), OBS), rtol=1e-5)


@pytest.mark.parametrize(
    ("init", "reach", "decimals", "std"),
    [
        ("normal", 6.0, 1, None),
        ("normal_unbounded", np.inf, 1, 3.0),
        ("uniform_3.5", 3.5, 4, 3.5 / 3**0.5),
        ("uniform_3", 3.0, 1, 3 / 3**0.5),
        ("box", 6.0, 1, 6 / 3**0.5),
    ],
)
def test_first_candidates(init, reach, decimals, std):
    policy = Policy("linear", 4, 2, True, init=init)
    drawn = np.asarray(policy.sample(jax.random.key(0), 1000))
    assert drawn.shape == (1000, 10) and np.abs(drawn).max() <= reach
    np.testing.assert_allclose(drawn, np.round(drawn.astype(float), decimals), atol=1e-5)
    assert abs(drawn.mean()) < 0.1
    if std:
        assert abs(drawn.std() / std - 1) < 0.03
    if init == "normal_unbounded":
        assert abs((np.abs(drawn) > 6).mean() - 0.0455) < 0.01  # two standard deviations
    np.testing.assert_array_equal(drawn[:3], policy.sample(jax.random.key(0), 3))  # each by its own number


def test_first_tables_have_every_action_alike():
    policy = Policy("table", 5, 4, True, 0.0, 3.0, 0, "box")
    drawn = np.asarray(policy.sample(jax.random.key(0), 800)).ravel()
    np.testing.assert_allclose(np.bincount(drawn.astype(int)) / 4000, 0.25, atol=0.03)


def test_the_box():
    np.testing.assert_allclose(LINEAR.clip(jnp.asarray([-7.0, 1.25, 6.5])), [-6, 1.25, 6])
    np.testing.assert_allclose(LINEAR.round(jnp.asarray([0.26, -1.04])), [0.3, -1.0], rtol=1e-6)
    np.testing.assert_array_equal(LINEAR.middle, np.zeros(9))


def test_make_policy_reads_the_world():
    env, params = envs_jax.make("CartPole-v1")
    assert make_policy(env, params) == Policy("linear", 4, 2, True)
    aim, aim_params = envs_jax.make("Debug-Aim-v0")
    assert make_policy(aim, aim_params, "linear_nobias") == Policy("linear_nobias", 1, 1, False)
    lake, lake_params = envs_jax.make("FrozenLake-v1")
    assert make_policy(lake, lake_params) == Policy("table", 16, 4, True, 0.0, 3.0, 0, "box")
    assert make_policy(lake, lake_params, "q_table").num_params == 64


def test_bad_input_is_named():
    env, params = envs_jax.make("CartPole-v1")
    lake, lake_params = envs_jax.make("FrozenLake-v1")
    for wrong in ({"low": -6.0, "high": 6.0}, {"high": 4.0}, {"low": 0.5}, {"decimals": 1}):
        with pytest.raises(ValueError, match="table.*0 to 3"):
            make_policy(lake, lake_params, **wrong)
    with pytest.raises(TypeError, match="CartPole-v1.*'table'.*'linear'"):
        make_policy(env, params, "table")
    with pytest.raises(TypeError, match="FrozenLake-v1.*'table'.*'q_table'"):
        make_policy(lake, lake_params, "linear")
    with pytest.raises(ValueError, match="kind.*'mlp'"):
        Policy("mlp", 2, 2, True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank.*11.*1.*10"):
        make_policy(env, params, "projection", rank=11)
    with pytest.raises(ValueError, match="rank.*3"):
        make_policy(env, params, rank=3)
    with pytest.raises(ValueError, match="low.*2.0.*-2.0"):
        make_policy(env, params, low=2.0, high=-2.0)
    with pytest.raises(ValueError, match="argmax"):
        make_policy(env, params, "sigmoid")
    with pytest.raises(TypeError, match="table.*weights"):
        make_policy(lake, lake_params).weights(jnp.zeros(16))
