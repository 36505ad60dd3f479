"""The start of play; advantages and returns against numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.resets import VectorEnv
from llmrl_jax.rl.networks import NetworkConfig, network_policy
from llmrl_jax.rl.rollout import gae, group_advantages, group_deviation, start


def test_a_runner_has_parameters_of_its_own():
    """A run donates its state: parameters of the world that others hold must not be deleted with it."""
    env, params = envs_jax.make("CartPole-v1")
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)
    runner = start(VectorEnv(env, 2), params, network_policy(env, params, NetworkConfig(), None), jax.random.key(0))
    for x in jax.tree.leaves(runner.env_params):
        x.delete()
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(params))


def column(*x, dtype=jnp.float32):
    return jnp.asarray(x, dtype)[:, None]


NO = column(False, False, False, dtype=bool)


def flags(step):
    return column(*(t == step for t in range(3)), dtype=bool)


REWARD, VALUE, NEXT = column(1, 2, 3), column(10, 20, 30), column(20, 30, 40)
GAMMA, LAMBDA = 0.5, 0.5


@pytest.mark.parametrize(
    ("terminated", "truncated", "next_value", "expected"),
    [
        # deltas: 1 + 10 - 10 = 1;  2 + 15 - 20 = -3;  3 + 20 - 30 = -7.  A2 = -7, A1 = -3 - 7/4, A0 = 1 + A1/4
        (NO, NO, NEXT, [1 - 4.75 / 4, -4.75, -7.0]),
        # terminated at 1: delta1 = 2 - 20 = -18, no trace from step 2
        (flags(1), NO, NEXT, [1 - 18 / 4, -18.0, -7.0]),
        # truncated at 1: bootstraps from the last observation (here worth 6): delta1 = 2 + 3 - 20 = -15, no trace
        (NO, flags(1), column(20, 6, 40), [1 - 15 / 4, -15.0, -7.0]),
        # both at once: termination wins, whatever the last observation is worth
        (flags(1), flags(1), column(20, 6, 40), [1 - 18 / 4, -18.0, -7.0]),
        # truncated on the very last step: bootstraps as if it went on
        (NO, flags(2), NEXT, [1 - 4.75 / 4, -4.75, -7.0]),
        (flags(2), NO, NEXT, [1 + (-3 - 27 / 4) / 4, -3 - 27 / 4, -27.0]),
    ],
)
def test_gae(terminated, truncated, next_value, expected):
    advantages, returns = gae(REWARD, VALUE, next_value, terminated, truncated, GAMMA, LAMBDA)
    np.testing.assert_allclose(advantages[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(returns[:, 0], np.asarray(expected) + [10, 20, 30], rtol=1e-6)


def test_advantages_in_groups_by_hand():
    returns = jnp.array([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    advantages, zero = group_advantages, np.zeros(4)
    np.testing.assert_allclose(advantages(returns, "centred"), [[0.75, -0.25, -0.25, -0.25], zero])
    np.testing.assert_allclose(advantages(returns, "leave_one_out"), [[1, -1 / 3, -1 / 3, -1 / 3], zero], rtol=1e-6)
    deviation = np.sqrt(3) / 4 + 1e-4
    np.testing.assert_allclose(advantages(returns, "grpo")[0], np.array([0.75, *[-0.25] * 3]) / deviation, rtol=1e-6)


def test_groups_of_equal_returns_have_no_deviation():
    """The mean of five times 0.9 is another number in float32, and so is 0.1 + 0.2 beside 0.3; units do not matter."""
    equal = jnp.full((1, 5), 0.9)
    assert float(jnp.std(equal)) > 0 and float(group_deviation(equal)[0]) == 0
    rounded = jnp.array([[0.3, 0.3 + 2**-25, 0.3, 0.3, 0.3]])
    assert float(rounded[0, 1]) > float(rounded[0, 0]) and float(group_deviation(rounded)[0]) == 0
    returns = jnp.array([[1.0, 0.0, 0.0, 0.0, 0.0], [3e-7, -2e-7, -2e-7, -2e-7, 3e-7]])
    np.testing.assert_allclose(group_deviation(returns), [0.4, np.sqrt(6) * 1e-7], rtol=1e-5)
