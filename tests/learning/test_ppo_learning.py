"""PPO learns: worlds whose best return is known, for every kind of network."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


def train(id, config, updates, seed=0, **network):
    """Metrics `[updates]` by name, and the last state."""
    env, params = envs_jax.make(id)
    policy = NetworkPolicy(env.action_space(params), **network)
    learner = make_ppo(config, EpisodeStatistics(env), params, policy)
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=updates))
    state, metrics = run(learner.init(jax.random.key(seed)))
    metrics = {name: np.asarray(x) for name, x in metrics.items()}
    assert all(metrics[name].max() <= bound for name, bound in learner.bounds.items())
    return metrics, state


def mean(metrics, name, last):
    weight = metrics["episodes"][-last:]
    return float(np.nansum(metrics[name][-last:] * weight) / weight.sum())


FAST = PPOConfig(num_envs=16, num_steps=32, learning_rate=5e-3, gamma=0.9, entropy_coef=0.0, value_clip=float("inf"))


def test_discrete_and_the_value_of_a_truncated_world():
    metrics, _ = train("Debug-Match-v0", FAST, 60, hidden=(32,))
    assert mean(metrics, "episode_return", 10) > 19.8  # the optimum is 20
    assert abs(metrics["value_mean"][-10:].mean() - 10) < 0.5  # 1 / (1 - 0.9): time-outs are bootstrapped


def test_continuous():
    metrics, _ = train("Debug-Aim-v0", FAST, 80, hidden=(32,))
    assert mean(metrics, "episode_return", 5) > 18.5  # the optimum is 20; a constant guess gets 12


RECALL = PPOConfig(num_envs=32, num_steps=24, learning_rate=5e-3, gamma=0.95, entropy_coef=0.005)


@pytest.mark.slow
def test_memory_solves_what_needs_memory():
    with_memory, _ = train("Debug-Recall-v0", RECALL, 80, hidden=(16,), memory=16)
    assert mean(with_memory, "episode_return", 5) > 0.95


@pytest.mark.slow
def test_without_memory_it_stays_unsolved():
    without, _ = train("Debug-Recall-v0", RECALL, 80, hidden=(16,))
    assert abs(mean(without, "episode_return", 20)) < 0.2


@pytest.mark.slow
def test_pictures():
    config = PPOConfig(num_envs=32, num_steps=20, learning_rate=3e-3)
    metrics, _ = train("Debug-Catch-v0", config, 50, hidden=(32,), channels=(8,), activation="relu")
    assert mean(metrics, "episode_return", 5) > 0.9


CARTPOLE = {"num_envs": 4, "num_steps": 128, "epochs": 4, "minibatches": 4, "schedule": "linear"}


def test_cartpole_in_62k_steps():
    config = PPOConfig(
        num_envs=16, num_steps=64, epochs=10, minibatches=8, learning_rate=2e-3, gamma=0.98, gae_lambda=0.9,
        entropy_coef=0.0, value_clip=float("inf"), schedule="linear", schedule_updates=62,
    )  # fmt: skip
    metrics, _ = train("CartPole-v1", config, 61, hidden=(32,))
    assert mean(metrics, "episode_return", 10) > 400


@pytest.mark.slow
def test_cartpole_reaches_500():
    """purejaxrl's settings, 500k steps, three seeds."""
    for seed in range(3):
        metrics, _ = train("CartPole-v1", PPOConfig(**CARTPOLE, schedule_updates=976), 976, seed)
        assert mean(metrics, "episode_return", 100) > 495
