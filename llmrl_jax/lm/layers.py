"""The operations of a layer as functions of its parameters: norm, projection, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array

from llmrl_jax.lm import narrow
from llmrl_jax.lm.adapted import added, summed, sums_first
from llmrl_jax.lm.quantize import Quantized, matmul


AnyArray = Array | np.ndarray


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


def gated_mlp(x: jax.Array, params: Mapping, lora: Mapping | None, scale: float, factors: Any = None) -> jax.Array:
    """`W_down (silu(W_gate x) * W_up x)`; gate and up may be `joined`."""
    if (both := join(WIDE)) in params:
        gate, up = jnp.split(project(x, both, params, lora, scale, factors=factors), 2, -1)
    else:
        gate, up = projections(x, WIDE, params, lora, scale, factors=factors)
    return project(jax.nn.silu(gate) * up, "down_proj", params, lora, scale, factors=factors)


WIDE = ("gate_proj", "up_proj")
"""The matrices of a gated MLP that read its input."""


def join(names: Sequence[str]) -> str:
    """The name of several matrices that are one."""
    return "+".join(names)


def joined(names: Sequence[str], params: Mapping, lora: Mapping | None) -> tuple[Mapping, Mapping | None]:
    """Matrices of one input, side by side as one of the name `join(names)`, with their adapters: for decoding, where
    every product is a program's launch and a read of `x`. The outputs are those of `projections`, in a row.

    **Arguments:** `params`, `lora`: a block of one layer; kernels are `[i, ...]`, not quantised.
    **Returns:** the block without the parts.
    """
    rest = {name: value for name, value in params.items() if name not in names}
    kernels = [params[name]["kernel"].reshape(len(params[name]["kernel"]), -1) for name in names]
    one = {"kernel": jnp.concatenate(kernels, 1)}
    if any("bias" in params[name] for name in names):
        sizes = [kernel.shape[1] for kernel in kernels]
        biases = (params[name].get("bias", jnp.zeros(size)) for name, size in zip(names, sizes, strict=True))
        one["bias"] = jnp.concatenate([bias.reshape(-1) for bias in biases])
    adapted = [name for name in names if lora and name in lora]
    if lora is None or not adapted:
        return {**rest, join(names): one}, lora
    others = {name: value for name, value in lora.items() if name not in names}
    rank, a = 0, [lora[name]["a"] for name in adapted]
    b = jnp.zeros((sum(x.shape[1] for x in a), one["kernel"].shape[1]), a[0].dtype)
    column = 0
    for name, kernel in zip(names, kernels, strict=True):
        if name in adapted:
            part = lora[name]["b"].reshape(len(lora[name]["b"]), -1)
            b = b.at[rank : rank + len(part), column : column + kernel.shape[1]].set(part)
            rank += len(part)
        column += kernel.shape[1]
    return {**rest, join(names): one}, {**others, join(names): {"a": jnp.concatenate(a, 1), "b": b}}


def as_it_is(x: jax.Array) -> jax.Array:
    """`x` in memory in the order of its axes, the last one fastest, wherever the compiler would choose another."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def layer_slice(tree: Any, index: int) -> Any:
    """One layer of a stacked collection; None stays None."""
    return jax.tree.map(lambda x: x[index], tree)
