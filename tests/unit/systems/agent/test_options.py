"""Options of `llmrl agent train` that its learner does not read are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmrl_jax.core.config import from_json, to_json
from llmrl_jax.options.command import parse
from llmrl_jax.systems.agent.build import make_learner
from llmrl_jax.systems.agent.config import TrainConfig
from tests.unit.multiturn.conversations import GROUP, PPO, agent


@pytest.mark.parametrize(("algo", "level"), [("turn_ppo", "turn"), ("token_ppo", "token")])
def test_the_algorithm_decides_what_an_action_of_ppo_is(algo, level):
    program = agent()
    learner = make_learner(TrainConfig(agent=program.config, algo=algo, ppo=PPO), program)
    turns = learner.update.args[0].__self__
    assert turns.level == turns.conversation.values == level
    with pytest.raises(SystemExit):
        parse(TrainConfig, args=["--algo", algo, "--ppo.level", level])


def test_runs_with_a_level_are_read():
    """Earlier versions wrote the default for every algorithm."""
    config = TrainConfig(algo="token_ppo", ppo=PPO)
    values = to_json(config)
    for level in ("turn", "token"):
        assert from_json(TrainConfig, values | {"ppo": values["ppo"] | {"level": level}}) == config
    with pytest.raises(ValueError, match="level"):
        from_json(TrainConfig, values | {"algo": "turn_ppo", "ppo": values["ppo"] | {"level": "token"}})


@pytest.mark.parametrize(
    ("algo", "width", "gamma", "unread"),
    [
        ("grpo", 128, 0.99, "--value-width is 128.*grpo"),
        ("grpo", 256, 0.95, "--group.gamma is 0.95.*grpo"),
        ("gigpo", 128, 0.95, "--value-width is 128.*gigpo"),
        ("gigpo", 256, 0.95, ""),
        ("grpo", 64, 0.9, ""),  # the demo's, which has one setting for all learners
        ("token_ppo", 128, 0.99, ""),
    ],
)
def test_groups_have_no_critic_and_grpo_no_discount(algo, width, gamma, unread):
    program = agent()
    config = TrainConfig(agent=replace(program.config, value_width=width), algo=algo)
    config = replace(config, **({"ppo": PPO} if algo == "token_ppo" else {"group": replace(GROUP, gamma=gamma)}))
    if unread:
        with pytest.raises(ValueError, match=unread):
            make_learner(config, program)
    else:
        make_learner(config, program)
