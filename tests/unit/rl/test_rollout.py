"""The start of play."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.resets import VectorEnv
from llmrl_jax.rl.networks import NetworkConfig, network_policy
from llmrl_jax.rl.rollout import start


def test_a_runner_has_parameters_of_its_own():
    """A run donates its state: parameters of the world that others hold must not be deleted with it."""
    env, params = envs_jax.make("CartPole-v1")
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)
    runner = start(VectorEnv(env, 2), params, network_policy(env, params, NetworkConfig(), None), jax.random.key(0))
    for x in jax.tree.leaves(runner.env_params):
        x.delete()
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(params))
