"""What a layer computes, as functions of its parameters: norm, projection, attention in parts, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Source(NamedTuple):
    """Keys and values that queries attend to. Without a batch axis they are shared by every row, never repeated."""

    key: Float[Array, "*b t k h"]
    value: Float[Array, "*b t k h"]
    mask: Bool[Array, "*b q t"] | None
    """Which of them each query sees; None means all."""


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm, its statistics in float32, cast before the weight as Hugging Face does."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * scale.astype(x.dtype)


def project(x: jax.Array, name: str, params: Mapping, lora: Mapping | None, scale: float, fan_in: int = 1) -> jax.Array:
    """`x W`, over the last `fan_in` axes of `x`, and `+ s (x A) B` where the matrix has an adapter."""
    axes = tuple(range(-fan_in, 0))
    y = jnp.tensordot(x, params[name]["kernel"].astype(x.dtype), axes=(axes, tuple(range(fan_in))))
    if lora and name in lora:
        a, b = lora[name]["a"].astype(x.dtype), lora[name]["b"].astype(x.dtype)
        y = y + scale * jnp.tensordot(jnp.tensordot(x, a, axes=(axes, tuple(range(fan_in)))), b, axes=1)
    return y


def attend(query: Float[Array, "b q n h"], sources: list[Source]) -> Float[Array, "b q n h"]:
    """Softmax attention over the union of several sources, in float32.

    Heads are grouped: query head `n` reads key head `n // (N / K)` through one einsum, so keys and values are never
    repeated, neither over a group's heads nor, for a source without a batch axis, over rows.
    """
    b, q, n, h = query.shape
    kv = sources[0].key.shape[-2]
    grouped = (query * h**-0.5).reshape(b, q, kv, n // kv, h)
    scores = []
    for source in sources:
        keys = "btkh" if source.key.ndim == 4 else "tkh"
        s = jnp.einsum(f"bqkgh,{keys}->bkgqt", grouped, source.key, preferred_element_type=jnp.float32)
        if source.mask is not None:
            mask = source.mask if source.mask.ndim == 2 else source.mask[:, None, None]
            s = jnp.where(mask, s, jnp.finfo(jnp.float32).min)
        scores.append(s)
    top = jax.lax.stop_gradient(jnp.max(jnp.stack([s.max(-1) for s in scores]), axis=0))[..., None]
    weights = [jnp.exp(s - top) for s in scores]
    total = sum(w.sum(-1) for w in weights)
    out: Any = 0.0
    for weight, source in zip(weights, sources, strict=True):
        values = "btkh" if source.value.ndim == 4 else "tkh"
        out = out + jnp.einsum(
            f"bkgqt,{values}->bqkgh", weight.astype(query.dtype), source.value, preferred_element_type=jnp.float32
        )
    out = out / jnp.moveaxis(total, -1, 1)[..., None]
    return out.reshape(b, q, n, h).astype(query.dtype)


def gated_mlp(x: jax.Array, params: Mapping, lora: Mapping | None, scale: float) -> jax.Array:
    """`W_down (silu(W_gate x) * W_up x)`."""
    gate, up = (project(x, name, params, lora, scale) for name in ("gate_proj", "up_proj"))
    return project(jax.nn.silu(gate) * up, "down_proj", params, lora, scale)


def layer_slice(tree: Any, index: int) -> Any:
    """One layer of a stacked collection; None stays None."""
    return jax.tree.map(lambda x: x[index], tree)
