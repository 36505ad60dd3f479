"""What the devices of a mesh send to one another, in the compiled programs of every learner.

Over `fsdp` weights are gathered where they are used, and the rows of a batch stay on their devices, as they do over
`data`. If instead the activations of the whole batch were summed over the devices, the results would be the same, and
every device would hold all rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import envs_jax
from llmrl_jax import lm
from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.cli.workloads import fit
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import make_mesh, shardings
from llmrl_jax.rl.branches import BranchConfig
from llmrl_jax.rl.dqn import DQNConfig, make_dqn
from llmrl_jax.rl.networks import NetworkQPolicy
from llmrl_jax.run.chunk import compile_chunk
from llmrl_jax.systems.ellm.build import build as build_ellm
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.glam.build import build as build_glam
from llmrl_jax.systems.glam.config import DEMO, EmbeddedConfig
from llmrl_jax.systems.kalm import prompts
from llmrl_jax.systems.kalm.config import Weights
from llmrl_jax.systems.kalm.ground import make_grounding
from llmrl_jax.systems.kalm.prompts import Episodes
from llmrl_jax.systems.kalm.world_model import WorldModel
from llmrl_jax.tuning import Packed, SFTConfig
from llmrl_jax.tuning.sft import sft_loss
from llmrl_jax.workflows.memory import hlo
from llmrl_jax.workflows.memory.config import FitConfig
from llmrl_jax.workflows.memory.programs import PROGRAMS, setting
from tests.contents import activations, gradient, repeated_rows
from tests.ellm_world import Yard
from tests.lm_random import random_variables


ROWS, WIDTH = 104, 64
"""Rows of every batch, a multiple of 13, as no size of a model is, and the smallest width of an activation."""
SHAPE = lm.LlamaConfig(80, WIDTH, 128, 2, 8, 8, max_position_embeddings=128)


def fitted(workload: Any, **options: Any):
    """A program of `llmrl lm fit`."""

    def program(mesh: str):
        sizes = {"batch_size": ROWS, "length": 32, "new_tokens": 8, "candidates": 5, "candidate_tokens": 2}
        config = FitConfig("", workload, **sizes | options, mesh=mesh)
        return PROGRAMS[workload](setting(config, SHAPE, jax.devices()))[0]

    return program


def quick(*names: str, of: dict[str, Any]) -> list[Any]:
    """The programs, all but some marked as slow."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in of]


def placed(model: lm.Llama, mesh: str) -> Any:
    variables = random_variables(model)
    return jax.device_put(variables, shardings(model.abstract(), model.logical_axes(), make_mesh(mesh)))


def held_out_loss(mesh: str):
    """The loss of an evaluation, whose rows come from the host."""
    model = lm.Llama(SHAPE, lora=lm.LoRAConfig(rank=2))
    tokens = jax.ShapeDtypeStruct((ROWS, 32), np.int32)
    rows = Packed(tokens, tokens, tokens, jax.ShapeDtypeStruct((ROWS, 32), bool))  # type: ignore[arg-type]
    return jax.jit(lambda v, rows: sft_loss(model, v, rows, 1.0)[0]).lower(placed(model, mesh), rows).compile()


def grounding(mesh: str):
    rng, ends = np.random.default_rng(0), np.arange(ROWS, dtype=np.int64)
    observations = rng.normal(size=(3 * ROWS, 2)).astype(np.float32)
    actions = rng.integers(0, 3, 2 * ROWS).astype(np.int32)
    episodes = Episodes(observations, actions, ends * 3, ends * 2, np.full(ROWS, 2))
    words = WordTokenizer.from_texts([prompts.ROLLOUT, *prompts.EXPLANATION, "go"])
    written = prompts.write(episodes, [["go"]] * ROWS, words, rng, patterns=("rollout", "explanation"))
    llama = lm.Llama(replace(SHAPE, eos_token_id=words.eos_id))
    learner = make_grounding(
        SFTConfig(batch_size=ROWS),
        Weights(),
        WorldModel.around(llama, episodes, 3),
        placed(llama, mesh),
        prompts.pack(written, 32),
        episodes,
        2,
        make_mesh(mesh),
    )
    return compile_chunk(learner, learner.init(jax.random.key(0)), 1)[0]


