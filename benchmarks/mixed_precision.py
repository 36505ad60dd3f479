"""The language model with the factors of its products rounded to bfloat16, beside float32 and beside torch."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import torch_peer
from benchmarks.accelerator.shapes import SHAPES
from benchmarks.harness import OURS, Result, Row, aim, compiled, fastest, rates, seconds, speedup, updating
from benchmarks.language_model import packed
from llmrl_jax import lm
from llmrl_jax.lm.config import dtype_options
from llmrl_jax.tuning import SFTConfig, make_sft


TITLE = "The language model in mixed precision: 135 million weights, beside float32 and torch"
BATCH, LENGTH = 16, 80
LORA = lm.LoRAConfig(rank=8, alpha=16.0)
HOW = SFTConfig(batch_size=BATCH, learning_rate=1e-4, schedule="constant", warmup=0.0)


def matrix_units() -> str:
    """Instructions of the processor for bfloat16, from the kernel's list."""
    file = Path("/proc/cpuinfo")
    flags = set(file.read_text().split()) if platform.system() == "Linux" and file.exists() else set()
    return ", ".join(sorted(flags & {"amx_bf16", "avx512_bf16"})) or "none for bfloat16"


def run(quick: bool = False) -> Result:
    """Tokens per second of forward passes and of steps of LoRA."""
    threads = len(os.sched_getaffinity(0))
    config = lm.LlamaConfig.preset("tiny", 512) if quick else SHAPES["135M"]
    tokens = np.random.default_rng(0).integers(3, config.vocab_size, (BATCH, LENGTH)).astype(np.int32)
    count, rows, bars = BATCH * LENGTH, [], []
    variables = jax.jit(lm.Llama(config).init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    logits, loss = np.zeros(0), 0.0

    def near(wide: float) -> Callable[[np.ndarray], None]:
        return lambda got: np.testing.assert_allclose(got, logits, atol=wide)

    def same(wide: float) -> Callable[[float], None]:
        return lambda got: np.testing.assert_allclose(got, loss, wide)

    # random weights give logits of about 0.6 and a loss of ln V: what bfloat16 may change of them
    for name, wide in (("float32", 2e-3), ("mixed", 0.1)):
        made: dict[str, list[Row]] = {}
        model = lm.Llama(config, **dtype_options(name))
        forward, took = compiled(lambda v, t, m=model: m.apply(v, t).logits, variables, jnp.asarray(tokens))
        got = np.asarray(forward(variables, tokens))
        logits = got if name == "float32" else logits
        near(wide)(got)
        times = seconds(lambda forward=forward: forward(variables, tokens))
        made["forward pass"] = [Row(f"forward pass, {name}", OURS, "tokens/s", rates(count, times), took)]
        learner = make_sft(HOW, model.clone(lora=LORA), variables, packed(tokens), 1000)
        update, took = updating(learner, learner.init(jax.random.key(1)))
        first = float(update()["loss"][0])
        loss = first if name == "float32" else loss
        same(1e-3)(first)
        times = seconds(update)
        made["a step of LoRA"] = [Row(f"a step of LoRA, {name}", OURS, "tokens/s", rates(count, times), took)]
        with tempfile.TemporaryDirectory() as folder:
            saved = str(lm.save_hf(f"{folder}/model", config, variables["params"]))
            kinds = ("float32",) if name == "float32" else ("autocast", "bfloat16")
            peers: dict[str, list[Row]] = {case: [] for case in made}
            for kind in kinds:
                theirs = torch_peer.Torch(saved, threads, kind)
                cases = {
                    "forward pass": ("torch", theirs.forward, near(wide)),
                    "a step of LoRA": ("peft on torch", lambda t, x=theirs: x.fine_tuning(t, LORA), same(2e-3)),
                }
                for case, (who, ways, check) in cases.items():
                    found = torch_peer.rows(f"{case}, {name}", who, "tokens/s", count, ways(tokens), check)
                    peers[case] += [replace(row, note=f"{kind}, {row.note}") for row in found]
            for case, found in peers.items():
                ratio = speedup(made[case], found)
                best = fastest(found)
                bars.append(f"{case}, {name}: {ratio:.2f} times {best.who} ({best.note}) {aim(ratio, 1)}")
                made[case] += found
        rows += [row for part in made.values() for row in part]
    ours = {row.case: row.median for row in rows if row.who == OURS}
    bars += [f"{case}: mixed {ours[f'{case}, mixed'] / ours[f'{case}, float32']:.2f} times float32" for case in made]
    note = (
        f"{threads} threads, random weights, {BATCH} x {LENGTH} tokens, adapters of rank {LORA.rank} on "
        f"{', '.join(LORA.targets)}. Matrix units of the processor: {matrix_units()}. Mixed is float32 but for the "
        "factors of products with weights; torch's counterparts are `torch.autocast` to bfloat16 over float32 weights, "
        "and weights of bfloat16; both also compute attention and activations in bfloat16, the second the norms and "
        "the sums of layers, too. First logits agree within 2e-3 in float32 and 0.1 in the others, losses within 0.2%."
    )
    return Result(rows, bars, [note])
