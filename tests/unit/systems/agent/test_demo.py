"""The demo's settings make a learner of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from llmrl_jax.systems.agent.build import build, make_learner
from llmrl_jax.systems.agent.config import DEMO, Algorithm, demo_config


@pytest.fixture(scope="module")
def agent():
    return build(DEMO)


@pytest.mark.parametrize("algo", get_args(Algorithm))
def test_the_learning_rate_is_zero_when_the_tokens_are_used_up(agent, algo):
    config = demo_config(1_000_000, algo)
    learner = make_learner(config, agent)
    options = config.ppo if algo.endswith("ppo") else config.group
    updates = -(-config.steps // learner.steps_per_update)
    assert options.schedule == "linear" and options.schedule_updates == updates


def test_episodes_have_as_many_turns_as_the_settings_say(agent):
    assert int(agent.env_params.max_steps) == DEMO.max_turns == 24
    with pytest.raises(TypeError, match="max_turns is 3.*Notes-Recall-v0"):
        build(replace(DEMO, env="Notes-Recall-v0", num_actions=0, max_turns=3))
