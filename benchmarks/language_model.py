"""A language model of 27 million weights compared with transformers and peft on torch: forward pass, greedy generation,
fine-tuning step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.harness import OURS, Result, Row, aim, compiled, fastest, rates, seconds, speedup, updating
from benchmarks.torch_peer import Way
from llmrl_jax import lm
from llmrl_jax.tuning import Packed, SFTConfig, make_sft


TITLE = "The language model, 27 million weights: forward, greedy text and fine-tuning, compared with torch"

LENGTH, NEW = 192, 48
LORA = lm.LoRAConfig(rank=8, alpha=16.0, targets=("q_proj", "v_proj"))


def packed(tokens: np.ndarray) -> Packed:
    """Full rows, with a loss on every token after the first."""
    places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    return Packed(tokens, places, np.ones_like(tokens), places > 0)


def measure(name: str, config: lm.LlamaConfig, batches: tuple[int, ...], threads: int) -> tuple[list[Row], list[str]]:
    """Rows and bars of one model: forward passes and greedy texts of `batches`, and a step of fine-tuning."""
    model = lm.Llama(config)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    rng = np.random.default_rng(0)
    how = lm.SamplingConfig(max_new_tokens=NEW, temperature=0.0, stop_tokens=())
    rows: list[Row] = []
    bars = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = torch_peer.Torch(str(lm.save_hf(f"{folder}/model", config, variables["params"])), threads)

        def pair(case: str, amount: int, ours: Callable, took: float, ways: list[Way], check: Callable) -> None:
            who = "peft on torch" if "LoRA" in case else "torch"
            mine = [Row(case, OURS, "tokens/s", rates(amount, seconds(ours)), took)]
            peers = torch_peer.rows(case, who, "tokens/s", amount, ways, check)
            rows.extend([*mine, *peers])
            ratio = speedup(mine, peers)
            bar = 1.4 if "LoRA" in case else 1
            bars.append(f"{case}: {ratio:.2f} times {who} ({fastest(peers).note}) {aim(ratio, bar)}")

        for batch in batches:
            tokens = rng.integers(3, config.vocab_size, (batch, LENGTH)).astype(np.int32)
            placed, lengths = jnp.asarray(tokens), np.full(batch, LENGTH)

            forward, took = compiled(lambda v, t: model.apply(v, t).logits, variables, placed)
            logits = np.asarray(forward(variables, placed))

            def close(got: np.ndarray, want: np.ndarray = logits) -> None:
                np.testing.assert_allclose(got, want, atol=2e-3)

            case = f"{name}, forward, {batch} x {LENGTH} tokens"
            ours = lambda p=forward, t=placed: p(variables, t)  # noqa: E731
            pair(case, batch * LENGTH, ours, took, theirs.forward(tokens), close)

            def decode(v: Any, t: jax.Array, lengths: np.ndarray = lengths) -> jax.Array:
                return lm.generate(model, v, t, lengths, jax.random.key(0), how).tokens[:, 0]

            greedy, took = compiled(decode, variables, placed)
            text = np.asarray(greedy(variables, placed))

            def same(got: np.ndarray, want: np.ndarray = text) -> None:
                share = float((got == want).mean())
                if share < 0.9:  # only a tie in the last bit may separate two greedy texts
                    raise AssertionError(f"only {share:.0%} of the greedy tokens are torch's")

            case = f"{name}, {NEW} greedy tokens after {LENGTH}, batch {batch}"
            ours = lambda p=greedy, t=placed: p(variables, t)  # noqa: E731
            pair(case, batch * NEW, ours, took, theirs.greedy(tokens, NEW), same)

        tokens = rng.integers(3, config.vocab_size, (4, LENGTH)).astype(np.int32)
        adapted = lm.Llama(config, lora=LORA)
        how_sft = SFTConfig(batch_size=4, learning_rate=1e-4, schedule="constant", warmup=0.0)
        learner = make_sft(how_sft, adapted, variables, packed(tokens), 1000)
        state = learner.init(jax.random.key(1))
        update, took = updating(learner, state)
        loss = float(update()["loss"][0])
        case = f"{name}, a step of LoRA fine-tuning, 4 x {LENGTH} tokens"
        ways = theirs.fine_tuning(tokens, LORA)
        pair(case, 4 * LENGTH, update, took, ways, lambda x: np.testing.assert_allclose(x, loss, 1e-3))
    return rows, bars


def _compilation(layers: int) -> tuple[Row, str]:
    """Time to trace and compile a deep model, forward pass and gradient of its adapters."""
    model = lm.Llama(lm.LlamaConfig(32_000, 2048, 5632, layers, 32, 4, max_position_embeddings=2048), lora=LORA)
    shapes = model.abstract()
    tokens = jax.ShapeDtypeStruct((1, 128), jnp.int32)

    def loss(lora: Any, params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply({"params": params, "lora": lora}, tokens).logits
        return -jax.nn.log_softmax(logits)[..., 0].mean()

    times = [compiled(jax.grad(loss), shapes["lora"], shapes["params"], tokens)[1] for _ in range(2)]
    # the first also includes jax's one-time setup
    row = Row(f"{layers} layers (TinyLlama's shape), adapter gradients", OURS, "s to compile", times[1:], None)
    return row, f"{layers} layers compile in {times[1]:.1f} s {aim(times[1], 5, below=True)}"


def note(threads: int) -> str:
    """Description of the measurement of models."""
    return (
        f"float32, {threads} threads, random weights. Before anything is timed, logits agree within 2e-3, first losses "
        "within 1e-3, and nine of ten greedy tokens. torch computes with its default attention, eagerly and through "
        "`torch.compile` (fixed shapes, default mode, no cache on disk); greedy text with transformers' growing cache "
        "and with its static one. A ratio is stated against the fastest of torch's rows. torch's compile seconds are "
        "those by which its first call exceeds the median of the others."
    )


def run(quick: bool = False) -> Result:
    """Tokens per second."""
    threads = len(os.sched_getaffinity(0))
    config = lm.LlamaConfig.preset("small", 4096, **({"num_hidden_layers": 1} if quick else {}))
    rows, bars = measure("27M", config, (1,) if quick else (1, 4), threads)
    row, bar = _compilation(22)
    return Result([*rows, row], [*bars, bar], [note(threads)])
