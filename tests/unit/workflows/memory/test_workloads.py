"""Workloads beyond language models alone, compiled for the devices of this process."""

import json
import typing
from dataclasses import replace
from functools import partial

import jax
import pytest

from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.cli.workloads import WORKLOADS, fit
from llmrl_jax.lm import LlamaConfig, LoRAConfig
from llmrl_jax.lm.model import random_params
from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.group import GroupConfig
from llmrl_jax.multiturn.ppo import TurnPPOConfig
from llmrl_jax.multiturn.replies import ReplyAutomaton
from llmrl_jax.run.chunk import compile_chunk
from llmrl_jax.systems.agent.build import build, make_learner
from llmrl_jax.systems.agent.config import AgentConfig, TrainConfig
from llmrl_jax.workflows.memory.config import LANGUAGE
from tests.absent_reports import SHAPE


def test_every_workload_has_a_program():
    names = typing.get_args(typing.get_type_hints(WorkloadConfig)["workload"])
    assert set(names) == {*LANGUAGE, *WORKLOADS}


@pytest.mark.slow
def test_an_update_of_ppo_holds_its_network_its_moments_and_half_of_the_environments():
    one, two = (fit(WorkloadConfig(workload="ppo", batch_size=8, steps=4, mesh=mesh)) for mesh in ("", "data=2"))
    trained = one.trained
    assert trained == one.parameters == two.trained > 1000
    assert one.parts["parameters"] == (4 * trained, 4 * trained)
    moments, _ = one.parts["optimiser"]
    assert 8 * trained <= moments < 8 * trained + 64
    part, whole = two.parts["data and counters"]
    assert part < whole == one.parts["data and counters"][0]
    assert one.prediction is None and one.fits is None


def test_offline_steps_hold_the_recorded_ones():
    found = fit(WorkloadConfig(workload="offline", algo="td3+bc", batch_size=16, steps=2, rows=500))
    frozen, _ = found.parts["frozen parameters"]
    assert 500 * 4 * (17 + 6 + 1 + 17) <= frozen < 500 * 4 * (17 + 6 + 1 + 17) + 500 * 16
    for options, message in (({"algo": "ppo"}, "workload offline.*awac"), ({"mesh": "data=2"}, "one device.*--mesh")):
        with pytest.raises(ValueError, match=message):
            fit(WorkloadConfig(workload="offline", **options))


def test_imagined_episodes_read_the_model_that_they_are_given(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    options = {"model": str(tmp_path / "config.json"), "batch_size": 4, "length": 8, "steps": 2}
    found = fit(WorkloadConfig(workload="kalm-imagine", **options))
    assert found.trained == 0
    slots = 64 * (10 + 1) + 40 * 64 + 10 * (64 + 1) + 40 * (64 + 1)  # in: states, actions; out: states, actions
    assert found.parts["parameters"][0] == 4 * found.parameters
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert found.parameters == 512 * 64 + 2 * layer + 64 + slots


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["turn_ppo", "grpo"])
def test_an_agent_that_writes_needs_what_its_run_needs(algo, tmp_path):
    """The program from shapes has the memory of that of a run of the same sizes, whose arrays are there."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    words = {"env": "Notes-Recall-v0", "length": 96, "batch_size": 8, "steps": 24 * (algo == "turn_ppo")}
    found = fit(WorkloadConfig(workload="agent", algo=algo, model=str(tmp_path / "config.json"), **words))
    sizes = SmallConfig(hidden_size=64, layers=2, heads=4, intermediate_size=128)
    agent = build(AgentConfig(env=words["env"], embedded=sizes))
    shape = LlamaConfig.from_hf(SHAPE)
    blank = agent.policy.model.clone(config=shape, lora=None)
    replies = ReplyAutomaton.build(
        agent.tokenizer, "plain", agent.env.action_names, shape.vocab_size, [agent.tokenizer.eos_id]
    )
    policy = replace(
        agent.policy, model=blank.clone(lora=LoRAConfig()), base=partial(random_params, blank, None), replies=replies
    )
    shared = {"num_envs": 8, "minibatches": 1, "episode_tokens": 96}
    kind = {"ppo": TurnPPOConfig(**shared, num_steps=24)} if algo == "turn_ppo" else {"group": GroupConfig(**shared)}
    learner = make_learner(TrainConfig(algo=algo, **kind), replace(agent, policy=policy))
    state = jax.jit(learner.init)(jax.random.key(0))
    program, _ = compile_chunk(learner, state, 1)
    stats = program.memory_analysis()
    whole = stats.argument_size_in_bytes + stats.temp_size_in_bytes
    whole += stats.output_size_in_bytes - stats.alias_size_in_bytes
    assert abs(found.total / whole - 1) < 0.15
    arrays = sum(x.nbytes for x in jax.tree.leaves(state.frozen["params"]))
    assert arrays <= found.parts["frozen parameters"][0] < arrays + 100_000  # and the tables of the format
    with pytest.raises(ValueError, match="token_ppo"):
        fit(WorkloadConfig(workload="agent", algo="iql", model=str(tmp_path / "config.json")))
    with pytest.raises(ValueError, match="steps is 8.*grpo"):
        fit(WorkloadConfig(workload="agent", algo="grpo", steps=8, model=str(tmp_path / "config.json")))
