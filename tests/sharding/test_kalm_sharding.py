"""Grounding on eight simulated devices computes what it computes on one, with weights that are really split."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from llmrl_jax.lm import Llama, LlamaConfig
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import make_mesh, shardings
from llmrl_jax.systems.kalm import prompts
from llmrl_jax.systems.kalm.config import Weights
from llmrl_jax.systems.kalm.ground import make_grounding
from llmrl_jax.systems.kalm.prompts import Episodes
from llmrl_jax.systems.kalm.world_model import WorldModel
from llmrl_jax.tuning.sft import SFTConfig
from tests.lm_random import random_variables


def data():
    """Eight episodes of two steps, and their rows."""
    rng = np.random.default_rng(0)
    ends = np.arange(8, dtype=np.int64)
    episodes = Episodes(
        rng.normal(size=(24, 2)).astype(np.float32),
        rng.integers(0, 3, 16).astype(np.int32),
        ends * 3,
        ends * 2,
        np.full(8, 2),
    )
    words = WordTokenizer.from_texts([prompts.ROLLOUT, *prompts.EXPLANATION, "go"])
    rows = prompts.write(episodes, [["go"]] * 8, words, rng, patterns=("rollout", "explanation"))
    return episodes, words, prompts.pack(rows, 32)


@pytest.fixture(scope="module")
def parts():
    episodes, words, rows = data()
    size = -(-words.vocab_size // 8) * 8
    llama = Llama(LlamaConfig(size, 16, 32, 2, 4, 2, max_position_embeddings=32, eos_token_id=words.eos_id))
    return WorldModel.around(llama, episodes, 3), random_variables(llama), rows, episodes


def learned(parts, mesh):
    model, variables, rows, episodes = parts
    if mesh is not None:
        placed = shardings(model.llama.abstract(), model.llama.logical_axes(), mesh)
        variables = jax.device_put(variables, placed)
    config = SFTConfig(batch_size=8, learning_rate=1e-2)
    learner = make_grounding(config, Weights(), model, variables, rows, episodes, 2, mesh)
    state = learner.init(jax.random.key(0))
    update = jax.jit(learner.update)
    for _ in range(2):
        state, metrics = update(state)
    return state, metrics


@pytest.mark.slow
def test_updates_do_not_depend_on_the_mesh(parts):
    want, expected = learned(parts, None)
    mesh = make_mesh("data=2,fsdp=2,tensor=2")
    with jax.set_mesh(mesh):
        got, metrics = learned(parts, mesh)
    for name, x in expected.items():
        np.testing.assert_allclose(metrics[name], x, rtol=1e-3, err_msg=name)
    flat = jax.tree_util.tree_leaves_with_path(want.params)
    for (path, x), y in zip(flat, jax.tree.leaves(got.params), strict=True):
        np.testing.assert_allclose(y, x, atol=2e-3, err_msg=jax.tree_util.keystr(path))
    whole = sum(x.size for x in jax.tree.leaves(got.params["params"]))
    here = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(got.params["params"]))
    assert here < 0.4 * whole
