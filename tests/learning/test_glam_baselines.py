"""GLAM's baselines learn: two objects in a room of 3 x 3, with small networks, against chance in the same world."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.agents.agent import untrained
from llmrl_jax.agents.drrn import DRRNConfig
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import DRRN, SYMBOLIC, GlamConfig
from llmrl_jax.systems.glam.symbolic import SymbolicConfig


WORLD = "BabyAI-Text/GoToLocalS5N2-v0"


def success(agent, params, frozen):
    run = make_evaluator(agent.env, agent.env_params, agent.policy, episodes=300)
    return float(run(params, frozen, jax.random.key(9), greedy=False).success.mean())


def chance(**world):
    agent = make_agent(GlamConfig(agent="random", env=WORLD, **world))
    return success(agent, *untrained(agent, jax.random.key(0)))


def trained(config, steps):
    """Success after so many steps."""
    agent = make_agent(config)
    learner = agent.learner()
    updates = steps // learner.steps_per_update
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: learner.update(s), s, None, length=updates))
    state, metrics = run(learner.init(jax.random.key(0)))
    for name, bound in learner.bounds.items():
        assert np.max(metrics[name]) <= bound, name
    return success(agent, state.params, state.frozen)


@pytest.mark.slow
def test_symbolic_ppo():
    config = replace(
        SYMBOLIC,
        env=WORLD,
        reward_scale=1.0,
        symbolic=SymbolicConfig(image_dim=16, instr_dim=16, memory_dim=32, recurrence=16),
        ppo=PPOConfig(num_envs=32, num_steps=32, epochs=2, learning_rate=2e-3, gamma=0.95, pool_size=128),
    )
    found, base = trained(config, 36_864), chance()
    assert found > 0.75 > 0.5 > base, (found, base)


@pytest.mark.slow
def test_drrn():
    sizes = DRRNConfig(embedding_dim=32, hidden_dim=64)
    small = replace(DRRN.dqn, gradient_steps=16, replay_size=20_000, learning_rate=2e-3, gamma=0.8, pool_size=128)
    config = replace(DRRN, env=WORLD, history=1, list_actions=False, num_actions=3, drrn=sizes, dqn=small)
    found, base = trained(config, 60_000), chance(num_actions=3)
    assert found > 0.85 > 0.75 > base, (found, base)
