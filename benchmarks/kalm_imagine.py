"""KALM's imagination: 64 episodes at once, beside transformers' `generate` on torch for as many tokens."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.accelerator.shapes import SHAPES
from benchmarks.harness import OURS, Result, Row, aim, compiled, fastest, rates, seconds, speedup, threads
from llmrl_jax import lm
from llmrl_jax.systems.kalm.config import GroundRun
from llmrl_jax.systems.kalm.imagine import imagine, in_pieces, piece_of
from llmrl_jax.systems.kalm.world_model import Normalizer, Slots, WorldModel


TITLE = "KALM: imagined episodes, compared with generate on torch"
TOGETHER, PROMPT, STATE, ACTIONS = 64, 32, 10, 40
BAR = 3


def embedded() -> lm.LlamaConfig:
    """The model that `llmrl kalm ground` makes."""
    x = GroundRun().embedded
    return lm.LlamaConfig(
        368, x.hidden_size, x.intermediate_size, x.layers, x.heads, x.heads, max_position_embeddings=256
    )


def rows(name: str, config: lm.LlamaConfig, horizon: int, ways: int) -> tuple[list[Row], str]:
    """Rows of a model, and its bar. **Arguments:** `horizon`, steps of an episode, of two places each."""
    llama = lm.Llama(config)
    variables = dict(jax.jit(llama.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)))
    model = WorldModel(llama, Slots(config.hidden_size, STATE, ACTIONS, True))
    mine = {**variables, "slots": model.init_slots(jax.random.key(1), variables)}
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, config.vocab_size, (TOGETHER, PROMPT)).astype(np.int32)
    first = rng.normal(size=(TOGETHER, STATE)).astype(np.float32)
    ones = jnp.ones(STATE)
    normalizer, size = Normalizer(0 * ones, ones, 0.1 * ones), piece_of(model, TOGETHER)

    def never(goals: Any, states: Any, actions: Any) -> tuple[Any, Any]:
        after = states[:, 1:, 0]
        return after, jnp.zeros(after.shape, bool)

    def play(variables: Any, tokens: Any, first: Any) -> Any:
        lengths, goals = jnp.full(len(tokens), PROMPT), jnp.zeros((len(tokens), 1))
        return imagine(model, variables, normalizer, tokens, lengths, first, goals, never, horizon)

    case = f"{name}, {TOGETHER} episodes of {horizon} steps after {PROMPT} tokens"
    places = 2 * horizon
    program, took = compiled(play, mine, jnp.asarray(tokens[:size]), jnp.asarray(first[:size]))
    all_of_them = partial(in_pieces, partial(program, mine), (tokens, first), size)
    made = all_of_them()
    assert np.isfinite(made.states).all() and int(made.lengths.min()) == horizon and len(made.states) == TOGETHER
    note = f"states and actions; {size} episodes in a program"
    ours = Row(case, OURS, "tokens/s", rates(TOGETHER * places, seconds(all_of_them)), took, note)
    with tempfile.TemporaryDirectory() as folder:
        path = lm.save_hf(f"{folder}/model", config, variables["params"])
        count = len(os.sched_getaffinity(0))
        theirs = torch_peer.Torch(str(path), count).greedy(tokens, places)[:ways]

        def check(text: Any) -> None:
            assert text.shape == (TOGETHER, places)

        peers = torch_peer.rows(case, f"torch, {threads(count)}", "tokens/s", TOGETHER * places, theirs, check)
    ratio = speedup([ours], peers)
    return [ours, *peers], f"{name}: {ratio:.2f} times torch's generate ({fastest(peers).note}) {aim(ratio, BAR)}"


def run(quick: bool = False) -> Result:
    """Tokens per second; a state and an action count as a token each."""
    found = [rows("embedded model", embedded(), 10 if quick else 50, 3)]
    if not quick:
        found.append(rows("SmolLM2's shape", SHAPES["135M"], 10, 3))
    return Result(
        [row for part, _ in found for row in part],
        [bar for _, bar in found],
        [
            "float32, random weights. Ours writes a state and an action in turn, with the rules of the world after "
            "each step; torch writes as many tokens of text, the most likely ones, for which it computes the scores of "
            "its whole vocabulary at every token: a fifth of SmolLM2's products, where ours has heads of at most 40 "
            "outputs. Neither stops early. The published generator has no cache and computes the whole row again for "
            "each step, which is not measured here.",
        ],
    )
