"""DQN learns: worlds whose best return is known, with every option that changes how it learns."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.networks import NetworkQPolicy


def train(id, config, updates, seed=0, **network):
    """Metrics `[updates]` by name."""
    env, params = envs_jax.make(id)
    policy = NetworkQPolicy(env.action_space(params).n, **network)
    learner = make_dqn(config, EpisodeStatistics(env), params, policy)
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=updates)[1])
    metrics = {name: np.asarray(x) for name, x in run(learner.init(jax.random.key(seed))).items()}
    assert metrics["nonfinite"].max() == 0
    return metrics


def mean(metrics, name, last):
    weight = metrics["episodes"][-last:]
    return float(np.nansum(metrics[name][-last:] * weight) / weight.sum())


FAST = DQNConfig(
    num_steps=8,
    replay_size=20_000,
    gamma=0.9,
    learning_rate=3e-3,
    target_every=4,
    epsilon_steps=8_000,
    epsilon_end=0.02,
    pool_size=32,
)


def test_the_best_return_and_the_value_of_a_truncated_world():
    metrics = train("Debug-Match-v0", FAST, 150, hidden=(32,))
    assert mean(metrics, "episode_return", 20) > 19.4  # the optimum is 20; of random actions 2% are left
    assert abs(metrics["q_mean"][-10:].mean() - 9.4) < 1  # at most 1 / (1 - 0.9): time-outs bootstrap


@pytest.mark.slow
def test_a_reward_at_the_end_seen_in_pictures():
    """Every other option at once: n-step returns, priorities, a dueling network, a target that follows slowly."""
    config = DQNConfig(
        num_steps=8,
        replay_size=20_000,
        n_step=3,
        learning_rate=2e-3,
        target_every=1,
        target_tau=0.1,
        epsilon_steps=10_000,
        epsilon_end=0.02,
        replay="prioritized",
        pool_size=32,
    )
    metrics = train("Debug-Catch-v0", config, 150, hidden=(32,), channels=(8,), dueling=True)
    assert mean(metrics, "episode_return", 20) > 0.85  # the optimum is 1, chance -0.6


@pytest.mark.slow
def test_cartpole():
    """The defaults, 200k steps; one action in twenty is a random one."""
    metrics = train("CartPole-v1", DQNConfig(), 200_000 // 64)
    assert mean(metrics, "episode_return", 300) > 350
