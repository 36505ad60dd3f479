"""ELLM over eight simulated devices: the same updates within rounding, and held-out episodes of the sharded agent."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.systems.ellm.build import build
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.eval import make_goal_evaluator, summarise
from tests.ellm_world import Yard


CONFIG = EllmConfig(
    encoder="hashed",
    network=BranchConfig(width=16, head_hidden=()),
    dqn=DQNConfig(num_envs=16, num_steps=4, gradient_steps=1, batch_size=16, replay_size=640, n_step=2, pool_size=16),
)


def learned(mesh):
    made = build(replace(CONFIG, mesh=mesh), Yard())
    learner = made.learner()
    start = learner.init(jax.random.key(0))
    kept = None if not mesh else (jax.tree.map(lambda x: x.sharding, start), None)
    state, metrics = jax.jit(learner.update, out_shardings=kept)(start)
    played = make_goal_evaluator(made.env, made.policy, 8)(
        state.params, state.frozen, state.runner.env_params, jax.random.key(1)
    )
    return state, metrics, summarise(made.spec, played)


@pytest.mark.slow
def test_an_update_and_an_evaluation_do_not_depend_on_the_mesh():
    one, metrics, played = learned("")
    eight, metrics_8, played_8 = learned("data=4,fsdp=2")
    for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(eight.params)):
        np.testing.assert_allclose(x, y, atol=2e-4)
    np.testing.assert_allclose(metrics["loss"], metrics_8["loss"], rtol=1e-3, atol=1e-5)
    assert played == played_8
