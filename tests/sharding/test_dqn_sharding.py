"""DQN over eight simulated devices: the same play and memory, bit for bit, and the same update within rounding."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.networks import NetworkQPolicy


CONFIG = DQNConfig(
    num_envs=16,
    num_steps=6,
    gradient_steps=2,
    batch_size=16,
    replay_size=160,  # 10 steps of each environment: the second update writes over the first
    n_step=2,
    target_every=1,
    target_tau=0.5,
    replay="prioritized",
    pool_size=16,
    learning_rate=3e-3,
)


def mesh_of(data, fsdp):
    return jax.make_mesh((data, fsdp, 1), ("data", "fsdp", "tensor"), (AxisType.Auto,) * 3)


def test_one_device_and_eight():
    mesh = mesh_of(4, 2)
    env, params = envs_jax.make("Debug-Catch-v0")
    env = EpisodeStatistics(env)
    policy = NetworkQPolicy(env.action_space(params).n, hidden=(16,))
    here, there = (make_dqn(CONFIG, env, params, policy, m) for m in (None, mesh))
    one, eight = here.init(jax.random.key(0)), there.init(jax.random.key(0))
    kept = jax.tree.map(lambda x: x.sharding, eight)
    by_row = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    by_environment = NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))
    update, update_8 = jax.jit(here.update), jax.jit(there.update, out_shardings=(kept, None))
    for i in range(2):
        one, metrics = update(one)
        eight, metrics_8 = update_8(eight)
        for leaf in jax.tree.leaves((eight.runner.obs, eight.runner.env_state.env)):
            assert leaf.sharding.is_equivalent_to(by_row, leaf.ndim)
        for leaf in jax.tree.leaves(eight.replay.items):
            assert leaf.sharding.is_equivalent_to(by_environment, leaf.ndim)
        if i == 0:  # later on, values that round differently may choose other actions
            for x, y in zip(jax.tree.leaves(one.replay.items), jax.tree.leaves(eight.replay.items)):
                np.testing.assert_array_equal(x, y)
            for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params)):
                np.testing.assert_allclose(x, y, atol=2e-4)
            for name in ("loss", "q_mean", "grad_norm", "epsilon", "replay_size", "entropy"):
                np.testing.assert_allclose(metrics[name], metrics_8[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert float(metrics_8["replay_size"]) == 160 and float(metrics_8["nonfinite"]) == 0
    assert int(eight.replay.next) == 2


def test_rows_must_divide():
    env, params = envs_jax.make("Debug-Catch-v0")
    env, policy = EpisodeStatistics(env), NetworkQPolicy(3, hidden=(16,))
    for name in ("num_envs", "batch_size"):
        message = rf"dqn\.{name} 12.*12 / 8 = 1\.50"
        with pytest.raises(ValueError, match=message):
            make_dqn(replace(CONFIG, **{name: 12}), env, params, policy, mesh_of(4, 2))
