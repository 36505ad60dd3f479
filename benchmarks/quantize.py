"""A quantised base compared with float32: memory, error, and run time."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, Result, Row, aim, compiled, rates, seconds
from llmrl_jax import lm
from llmrl_jax.lm.lora import TARGETS
from llmrl_jax.lm.quantize import BLOCK, KINDS, QUANTIZABLE, dequantize, nbytes, quantize


TITLE = "A frozen base in int8 and nf4, compared with float32"

BATCH, LENGTH, NEW = 4, 192, 32
BITS = {"int8": 8 + 32 / BLOCK, "nf4": 4 + 32 / BLOCK}


def _errors(model: lm.Llama, params: Any, floats: Any, tokens: jax.Array) -> tuple[dict[str, float], float]:
    """Errors of the logits relative to the unquantised weights, and the largest relative error of a matrix."""

    @jax.jit
    def logits(params: Any) -> jax.Array:
        return model.apply({"params": params}, tokens).logits

    got, want = logits(params), logits(floats)
    chances = jax.nn.softmax(want)
    divergence = jnp.sum(chances * (jax.nn.log_softmax(want) - jax.nn.log_softmax(got)), axis=-1)
    errors = {
        "max logit error / std": jnp.abs(got - want).max() / want.std(),
        "mean logit error / std": jnp.abs(got - want).mean() / want.std(),
        "KL from float32, nats": divergence.mean(),
    }
    matrices = jax.tree.map(lambda a, b: float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)), dequantize(params), floats)
    return {name: float(value) for name, value in errors.items()}, max(jax.tree.leaves(matrices))


def run(quick: bool = False) -> Result:
    """Memory, error and speed."""
    config = lm.LlamaConfig.preset("small", 4096, **({"num_hidden_layers": 1} if quick else {}))
    model = lm.Llama(config, lora=lm.LoRAConfig(rank=8, targets=TARGETS))
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    floats, lora = variables["params"], variables["lora"]
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, config.vocab_size, (BATCH, LENGTH)).astype(np.int32))
    lengths = np.full(BATCH, LENGTH)
    sampling = lm.SamplingConfig(max_new_tokens=NEW, temperature=0.0)
    size = f"{config.matmul_params / 1e6:.0f}M matrices"

    def loss(lora: Any, params: Any) -> jax.Array:
        logits = model.apply({"params": params, "lora": lora}, tokens).logits
        return -jax.nn.log_softmax(logits[:, :-1])[:, :, 0].mean()

    def forward(params: Any) -> jax.Array:
        return model.apply({"params": params}, tokens).logits

    def decode(params: Any) -> jax.Array:
        return lm.generate(model, {"params": params}, tokens, lengths, jax.random.key(0), sampling).tokens

    rows, bars = [], []
    for kind in ("", *KINDS):
        params = quantize(floats, kind, targets=QUANTIZABLE) if kind else floats
        who = f"{OURS}, {kind}" if kind else OURS
        note = "" if kind else "float32"
        rows.append(Row(f"memory of the base, {size}", who, "MB", [nbytes(params) / 1e6], None, note))
        cases = (
            (f"forward, {BATCH} x {LENGTH} tokens", forward, (params,), BATCH * LENGTH),
            (f"adapter gradients, {BATCH} x {LENGTH} tokens", jax.grad(loss), (lora, params), BATCH * LENGTH),
            (f"{NEW} greedy tokens after {LENGTH}, batch {BATCH}", decode, (params,), BATCH * NEW),
        )
        for case, function, args, amount in cases:
            program, compile_seconds = compiled(function, *args)
            times = seconds(lambda program=program, args=args: program(*args))
            rows.append(Row(case, who, "tokens/s", rates(amount, times), compile_seconds, note))
        if kind:
            errors, worst = _errors(model, params, floats, tokens)
            rows += [Row("error of the logits", who, name, [value]) for name, value in errors.items()]
            bar = 1 if kind == "int8" else 10
            error = f"{worst:.2%} {aim(100 * worst, bar, below=True)}"
            bars.append(f"greatest relative error of a matrix in {kind}: {error}, at {BITS[kind]} bits a weight")
    order = list(dict.fromkeys(row.case for row in rows))
    rows.sort(key=lambda row: order.index(row.case))
    notes = [
        f"Everything computes in float32 on {len(os.sched_getaffinity(0))} cores; all matrices and the head are "
        "quantised, the embedding and the norms are not. The weights are random, so the logits say how rounding "
        "spreads through the layers, not what it does to a trained model's answers.",
    ]
    return Result(rows, bars, notes)
