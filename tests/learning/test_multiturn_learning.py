"""Learners of written replies learn a game whose answer was shown a turn before."""

from __future__ import annotations

import importlib
from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.group import GroupConfig
from llmrl_jax.multiturn.ppo import TurnPPOConfig
from llmrl_jax.systems.agent.build import build, make_learner
from llmrl_jax.systems.agent.config import AgentConfig, TrainConfig
from tests.paths import ROOT


SIZES = SmallConfig(hidden_size=32, layers=1, heads=4, intermediate_size=64)
AGENT = AgentConfig(
    env="Notes-Recall-v0?turns=1",
    tune="full",
    embedded=SIZES,
    format="action",
    decoding="constrained",
    reply_tokens=4,
)
SHARED = {"num_envs": 64, "episode_tokens": 64, "entropy_coef": 0.01}
# at 3e-3 PPO forgets what it has learned: where nearly all episodes succeed, normalised advantages are noise
PPO = TurnPPOConfig(**SHARED, learning_rate=1e-3, minibatches=4, num_steps=32, epochs=4, pool_size=64)
GROUP = GroupConfig(**SHARED, learning_rate=3e-3, minibatches=1, epochs=2, group=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "updates", "least"),
    [
        ("turn_ppo", 60, 0.75),  # chance is 1/25: waiting, then one of four words and waiting
        ("token_ppo", 150, 0.8),
        ("grpo", 300, 0.8),
        ("gigpo", 300, 0.8),
    ],
)
def test_the_answer_is_read_and_written(algo, updates, least):
    agent, settings = AGENT, {"group": GROUP}
    if algo.endswith("ppo"):
        agent, settings = replace(AGENT, value_width=32), {"ppo": PPO}
    learner = make_learner(TrainConfig(agent=agent, algo=algo, **settings), build(agent))
    state, update = learner.init(jax.random.key(0)), jax.jit(learner.update, donate_argnums=0)
    success = []
    for _ in range(updates):
        state, metrics = update(state)
        success.append(float(metrics["success"]))
        assert all(float(metrics[name]) <= bound for name, bound in learner.bounds.items())
    assert success[0] < 0.2 and np.mean(success[-10:]) >= least


@pytest.mark.slow
def test_a_thought_carries_what_is_not_seen_any_more(monkeypatch):
    """The experiment with one of its seeds: without thoughts a quarter is the best that there is."""
    monkeypatch.syspath_prepend(ROOT / "experiments")
    thoughts = importlib.import_module("agent_thoughts")
    thinks = thoughts.learn(thoughts.Experiment(then=200), True, 1)
    mute = thoughts.learn(thoughts.Experiment(then=25), False, 1)
    assert mute["curve"][0]["success"] > 0.5 and mute["success"][0] < 0.35
    assert thinks["success"][0] >= mute["success"][0] + 0.2
