"""SAC: its target against NumPy, what it plays and stores, and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.parallel import make_mesh
from llmrl_jax.rl.actors import Scaled
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.offline import TrainState
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.sac import SAC, SACConfig, SoftActorCritic, make_sac, sac_policy


def test_the_soft_target_by_hand():
    """With a Gaussian so narrow that its action is known, and its density too."""
    nets = SoftActorCritic(ActionKind.box(-1.0, 1.0, 1), (4,), "relu")
    h = {"gamma": jnp.float32(0.9), "initial_temperature": jnp.float32(0.5)}
    params = jax.jit(lambda key: nets.networks(key, 2, h))(jax.random.key(0))
    params["actor"][-1]["bias"] = jnp.array([0.3, -30.0])  # log deviations are at least -20
    params["actor"][-1]["kernel"] = jnp.zeros((4, 2))
    trained = TrainState.create(params, ["critic"])
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)
    rows = Batch(x, jnp.zeros((3, 1)), jnp.array([1.0, 2.0, 3.0]), -x, jnp.array([False, True, False]))
    key = jax.random.key(5)
    found = jax.jit(nets.soft_targets)(trained, rows, key, h)
    noise = np.asarray(jax.random.normal(key, (3, 1)))[:, 0]
    action = np.tanh(0.3)
    log_prob = -0.5 * noise**2 + 20 - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
    joined = np.concatenate([-x, np.full((3, 1), action)], 1)
    layers = jax.tree.map(np.asarray, params["critic"])

    def critic(k):
        hidden = np.maximum(joined @ layers[0]["kernel"][k] + layers[0]["bias"][k], 0)
        return (hidden @ layers[1]["kernel"][k] + layers[1]["bias"][k])[:, 0]

    q = np.minimum(critic(0), critic(1))
    wanted = np.array([1.0, 2.0, 3.0]) + 0.9 * np.array([1, 0, 1]) * (q - 0.5 * log_prob)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


SMALL = SACConfig(num_envs=4, num_steps=5, gradient_steps=1, batch_size=8, replay_size=200, learning_starts=30)


def made(config=SMALL):
    env, params = envs_jax.make("Pendulum-v1")
    env = EpisodeStatistics(env)
    policy = sac_policy(env, params, NetworkConfig(hidden=(8,)), config)
    return env, params, policy, make_sac(config, env, params, policy)


def test_it_plays_at_random_first_and_stores_actions_between_1_and_minus_1():
    """Pendulum's torques are from -2 to 2; 20 steps an update, random for two updates, and the second learns."""
    _, _, policy, learner = made()
    first = learner.init(jax.random.key(0))
    update = jax.jit(learner.update)
    state, metrics = update(first)
    assert float(metrics["critic_loss"]) == 0 and float(metrics["replay_size"]) == 20
    jax.tree.map(np.testing.assert_array_equal, first.params, state.params)
    state, metrics = update(state)
    assert float(metrics["critic_loss"]) > 0 and float(metrics["replay_size"]) == 40
    items = state.replay.items
    actions = np.asarray(items.action).reshape(-1)[:40]
    assert 0.8 < np.abs(actions).max() <= 1 and np.abs(actions.mean()) < 0.4
    theta = np.arctan2(items.obs[:10, :, 1], items.obs[:10, :, 0])
    torque = 2 * np.asarray(items.action[:10, :, 0])
    cost = theta**2 + 0.1 * np.asarray(items.obs[:10, :, 2]) ** 2 + 0.001 * torque**2
    np.testing.assert_allclose(items.reward[:10], -cost, rtol=1e-3, atol=1e-3)  # the world got twice the stored action
    acted, _, _ = policy.step(state.params, (), jnp.ones((3, 3)), (), jnp.zeros(3, bool))
    assert isinstance(acted, Scaled) and np.abs(acted.sample(jax.random.key(0))).max() <= 2


def test_actions_are_random_for_learning_starts_steps_and_the_policys_ever_after():
    sac, key = SAC(SMALL, *made()[:3]), jax.random.key(1)
    state = sac.init(jax.random.key(0))
    play = jax.jit(lambda update: sac._play(state.replace(update=update), key)[1][0].action)
    first, second, third, late = (np.asarray(play(jnp.int32(i))) for i in (0, 1, 2, 2**31 // 20 + 1))
    assert (first == second).all() and (second != third).any(), "40 steps in two updates, 30 of which are random"
    np.testing.assert_array_equal(third, late, "after more steps than int32 holds")


def test_a_buffer_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("llmrl_jax.rl.replay.available", lambda devices=1: 1000)
    with pytest.raises(ValueError, match="200.*GB.*sac.replay_size.*200"):
        made()[-1].init(jax.random.key(0))


def test_what_it_refuses():
    env, params = envs_jax.make("CartPole-v1")
    with pytest.raises(ValueError, match="CartPole-v1"):
        sac_policy(env, params, NetworkConfig(), SMALL)
    with pytest.raises(ValueError, match="--network.memory.*4"):
        sac_policy(env, params, NetworkConfig(memory=4), SMALL)
    with pytest.raises(ValueError, match="sac.learning_starts.*5000.*96"):
        SACConfig(replay_size=100)
    env, params, policy, _ = made()
    with pytest.raises(ValueError, match="sac.*--mesh"):
        make_sac(SMALL, env, params, policy, make_mesh("data=2"))
