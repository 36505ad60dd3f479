"""Gradients of LoRA adapters, in units of the forward pass, with SmolLM2-135M's shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.shapes import SHAPES
from benchmarks.harness import OURS, Result, Row, aim, compiled, rates, seconds
from llmrl_jax import lm


TITLE = "LoRA: gradients of adapters, in units of the forward pass"
BATCH, LENGTH, RANK = 16, 80, 8
TARGETS = {"queries and values": (("q_proj", "v_proj"), 2.4), "all seven matrices": (lm.lora.TARGETS, 3.0)}
"""The matrices with adapters, and the number of forward passes that is aimed at."""


def loss(model: lm.Llama, variables: Any, tokens: jax.Array) -> jax.Array:
    """The mean log-probability of a token of the vocabulary, with its sign changed."""
    logits: Any = model.apply(variables, tokens)
    return -jnp.mean(jax.nn.log_softmax(logits.logits)[..., 3])


def run(quick: bool = False) -> Result:
    """Tokens per second of a forward pass with its loss, and of gradients."""
    config = lm.LlamaConfig.preset("tiny", 512) if quick else SHAPES["135M"]
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 3, config.vocab_size)
    count, rows, bars = BATCH * LENGTH, [], []
    plain = lm.Llama(config)
    base = jax.jit(plain.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    forward, took = compiled(lambda v, t: loss(plain, v, t), base, tokens)
    times = seconds(lambda: forward(base, tokens))
    rows.append(Row("forward pass and loss, without adapters", OURS, "tokens/s", rates(count, times), took))
    for name, (targets, bar) in TARGETS.items():
        model = lm.Llama(config, lora=lm.LoRAConfig(rank=RANK, alpha=2.0 * RANK, targets=targets))
        lora = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["lora"]

        def gradient(lora: Any, params: Any, tokens: jax.Array, model: lm.Llama = model) -> Any:
            return jax.grad(lambda lora: loss(model, {"params": params, "lora": lora}, tokens))(lora)

        program, took = compiled(gradient, lora, base["params"], tokens)
        times = seconds(lambda program=program, lora=lora: program(lora, base["params"], tokens))
        rows.append(Row(f"gradient of adapters on {name}", OURS, "tokens/s", rates(count, times), took))
        share = rows[0].figure / rows[-1].figure
        bars.append(f"adapters on {name}: {share:.2f} forward passes {aim(share, bar, below=True)}")
    note = (
        f"float32, random weights, {BATCH} x {LENGTH} tokens, rank {RANK}, with the head of "
        f"{config.vocab_size:,} words. By counts of operations 2 forward passes are needed. "
        "A whole step beside peft on torch is in the tables of the language model."
    )
    return Result(rows, bars, [note])
