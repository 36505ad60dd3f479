"""The operations of a layer as functions of its parameters: norm, projection, attention in parts, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from envs_jax.tracing import cotangents
from llmrl_jax.lm import narrow
from llmrl_jax.lm.adapted import added, summed, sums_first
from llmrl_jax.lm.quantize import Quantized, matmul


AnyArray = Array | np.ndarray


class Source(NamedTuple):
    """Keys and values that queries attend to. Without a batch axis they are shared by all rows, without repetition."""

    key: Float[Array, "*b t k h"]
    value: Float[Array, "*b t k h"]
    mask: Bool[Array, "*b q t"] | None
    """The keys that each query sees; None means all."""
    axes: str | None = None
    """The order of the axes: b rows, r rows of single queries (each with its own keys), t tokens, k heads, h. None: as
    above."""
    key_axes: str | None = None
    """That of the keys. None: the same."""

    @property
    def order(self) -> str:
        """`axes`, never None."""
        return self.axes or ("btkh" if self.key.ndim == 4 else "tkh")

    @property
    def key_order(self) -> str:
        """`key_axes`, never None."""
        return self.key_axes or self.order


KEPT = "products"
"""The name of what the gradient of a layer keeps from the forward pass; see `kept`."""


def kept(x: jax.Array) -> jax.Array:
    """Mark a product that took many multiplications. Norms, rotations and activations are computed once more in the
    backward pass (selective recomputation, Korthikanti et al. 2022): cheaper than to write and to read them."""
    return checkpoint_name(x, KEPT)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm with float32 statistics, cast before the product with the weight as in Hugging Face."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype) * scale.astype(x.dtype)


def project(
    x: jax.Array,
    name: str,
    params: Mapping,
    lora: Mapping | None,
    scale: float,
    fan_in: int = 1,
    factors: Any = None,
) -> jax.Array:
    """`projections` of one matrix."""
    return projections(x, (name,), params, lora, scale, fan_in, factors)[0]


def projections(
    x: jax.Array,
    names: Sequence[str],
    params: Mapping,
    lora: Mapping | None,
    scale: float,
    fan_in: int = 1,
    factors: Any = None,
) -> list[jax.Array]:
    """`x W`, over the last `fan_in` axes of `x`, `+ bias` and `+ s (x A) B` if the matrix has them, for each name.

    A quantised `W` is dequantised for the product only; it is a constant, and gradients go to `A` and `B`. Adapters
    of full matrices may be added to them before the product: see `llmrl_jax.lm.adapted`.

    **Arguments:** `factors`, the dtype to which the factors of the products are rounded (None: that of `x`).
    """
    kernels = {name: params[name]["kernel"] for name in names}
    flat = x.reshape(*x.shape[:-fan_in], -1)
    adapters = {name: lora[name] for name in names if name in lora} if lora else {}
    if factors is not None and factors != x.dtype:
        return _narrowed(x, flat, kernels, params, adapters, scale, fan_in, factors)
    a = tuple(jnp.asarray(ab["a"], x.dtype).reshape(flat.shape[-1], -1) for ab in adapters.values())
    b = tuple(jnp.asarray(ab["b"], x.dtype).reshape(ab["b"].shape[0], -1) for ab in adapters.values())
    outs: dict[str, jax.Array] = {}
    if sums_first(flat, [kernels[name] for name in adapters], fan_in):
        full = tuple(jnp.asarray(kernels[name], x.dtype).reshape(flat.shape[-1], -1) for name in adapters)
        outs = dict(zip(adapters, summed(scale, flat, full, a, b), strict=True))
    more = {} if outs or not adapters else dict(zip(adapters, added(scale, flat, a, b), strict=True))
    for name in names:
        shape = (*flat.shape[:-1], *kernels[name].shape[fan_in:])
        y = outs[name].reshape(shape) if name in outs else _product(x, kernels[name], fan_in)
        y = y + more[name].reshape(shape) if name in more else y
        outs[name] = kept(y + params[name]["bias"].astype(x.dtype) if "bias" in params[name] else y)
    return [outs[name] for name in names]


def _narrowed(
    x: jax.Array,
    flat: jax.Array,
    kernels: Mapping,
    params: Mapping,
    adapters: Mapping,
    scale: float,
    fan_in: int,
    factors: Any,
) -> list[jax.Array]:
    """`projections` whose factors are rounded to `factors`: see `llmrl_jax.lm.narrow`."""
    order = sorted(kernels, key=lambda name: name not in adapters)  # those with adapters first
    a = tuple(jnp.asarray(adapters[n]["a"]).reshape(flat.shape[-1], -1) for n in order if n in adapters)
    b = tuple(jnp.asarray(adapters[n]["b"]).reshape(adapters[n]["b"].shape[0], -1) for n in order if n in adapters)
    if any(isinstance(kernel, Quantized) for kernel in kernels.values()):
        outs = {n: matmul(x.astype(factors), kernel, x.dtype) for n, kernel in kernels.items()}
        more: list[jax.Array] = []
        if a:
            ends = [sum(p.shape[1] for p in a[: i + 1]) for i in range(len(a) - 1)]
            down = jnp.split(narrow.with_columns(factors, flat, jnp.concatenate(a, 1)), ends, -1)
            more = [scale * narrow.with_columns(factors, u, q) for u, q in zip(down, b, strict=True)]
        outs |= {n: outs[n].reshape(y.shape) + y for n, y in zip(order, more, strict=False)}
    else:
        full = tuple(jnp.asarray(kernels[n]).reshape(flat.shape[-1], -1) for n in order)
        outs = dict(zip(order, narrow.adapted(factors, scale, flat, full, a, b), strict=True))
    shaped = {n: outs[n].reshape(*flat.shape[:-1], *kernels[n].shape[fan_in:]) for n in kernels}
    return [kept(y + params[n]["bias"].astype(y.dtype) if "bias" in params[n] else y) for n, y in shaped.items()]


def _product(x: jax.Array, kernel: Any, fan_in: int) -> jax.Array:
    if isinstance(kernel, Quantized):
        return matmul(x, kernel, x.dtype)
    axes = tuple(range(-fan_in, 0)), tuple(range(fan_in))
    return jnp.tensordot(x, kernel.astype(x.dtype), axes=axes)


def within(window: int, queries: Int[AnyArray, "b q"], keys: Int[AnyArray, "c t"]) -> Bool[Array, "d q t"]:
    """Whether a key is among the last `window` positions up to and including the query's; `d` is `b` or `c`."""
    return jnp.asarray(keys)[:, None, :] > jnp.asarray(queries)[:, :, None] - window