def glam(mesh: str):
    config = replace(
        DEMO,
        env="BabyAI-Text/GoToObjS4-v0",
        embedded=EmbeddedConfig(hidden_size=WIDTH, layers=2, heads=8, intermediate_size=128),
        value_width=8,
        score_rows=0,
        tune="lora",
        mesh=mesh,
        ppo=replace(DEMO.ppo, num_envs=ROWS, num_steps=2, minibatches=2, microbatches=1, epochs=1, pool_size=8),
    )
    learner = build_glam(config).learner()
    return compile_chunk(learner, learner.init(jax.random.key(0)), 1)[0]


LANGUAGE = {
    "sft": fitted("sft"),
    "sft of all weights": fitted("sft", tune="full"),
    "sft with remat": fitted("sft", remat=True, head_chunk=16),
    "grpo": fitted("grpo", samples=2),
    "score": fitted("score"),
    "generate": fitted("generate"),
    "loss on held-out rows": held_out_loss,
    "kalm ground": grounding,
    "glam": glam,
}


@pytest.mark.parametrize("name", quick("sft", of=LANGUAGE))
def test_weights_move_and_rows_stay(name):
    split, whole = LANGUAGE[name]("fsdp=8"), LANGUAGE[name]("data=8")
    for program in (split, whole):
        contents = hlo.read(program.as_text())
        assert not activations(contents, ROWS, WIDTH), name
        assert not repeated_rows(contents, ROWS), name
    kinds = {one.op for one in hlo.read(split.as_text()).collectives}
    assert "all-gather" in kinds, "the weights are not split"
    more = split.memory_analysis().temp_size_in_bytes - whole.memory_analysis().temp_size_in_bytes
    copy = sum(x.size for x in jax.tree.leaves(lm.Llama(SHAPE).abstract()["params"])) * 4
    # play, the forward pass and the backward pass each gather them, and two layers are not in a loop
    assert more <= 3 * copy, f"{name}: {more} bytes more than over data; all weights, which XLA may gather, take {copy}"


# --- networks, of which every device has a copy -----------------------------------------------------------------------


DQN = DQNConfig(
    num_envs=ROWS, num_steps=2, gradient_steps=2, batch_size=ROWS, replay_size=20 * ROWS, n_step=2, pool_size=8
)


def fitted_system(workload: Any):
    """The update of `llmrl lm fit`, with the number of its parameters."""

    def program(mesh: str):
        report = fit(WorkloadConfig(workload=workload, batch_size=ROWS, steps=4, mesh=mesh))
        return report.program, report.trained

    return program


def of_learner(learner: Any):
    state = learner.init(jax.random.key(0))
    return compile_chunk(learner, state, 1)[0], sum(x.size for x in jax.tree.leaves(state.params))


def dqn(mesh: str):
    env, params = envs_jax.make("Debug-Catch-v0")
    policy = NetworkQPolicy(env.action_space(params).n, hidden=(WIDTH,))
    return of_learner(make_dqn(DQN, envs_jax.wrappers.EpisodeStatistics(env), params, policy, make_mesh(mesh)))


def ellm(mesh: str):
    config = EllmConfig(encoder="hashed", network=BranchConfig(width=WIDTH, head_hidden=()), dqn=DQN, mesh=mesh)
    return of_learner(build_ellm(config, Yard()).learner())


NETWORK = {"ppo": fitted_system("ppo"), "dqn": dqn, "ellm": ellm, "bkrl": fitted_system("bkrl")}


@pytest.mark.parametrize("mesh", ["data=8", pytest.param("data=2,fsdp=4", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", quick("ppo", "dqn", of=NETWORK))
def test_each_device_learns_from_its_rows(name, mesh):
    program, trained = NETWORK[name](mesh)
    contents = hlo.read(program.as_text())
    assert not activations(contents, ROWS, WIDTH)
    assert not repeated_rows(contents, ROWS)
    assert gradient(contents) >= trained, "the gradient is not that of a part on each device"
