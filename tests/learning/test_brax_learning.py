"""PPO with continuous actions learns brax's worlds; what needs brax is skipped where it is missing."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax.bridges import brax as bridge
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo


@pytest.fixture(autouse=True)
def needs_brax():
    try:
        bridge._brax()
    except ImportError as error:
        pytest.skip(str(error))


def train(id, config, updates, *, last, reward_scale=1.0):
    """The mean return of the episodes that end in the `last` updates, actions sampled."""
    env, params = envs_jax.make(id)
    policy = NetworkPolicy(env.action_space(params))
    learner = make_ppo(config, ScaleReward(EpisodeStatistics(env), reward_scale), params, policy)
    run = jax.jit(lambda state: jax.lax.scan(lambda s, _: learner.update(s), state, None, length=updates))
    _, metrics = run(learner.init(jax.random.key(0)))
    metrics = {name: np.asarray(x) for name, x in metrics.items()}
    assert metrics["first_ratio_error"].max() <= 1e-5 and metrics["nonfinite"].max() == 0
    weight = metrics["episodes"][-last:]
    return float(np.nansum(metrics["episode_return"][-last:] * weight) / weight.sum())


def continuous(updates, **changes):
    how = {"num_envs": 64, "num_steps": 128, "epochs": 10, "minibatches": 16, "learning_rate": 1e-3, "gamma": 0.99}
    still = {"entropy_coef": 0.0, "value_clip": float("inf"), "schedule": "linear", "schedule_updates": updates}
    return PPOConfig(**{**how, **still, **changes})


def test_fast_beyond_braxs_own_bar():
    """brax's test of its PPO asks for a return of 135 in the same 2^15 steps; the optimum is 143.1."""
    config = continuous(64, num_steps=8, epochs=4, minibatches=4, learning_rate=3e-3, gamma=0.95)
    assert train("brax/fast?max_steps=128", config, 64, last=16, reward_scale=0.1) > 138


@pytest.mark.slow
def test_inverted_pendulum():
    """Untrained 20, at most 1000; 985 was measured."""
    id = "brax/inverted_pendulum?backend=spring"
    assert train(id, continuous(100), 100, last=10, reward_scale=0.1) > 900


@pytest.mark.slow
def test_reacher():
    """Untrained -900, doing nothing -225; -115 was measured."""
    assert train("brax/reacher?backend=spring", continuous(120, gamma=0.95), 120, last=30) > -150
