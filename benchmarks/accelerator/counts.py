"""Operations and bytes that a measurement is counted with, and the peaks of devices that they are compared with.

One convention for all parts: a multiply-add is two operations; `N` is `LlamaConfig.matmul_params`, every matrix and the
head, without the table of embeddings. Recomputation (`remat`, chunks of the head) and padding of the cache are not
counted, since they are costs of our programs and not of the task.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmrl_jax import lm


@dataclass(frozen=True)
class Peak:
    """Peak rates of a device, by its data sheet."""

    flops: float
    """Operations per second of matrix products in bfloat16, dense."""
    bandwidth: float
    """Bytes per second between the device's memory and its processors."""


# NVIDIA's data sheets of the H100 (SXM) and the H200. They give 1,979e12 operations with 2:4 sparsity, half of that
# without, and 3.35 and 4.8 TB/s.
PEAKS = {
    "NVIDIA H100 80GB HBM3": Peak(989e12, 3.35e12),
    "NVIDIA H200": Peak(989e12, 4.8e12),
}
"""Peaks by jax's `device_kind`. Other devices have none: their results hold no MFU and no share of the bandwidth."""

TRAINING = "4 N operations per token (LoRA: forward 2 N, backward 2 N, no gradients of the frozen base)"
TRAINING_WITH_ATTENTION = "4 N + 4 L S H h per token: the same with the causal half of scores and values"
DECODING = "(T - 1) N b + 2 L K h b B sum(S + i for i in 1..T-1): weights and the filled cache, once per step"
SCORING = "2 x lm.costs(config, S, candidates) per prompt: matrices, scores and values, the head where it is read"


def training_flop(config: lm.LlamaConfig, tokens: int) -> float:
    """Operations of a LoRA step over `tokens` tokens, without attention: `TRAINING`."""
    return 4.0 * config.matmul_params * tokens


def training_flop_with_attention(config: lm.LlamaConfig, tokens: int, length: int) -> float:
    """Operations of a LoRA step over `tokens` tokens in rows of `length`: `TRAINING_WITH_ATTENTION`."""
    return 2.0 * config.flops_per_token(length) * tokens


def weight_bytes(config: lm.LlamaConfig, itemsize: int) -> int:
    """Bytes of the weights that a decoding step reads: all matrices and the head. **Arguments:** `itemsize`, bytes per
    weight."""
    return config.matmul_params * itemsize


def cache_bytes(config: lm.LlamaConfig, itemsize: int) -> int:
    """Bytes of one token's keys and values in all layers. **Arguments:** `itemsize`, bytes per number."""
    return 2 * config.num_hidden_layers * config.kv_heads * config.size * itemsize


def decoding_bytes(config: lm.LlamaConfig, batch: int, prompt: int, new: int, itemsize: int) -> float:
    """Bytes read while `batch` rows grow from `prompt + 1` to `prompt + new` tokens: `DECODING`.

    The first new token comes from the pass over the prompt; step `i` of the other `new - 1` reads the keys and values
    of `prompt + i` tokens per row.
    """
    steps = new - 1
    tokens = steps * prompt + steps * new // 2
    return float(steps * weight_bytes(config, itemsize) + batch * tokens * cache_bytes(config, itemsize))


def scoring_flop(config: lm.LlamaConfig, prompt: int, candidates: lm.Candidates) -> float:
    """Operations of scoring `candidates` after one prompt of `prompt` tokens, in the form that `lm.score` chooses:
    `SCORING`."""
    form = lm.choose_form(config, prompt, candidates)
    return 2.0 * lm.costs(config, prompt, candidates)[form]
