"""Conversations on eight simulated devices: the same tokens and rewards, bit for bit, and the same update."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from llmrl_jax.multiturn.ppo import make_turn_ppo
from tests.unit.multiturn.conversations import PPO, agent


def run(mesh: str, decoding: str):
    program = agent(decoding=decoding, mesh=mesh)
    config = replace(PPO, minibatches=1, epochs=1, watch=False)
    learner = make_turn_ppo(config, program.policy, program.env, program.env_params, program.mesh)
    return jax.jit(learner.update)(learner.init(jax.random.key(7)))


@pytest.mark.parametrize("decoding", ["constrained", pytest.param("free", marks=pytest.mark.slow)])
def test_a_mesh_changes_nothing_but_the_speed(decoding):
    (state, metrics), (one, expected) = run("data=8", decoding), run("", decoding)
    for name in ("turns", "valid", "episodes", "success", "reply_length"):
        assert np.array_equal(metrics[name], expected[name], equal_nan=True), name
    for name in ("token", "role", "begins", "acts", "reward"):
        assert np.array_equal(getattr(state.rows.record, name), getattr(one.rows.record, name)), name
    assert metrics["first_ratio_error"] <= 1e-5
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(one.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    assert state.rows.token.addressable_shards[0].data.shape[0] < state.rows.token.shape[0]
