"""What the devices of a mesh send to one another, in the compiled programs of every learner with a language model.

Over `fsdp` weights are gathered where they are used, and the rows of a batch stay on their devices. If instead the
activations of the whole batch were summed over the devices, the results would be the same, and every device would hold
all rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import make_mesh, shardings
from llmrl_jax.run.chunk import compile_chunk
from llmrl_jax.run.memory.config import FitConfig
from llmrl_jax.run.memory.programs import PROGRAMS, setting
from llmrl_jax.systems.glam.build import build
from llmrl_jax.systems.glam.config import EmbeddedConfig
from llmrl_jax.systems.glam.presets import DEMO
from llmrl_jax.systems.kalm import patterns
from llmrl_jax.systems.kalm.grounding import Weights, make_grounding
from llmrl_jax.systems.kalm.patterns import Episodes
from llmrl_jax.systems.kalm.world_model import WorldModel
from llmrl_jax.tuning import Packed, SFTConfig
from llmrl_jax.tuning.sft import sft_loss
from tests.collectives import activations, collectives
from tests.lm_random import random_variables


ROWS, WIDTH = 56, 64
"""Rows of every batch, of which no other size is a multiple, and the smallest width of an activation."""
SHAPE = lm.LlamaConfig(80, WIDTH, 128, 2, 8, 8, max_position_embeddings=128)


def fitted(workload: Any, **options: Any):
    """A program of `llmrl lm fit`."""

    def program(mesh: str):
        sizes = {"batch_size": ROWS, "length": 32, "new_tokens": 8, "candidates": 5, "candidate_tokens": 2}
        config = FitConfig("", workload, **sizes | options, mesh=mesh)
        return PROGRAMS[workload](setting(config, SHAPE, jax.devices()))[0]

    return program


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
    words = WordTokenizer.from_texts([patterns.ROLLOUT, *patterns.EXPLANATION, "go"])
    written = patterns.write(episodes, [["go"]] * ROWS, words, rng, patterns=("rollout", "explanation"))
    llama = lm.Llama(replace(SHAPE, eos_token_id=words.eos_id))
    learner = make_grounding(
        SFTConfig(batch_size=ROWS),
        Weights(),
        WorldModel.around(llama, episodes, 3),
        placed(llama, mesh),
        patterns.pack(written, 32),
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
    learner = build(config).learner()
    return compile_chunk(learner, learner.init(jax.random.key(0)), 1)[0]


PROGRAM = {
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


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAM)
def test_rows_stay_on_their_devices(name):
    split, whole = PROGRAM[name]("fsdp=8"), PROGRAM[name]("data=8")
    for program in (split, whole):
        assert not activations(program, ROWS, WIDTH), name
    kinds = {one.kind for one in collectives(split)}
    assert "all-gather" in kinds, "the weights are not split"
    more = split.memory_analysis().temp_size_in_bytes - whole.memory_analysis().temp_size_in_bytes
    copy = sum(x.size for x in jax.tree.leaves(lm.Llama(SHAPE).abstract()["params"])) * 4
    # play, the forward pass and the backward pass each gather them, and two layers are not in a loop
    assert more <= 3 * copy, f"{name}: {more} bytes more than over data; all weights, which XLA may gather, take {copy}"
