"""PPO over eight simulated devices: the same play, bit for bit, and the same update within rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl import rollout
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


CONFIG = PPOConfig(num_envs=16, num_steps=24, epochs=2, minibatches=2, pool_size=16, learning_rate=3e-3)


def mesh_of(data, fsdp):
    return jax.make_mesh((data, fsdp, 1), ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3)


def world(id):
    env, params = envs_jax.make(id)
    return EpisodeStatistics(env), params


def network(env, params, memory=0):
    return NetworkPolicy(env.action_space(params), hidden=(16,), memory=memory)


@cache
def alone(id, memory):
    """The first state on one device, and what an update makes of it: `(state, metrics)`."""
    env, params = world(id)
    learner = make_ppo(CONFIG, env, params, network(env, params, memory))
    state = learner.init(jax.random.key(0))
    return state, jax.jit(learner.update)(state)


@pytest.mark.parametrize(
    ("id", "memory"),
    [
        ("Debug-Catch-v0", 0),  # terminates
        pytest.param("Debug-Match-v0", 8, marks=pytest.mark.slow),  # truncates; recurrent
        pytest.param("BabyAI-GoToLocalS5N2-v0", 0, marks=pytest.mark.slow),
    ],
)
def test_one_device_and_eight(id, memory):
    mesh = mesh_of(4, 2)
    key = jax.random.key(0)
    env, params = world(id)
    policy = network(env, params, memory)
    there = make_ppo(CONFIG, env, params, policy, mesh)
    (one, (updated, metrics)), eight = alone(id, memory), there.init(key)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    for leaf in jax.tree.leaves((eight.runner.obs, eight.runner.env_state.env, eight.runner.carry)):
        assert leaf.sharding.is_equivalent_to(rows, leaf.ndim)
    kept = jax.tree.map(lambda x: x.sharding, eight)

    vector = rollout.VectorEnv(env, CONFIG.num_envs, policy="pool", pool_size=CONFIG.pool_size)
    play = jax.jit(lambda s: rollout.collect(vector, policy, s.params, s.frozen, s.runner, s.key, CONFIG.num_steps)[1])
    a, b = play(one), play(eight)
    assert b.action.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp"))), 2)
    assert int((a.truncated | a.terminated).sum()) > 0
    for name in ("obs", "action", "reward", "terminated", "truncated", "first"):
        for x, y in zip(jax.tree.leaves(getattr(a, name)), jax.tree.leaves(getattr(b, name))):
            np.testing.assert_array_equal(x, y, err_msg=name)
    for name in ("log_prob", "value", "next_value"):  # products of matrices of other shapes round differently
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, err_msg=name)

    one = updated
    eight, metrics_8 = jax.jit(there.update, out_shardings=(kept, None))(eight)
    for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params)):
        np.testing.assert_allclose(x, y, atol=2e-4)
    assert float(metrics_8["first_ratio_error"]) <= 1e-5
    for name in ("loss", "value_loss", "entropy", "grad_norm", "episode_return", "episodes"):
        np.testing.assert_allclose(metrics[name], metrics_8[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for x, y in zip(jax.tree.leaves(one.runner.obs), jax.tree.leaves(eight.runner.obs)):
        np.testing.assert_array_equal(x, y)


class Split(NetworkPolicy):
    """Places a weight over fsdp, as a large model would."""

    def __init__(self, mesh, action_space):
        super().__init__(action_space, hidden=(16,))
        self.mesh = mesh

    def init(self, key, obs):
        params, frozen = super().init(key, obs)
        kernel = params["towers"]["first"]["kernel"]
        over = NamedSharding(self.mesh, PartitionSpec(None, "fsdp"))
        params["towers"]["first"]["kernel"] = jax.device_put(kernel, over)
        return params, frozen


def test_weights_stay_where_the_policy_puts_them():
    mesh = mesh_of(4, 2)
    env, params = world("Debug-Catch-v0")
    learner = make_ppo(CONFIG, env, params, Split(mesh, env.action_space(params)), mesh)
    state = learner.init(jax.random.key(0))
    over = NamedSharding(mesh, PartitionSpec(None, "fsdp"))

    def check(state):
        for tree in (state.params, state.opt_state.mu, state.opt_state.nu):
            assert tree["towers"]["first"]["kernel"].sharding.is_equivalent_to(over, 2)
            assert tree["actor"]["kernel"].sharding.is_fully_replicated

    check(state)
    state, metrics = jax.jit(learner.update)(state)
    check(state)
    _, (whole, _) = alone("Debug-Catch-v0", 0)
    for x, y in zip(jax.tree.leaves(whole.params), jax.tree.leaves(state.params)):
        np.testing.assert_allclose(x, y, atol=2e-4)
    assert jnp.isfinite(metrics["loss"])


def test_rows_must_divide():
    mesh = mesh_of(4, 2)
    env, params = world("Debug-Match-v0")
    policy = network(env, params)
    with pytest.raises(ValueError, match=r"12 / 8 = 1\.50"):
        make_ppo(replace(CONFIG, num_envs=12), env, params, policy, mesh)
    with pytest.raises(ValueError, match="32 = 12.*data 4"):
        make_ppo(replace(CONFIG, minibatches=32), env, params, policy, mesh)
