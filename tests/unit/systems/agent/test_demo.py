"""The demo's settings make a learner of every kind."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import jax
import pytest

from llmrl_jax.run import RunConfig
from llmrl_jax.systems.agent.build import build, make_learner, make_world
from llmrl_jax.systems.agent.clone import clone, demonstrations
from llmrl_jax.systems.agent.config import DEMO, AgentConfig, Algorithm, CloneConfig, CloneRun, TrainConfig, demo_config
from llmrl_jax.tuning import SFTConfig
from llmrl_jax.workflows.evaluation import evaluate


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


def test_one_task_of_several():
    config = AgentConfig(env="BabyAI-Text/MixedTrainLocal-v0?num_dists=0", task="pick_up", num_actions=4)
    env, params = make_world(config)
    obs, _ = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), 32), params)
    missions = [env.describe(jax.tree.map(lambda x, i=i: x[i], obs))["mission"] for i in range(32)]
    assert all(mission.startswith("pick up the ") and "then" not in mission for mission in missions)
    with pytest.raises(ValueError, match="task is 'fly'.*go_to"):
        make_world(replace(config, task="fly"))
    with pytest.raises(ValueError, match="task is 'go_to'.*Notes-Recall-v0"):
        make_world(AgentConfig(env="Notes-Recall-v0", task="go_to"))


@pytest.mark.slow
def test_replies_of_the_expert_that_do_not_fit_are_refused(agent):
    short = replace(agent, config=replace(agent.config, reply_tokens=6))
    with pytest.raises(ValueError, match=r"reply_tokens is 6.*--reply-tokens \d+"):
        demonstrations(short, CloneConfig(episodes=2), 0, 512)


def test_plans_are_the_experts_and_actions_are_noisy(agent):
    texts = [
        agent.tokenizer.decode([t for t, learn in zip(x.tokens, x.learn) if learn])
        for x in demonstrations(agent, CloneConfig(episodes=40, noise=0.9), 0, 512)
    ]
    pairs = [(text.split(" so ")[1].split(" ACTION")[0], text.split(": ")[-1].strip()) for text in texts]
    # one of three actions at random in 0.9 of the turns: 0.1 + 0.9 / 3 are the plan's
    assert 0.3 <= sum(plan == action for plan, action in pairs) / len(pairs) <= 0.5


@pytest.mark.slow
def test_a_run_of_imitation_is_evaluated_again(tmp_path):
    """`llmrl eval` has the results of the run, and so has the model that it wrote, in RL's held-out episodes."""
    small = replace(DEMO, tune="full", embedded=replace(DEMO.embedded, hidden_size=32, layers=1))
    sizes = CloneConfig(episodes=16, sft=SFTConfig(batch_size=2, learning_rate=1e-2))
    run = RunConfig(name="taught", out=str(tmp_path), progress="off", checkpoint_every=0)
    config = CloneRun(agent=small, clone=sizes, eval_episodes=4, run=run)
    result = clone(config)
    summary = json.loads((result.folder / "summary.json").read_text())
    again = evaluate(result.folder)
    assert {name: again[name] for name in ("sampled", "greedy", "random")} == {
        name: summary[name] for name in ("sampled", "greedy", "random")
    }
    written = TrainConfig(agent=replace(small, model=str(result.folder / "model")), eval_episodes=4, run=run)
    x = written.experiment()
    state = x.learner.init(jax.random.key(0))
    assert x.results(state, x.key(run.seed), 4) == {name: again[name] for name in ("sampled", "greedy", "random")}
