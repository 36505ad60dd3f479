"""An agent that is rewarded for suggested goals only reaches what random play does not."""

from __future__ import annotations

import jax
import pytest

from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.systems.ellm.build import build
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.eval import make_goal_evaluator, summarise
from tests.ellm_world import Yard


CONFIG = EllmConfig(
    encoder="hashed",
    network=BranchConfig(width=32, head_hidden=()),
    dqn=DQNConfig(
        num_envs=8,
        num_steps=4,
        gradient_steps=4,
        batch_size=32,
        replay_size=8000,
        gamma=0.9,
        n_step=3,
        target_steps=500,
        epsilon_end=0.1,
        epsilon_steps=12_000,
        learning_rate=1e-3,
        pool_size=16,
        huber_delta=1.0,
    ),
)


@pytest.mark.slow
def test_goals_teach_what_random_play_does_not_reach():
    """A tree at one end of the yard, and a table that needs its wood; the world's own reward is not used."""
    made = build(CONFIG, Yard())
    learner = made.learner()
    run = jax.jit(lambda s: jax.lax.fori_loop(0, 600, lambda _, s: learner.update(s)[0], s))
    state = run(learner.init(jax.random.key(0)))
    params, key = state.runner.env_params, jax.random.key(1)
    play, chance = (make_goal_evaluator(made.env, policy, 64) for policy in (made.policy, RandomPolicy(9)))
    agent = summarise(made.spec, play(state.params, state.frozen, params, key))
    random = summarise(made.spec, chance((), (), params, key))
    assert agent["achievements"] > 1.5 > 0.7 > random["achievements"]
    assert agent["unlocked/place_table"] > 0.7 > 0.2 > random["unlocked/place_table"]
    assert agent["paid/good"] == 1
