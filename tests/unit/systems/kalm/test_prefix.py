"""Rows and prompts of KALM begin with what the tokenizer puts before a text, as everything that a model reads does."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax import lm
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.systems.kalm import ground, prompts
from llmrl_jax.systems.kalm.config import GroundRun
from llmrl_jax.systems.kalm.prompts import STATE, TOKEN, Episodes, Row
from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel
from llmrl_jax.systems.kalm.worlds import world_of


TEXT = "turn left"
EPISODES = Episodes(np.zeros((3, 2), np.float32), np.zeros(2, np.int32), np.array([0]), np.array([0]), np.array([2]))


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece", "bare"])
def test_a_row_begins_with_the_prefix_and_nothing_else_does(kind, request):
    tokenizer: FastTokenizer = request.getfixturevalue(kind)
    start = {"bpe": [0], "sentencepiece": [tokenizer.bos_id], "bare": []}[kind]
    rows = prompts.write(EPISODES, [[TEXT]], tokenizer, np.random.default_rng(0))
    assert len(rows) == len(prompts.PATTERNS)
    for row, first in zip(
        rows,
        (prompts.ROLLOUT, prompts.DYNAMICS[0], prompts.CONSEQUENCE[0], prompts.EXPLANATION[0]),
        strict=True,
    ):
        words = [*start, *tokenizer.encode(first.format(TEXT))]
        assert row.tokens[: len(words)] == words and row.kind[len(words)] == STATE
        assert not any(row.learn[: len(words)])
        text = [token for token, what in zip(row.tokens, row.kind, strict=True) if what == TOKEN]
        assert text.count(tokenizer.bos_id) == len(start)
    tokens, lengths = prompts.rollout_prompts([TEXT], tokenizer)
    assert tokens[0, : lengths[0]].tolist() == rows[0].tokens[: lengths[0]] and rows[0].kind[lengths[0]] == STATE
    asked = prompts.question(Row(tokenizer), EPISODES, 0)
    assert rows[3].tokens[: len(asked.tokens)] == asked.tokens
    assert rows[3].tokens[-1] == tokenizer.eos_id


def test_an_explanation_needs_an_end_token(bpe):
    with pytest.raises(ValueError, match="end-of-sequence"):
        prompts.write(EPISODES, [[TEXT]], FastTokenizer(bpe.backend), np.random.default_rng(0))


def saved(tokenizer, rows, folder) -> ground.GroundedModel:
    world = world_of("clevr")
    config = lm.LlamaConfig(-(-tokenizer.vocab_size // 8) * 8, 16, 24, 1, 2, max_position_embeddings=64)
    llama = lm.Llama(config)
    slots = Slots(16, 2, 3, True)
    model = WorldModel(llama, slots, "change")
    params = jax.jit(llama.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    state = SimpleNamespace(
        frozen={"base": {}, "rows": rows, "units": Normalizer(*(jnp.ones(2),) * 3)},
        params={"params": params, "slots": {"x": jnp.zeros(1)}},
    )
    ground.save_model(folder, GroundRun(model="base"), world, model, state, tokenizer, None)
    return ground.load_model(folder)


def test_a_model_is_asked_as_it_was_grounded(bpe, tmp_path):
    """Models of earlier versions, and runs that such a version began, had rows without the prefix."""
    bare = FastTokenizer(bpe.backend, **bpe.specials)
    bare.prefix_ids = ()
    rows = {
        name: prompts.pack(prompts.write(EPISODES, [[TEXT]], t, np.random.default_rng(0)), 256)
        for name, t in (("now", bpe), ("before", bare))
    }
    now, before = (saved(bpe, rows[name], tmp_path / name) for name in ("now", "before"))
    assert (now.tokenizer.prefix_ids, before.tokenizer.prefix_ids) == ((0,), ())
    for found, name in ((now, "now"), (before, "before")):
        tokens, lengths = prompts.rollout_prompts([TEXT], found.tokenizer)
        assert (tokens[0, 0] == 0) == (name == "now") and lengths[0] == tokens.shape[1]
    about = tmp_path / "now" / ground.FOLDER / ground.METADATA
    values = json.loads(about.read_text())
    del values["prefix"]
    about.write_text(json.dumps(values))
    assert ground.load_model(tmp_path / "now").tokenizer.prefix_ids == ()
