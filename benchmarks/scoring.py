"""Scoring actions after a prompt: the shared pass, compared with full passes and with both forms in torch."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.harness import OURS, Result, Row, aim, compiled, fastest, rates, seconds, speedup
from llmrl_jax import lm


TITLE = "Action scoring: one shared pass, compared with full passes and with torch"

# Six actions of at most three tokens, like BabyAI's with a subword tokenizer; two pairs share a first token.
ACTIONS = lm.Candidates([[11, 12, 13], [11, 12, 14], [21, 22, 23], [31, 32, 33], [41, 32, 34], [51, 52, 53]])
PROMPT, BATCH = 192, 4
# The demo's: one token per word.
WORDS = lm.Candidates([[3, 4], [3, 5], [6, 7], [8, 9], [10, 11], [12]])


def _large(quick: bool) -> tuple[list[Row], list[str]]:
    config = lm.LlamaConfig.preset("small", 4096, **({"num_hidden_layers": 1} if quick else {}))
    model = lm.Llama(config)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    tokens = np.random.default_rng(0).integers(0, 4096, (BATCH, PROMPT)).astype(np.int32)
    args = (variables, jnp.asarray(tokens), jnp.full(BATCH, PROMPT, jnp.int32))
    case = f"{len(ACTIONS)} actions under {PROMPT} tokens, batch {BATCH}, {config.matmul_params / 1e6:.0f}M matrices"
    shared, shared_compile = compiled(lambda v, t, n: lm.score(model, v, t, n, ACTIONS).sum, *args)
    naive, naive_compile = compiled(lambda v, t, n: lm.score_naive(model, v, t, n, ACTIONS).sum, *args)
    rows = [
        Row(case, OURS, "prompts/s", rates(BATCH, seconds(lambda: shared(*args))), shared_compile, "one shared pass"),
        Row(
            case,
            f"{OURS}, naive",
            "prompts/s",
            rates(BATCH, seconds(lambda: naive(*args))),
            naive_compile,
            "six passes",
        ),
    ]
    want = np.asarray(shared(*args))
    peers = {}
    with tempfile.TemporaryDirectory() as folder:
        path = lm.save_hf(f"{folder}/model", config, variables["params"])
        for name, ways in torch_peer.Torch(str(path), _cores()).scoring(tokens, ACTIONS).items():
            check = lambda got: np.testing.assert_allclose(got, want, atol=1e-3)  # noqa: E731
            peers[name] = torch_peer.rows(case, f"torch, {name}", "prompts/s", BATCH, ways, check)
            rows += peers[name]
    ours = rows[:1]
    prefix, naive = peers["prefix cache"], peers["naive"]
    bars = [
        f"{speedup(ours, rows[1:2]):.1f} times our naive pass {aim(speedup(ours, rows[1:2]), 5)}",
        f"{speedup(ours, prefix):.1f} times torch with a repeated prefix cache ({fastest(prefix).note}) "
        f"{aim(speedup(ours, prefix), 1)}; {speedup(ours, naive):.1f} times torch's naive pass ({fastest(naive).note})",
    ]
    return rows, bars


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _phrases(count: int, length: int, shared: int) -> lm.Candidates:
    """`count` candidates of `length` tokens, of which the first `shared` are the same in all of them."""
    rng = np.random.default_rng(1)
    head = rng.integers(3, 2000, shared).tolist()
    return lm.Candidates([head + rng.integers(2000, 4000, length - shared).tolist() for _ in range(count)])


def _forms(quick: bool) -> tuple[list[Row], list[str]]:
    """The forms of `score`, and whether `auto` selects the fastest."""
    config = lm.LlamaConfig.preset("small", 4096, **({"num_hidden_layers": 1} if quick else {}))
    model = lm.Llama(config)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    cases = {
        (192, "6 actions of 3 tokens"): ACTIONS,
        (192, "32 phrases of 8 tokens, 6 of them shared"): _phrases(32, 8, 6),
        (16, "4 phrases of 24 tokens, none shared"): _phrases(4, 24, 0),
    }
    rows, bars = [], []
    for (prompt, what), candidates in cases.items():
        tokens = np.random.default_rng(0).integers(3, 4096, (BATCH, prompt)).astype(np.int32)
        args = (variables, jnp.asarray(tokens), jnp.full(BATCH, prompt, jnp.int32))
        costs = lm.costs(model.config, prompt, candidates)
        case = f"{what}, under {prompt} tokens, batch {BATCH}"
        medians, want = {}, None
        for form in costs:
            program, took = compiled(
                lambda v, t, n, form=form, c=candidates: lm.score(model, v, t, n, c, form=form).sum, *args
            )
            got = np.asarray(program(*args))
            np.testing.assert_allclose(got, got if want is None else want, atol=1e-3)
            want = got
            note = f"{costs[form] / 1e9:.2f}G multiply-adds"
            times = seconds(lambda program=program, args=args: program(*args))
            rows.append(Row(case, f"{OURS}, {form}", "prompts/s", rates(BATCH, times), took, note))
            medians[form] = rows[-1].median
        chosen = lm.choose_form(model.config, prompt, candidates)
        best = max(medians, key=medians.__getitem__)
        bars.append(f"{case}: auto takes {chosen}, at {medians[chosen] / medians[best]:.2f} of the fastest, {best}.")
    return rows, bars


def _demo(batch: int, prompt: int, rows_at_once: int | None) -> list[Row]:
    """The demo's policy: two layers of width 64, adapters on queries and values."""
    config = lm.LlamaConfig.preset("tiny", 200)
    model = lm.Llama(config, lora=lm.LoRAConfig(rank=8, alpha=16.0))
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 200, (batch, prompt)).astype(np.int32))
    args = (tokens, jnp.full(batch, prompt, jnp.int32))

    def loss(lora: Any, params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        variables = {"params": params, "lora": lora}
        scores = lm.score(model, variables, tokens, lengths, WORDS, rows=rows_at_once)
        return -jax.nn.log_softmax(scores.sum)[:, 0].mean() + scores.hidden.mean()

    def forward(v: Any, t: jax.Array, n: jax.Array) -> jax.Array:
        return lm.score(model, v, t, n, WORDS, rows=rows_at_once).sum

    case = f"the demo's policy, {prompt} tokens, batch {batch}" + (f", rows={rows_at_once}" if rows_at_once else "")
    both = (variables["lora"], variables["params"], *args)
    score, score_compile = compiled(forward, variables, *args)
    grad, grad_compile = compiled(jax.grad(loss), *both)
    times = seconds(lambda: score(variables, *args), repeats=9), seconds(lambda: grad(*both), repeats=9)
    return [
        Row(case, f"{OURS}, forward", "env-steps/s", rates(batch, times[0]), score_compile),
        Row(case, f"{OURS}, with adapter gradients", "env-steps/s", rates(batch, times[1]), grad_compile),
    ]


def run(quick: bool = False) -> Result:
    """Prompts scored per second."""
    rows, bars = _large(quick)
    for more, into in zip(_forms(quick), (rows, bars)):
        into += more  # type: ignore[operator]
    for batch, prompt, group in [(64, 64, None)] if quick else [(64, 64, None), (64, 96, None), (256, 64, 32)]:
        rows += _demo(batch, prompt, group)
    notes = [
        f"float32, {_cores()} threads. Scores agree with torch's within 1e-3 before anything is timed. torch keeps "
        "only the logits that it needs (logits_to_keep) and its default attention; `prefix cache` is DynamicCache with "
        "batch_repeat_interleave, as transformers recommends. Under `torch.compile` all of a scoring is one function "
        "of fixed shapes. A ratio is stated against the faster of torch's two rows.",
        "The demo's rows have no peer: they are the cost of a step of its policy.",
    ]
    return Result(rows, bars, notes)