def windowed(mask: jax.Array | None, near: jax.Array | None, slides: Any) -> jax.Array | None:
    """A mask restricted to the keys `near`, in layers with `slides` (None: in all layers)."""
    if near is None:
        return mask
    near = near if slides is None else near | ~jnp.asarray(slides)
    return near if mask is None else mask & near


def attend(query: Float[Array, "b q n h"], sources: list[Source]) -> Float[Array, "b q n h"]:
    """Softmax attention over the union of several sources, in float32.

    Heads are grouped: query head `n` reads key head `n // (N / K)` through one product, so keys and values are not
    repeated over a group's heads or, for a source without a batch axis, over rows.
    """
    b, q, n, h = query.shape
    kv = sources[0].value.shape[sources[0].order.index("k")]
    grouped = (query * h**-0.5).reshape(b, q, kv, n // kv, h)
    if len(sources) == 1 and sources[0].order == sources[0].key_order == "btkh":
        key, value, mask = sources[0].key, sources[0].value, sources[0].mask
        mask = jnp.ones((1, 1, key.shape[1]), bool) if mask is None else mask
        rows = jnp.moveaxis(grouped, 2, 1).reshape(b, kv, q * (n // kv), h)
        found: Any = _attended(
            rows, jnp.moveaxis(key, 2, 1), jnp.moveaxis(value, 2, 1), mask if mask.ndim == 3 else mask[None]
        )
        out: Any = found.reshape(b, kv, q, n // kv, h)
        return jnp.moveaxis(out, 1, 2).reshape(b, q, n, h).astype(query.dtype)
    scores = []
    for source in sources:
        # the order of axes in which the product leaves them: another would move all scores once more
        if "r" in source.order:
            s = _product_of(f"rkgh,{source.key_order}->rkgt", grouped.reshape(b * q, *grouped.shape[2:]), source.key)
            s = jnp.moveaxis(s.reshape(b, q, *s.shape[1:]), 1, 2)
        else:
            s = _product_of(f"bqkgh,{source.key_order}->bkqgt", grouped, source.key)
        if source.mask is not None:
            mask = source.mask[None] if source.mask.ndim == 2 else source.mask
            s = jnp.where(mask[:, None, :, None], s, jnp.finfo(jnp.float32).min)
        scores.append(s)
    top = jax.lax.stop_gradient(jnp.max(jnp.stack([s.max(-1) for s in scores]), axis=0))[..., None]
    weights = [kept(jnp.exp(s - top)) for s in scores]
    total: Any = sum(w.sum(-1) for w in weights)
    out = 0.0
    for weight, source in zip(weights, sources, strict=True):
        weight = weight.astype(query.dtype)
        if "r" in source.order:
            weight = jnp.moveaxis(weight, 2, 1).reshape(b * q, kv, n // kv, -1)
            part = _product_of(f"rkgt,{source.order}->rkgh", weight, source.value)
            out = out + jnp.moveaxis(part.reshape(b, q, *part.shape[1:]), 1, 2)
        else:
            out = out + _product_of(f"bkqgt,{source.order}->bkqgh", weight, source.value)
    out = kept(out) / total[..., None]
    return jnp.moveaxis(out, 1, 2).reshape(b, q, n, h).astype(query.dtype)


@jax.custom_vjp
def _attended(
    query: Float[Array, "b k r h"],
    key: Float[Array, "b k t h"],
    value: Float[Array, "b k t h"],
    mask: Bool[Array, "m p t"],
) -> Float[Array, "b k r h"]:
    """Attention over one source, whose rows `r` are the queries and, within each, the heads of a group.

    Its gradient is written out: two passes over the scores, where that of the operations has about ten. Axes are such
    that a product has one that it sums over: XLA would move the scores of several on a CPU.
    """
    return _attended_forward(query, key, value, mask)[0]


def _attended_forward(query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    s = _product_of("bkrh,bkth->bkrt", query, key)
    s = _where(mask, s, jnp.finfo(jnp.float32).min)
    weight = kept(jnp.exp(s - jnp.max(s, axis=-1, keepdims=True)))
    total = jnp.sum(weight, axis=-1, keepdims=True)
    out = kept(_product_of("bkrt,bkth->bkrh", weight.astype(query.dtype), value)) / total
    return out, (query, key, value, mask, weight, total, out)


def _attended_backward(saved: Any, change: jax.Array) -> tuple[Any, ...]:
    query, key, value, mask, weight, total, out = saved
    narrow = (change / total).astype(value.dtype)
    own = jnp.sum(narrow * out, axis=-1, keepdims=True)
    d_score = weight * (_product_of("bkrh,bkth->bkrt", narrow, value) - own)
    d_score = _where(mask, d_score, 0.0).astype(query.dtype)  # a row that sees no key has weights, and no gradient
    d_query = _product_of("bkrt,bkth->bkrh", d_score, key).astype(query.dtype)
    d_key = _product_of("bkrt,bkrh->bkth", d_score, query).astype(key.dtype)
    d_value = _product_of("bkrt,bkrh->bkth", weight.astype(value.dtype), narrow).astype(value.dtype)
    return *cotangents((d_query, d_key, d_value), saved[:3]), None


def _where(mask: Any, scores: Any, other: Any) -> Any:
    """The scores where the mask, which is one for all queries or has one for each, is true."""
    rows = scores.shape[2]
    apart = scores.reshape(*scores.shape[:2], mask.shape[1], rows // max(mask.shape[1], 1), scores.shape[3])
    return jnp.where(mask[:, None, :, None], apart, other).reshape(scores.shape)


def _product_of(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)


_attended.defvjp(_attended_forward, _attended_backward)


def gated_mlp(x: jax.Array, params: Mapping, lora: Mapping | None, scale: float, factors: Any = None) -> jax.Array:
    """`W_down (silu(W_gate x) * W_up x)`."""
    gate, up = projections(x, ("gate_proj", "up_proj"), params, lora, scale, factors=factors)
    return project(jax.nn.silu(gate) * up, "down_proj", params, lora, scale, factors=factors)


def layer_slice(tree: Any, index: int) -> Any:
    """One layer of a stacked collection; None stays None."""
    return jax.tree.map(lambda x: x[index], tree)
