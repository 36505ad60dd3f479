"""Options of `llmrl agent train` that its learner does not read are refused."""

from __future__ import annotations

import pytest

from llmrl_jax.core.config import from_json, to_json
from llmrl_jax.options.command import parse
from llmrl_jax.systems.agent.build import make_learner
from llmrl_jax.systems.agent.config import TrainConfig
from tests.unit.multiturn.conversations import PPO, agent


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
