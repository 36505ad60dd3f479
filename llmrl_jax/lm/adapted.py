"""Products of one input with several matrices that have adapters: `y_i = x (W_i + s A_i B_i)`.

For many tokens `s A B` is added to `W` before the product, which is then one product as without adapters. Its gradient
never forms that of `W`: the thin products with `A` and `B` remain, and those with the same input are one. This holds in
float32. In a narrower dtype the sum would lose what is small beside `W`, and for few tokens it would cost more than it
saves: there the adapters' products are added to the outputs (`y = x W + s (x A) B`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs_jax.tracing import cotangents
from llmrl_jax.lm.quantize import Quantized


Matrix = Float[Array, "i o"]


def sums_first(x: Float[Array, "*b i"], kernels: Sequence[Any], fan_in: int = 1) -> bool:
    """Whether `W + s A B` costs less than the products of `x` with `A` and with `B`, and loses nothing.

    Per rank it takes `i o` multiplications and additions, and they take `i + o` per token.

    **Arguments:** `kernels`, `[in..., out...]` with `fan_in` axes of inputs; False for quantised ones, which are never
    written out, and where there is none.
    """
    tokens, i = math.prod(x.shape[:-1]), x.shape[-1]
    outs = [math.prod(w.shape[fan_in:]) for w in kernels]
    full = not any(isinstance(w, Quantized) for w in kernels)
    return bool(outs) and full and x.dtype == jnp.float32 and all(tokens * (i + o) >= i * o for o in outs)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def summed(
    scale: float,
    x: Float[Array, "*b i"],
    kernels: tuple[Matrix, ...],
    a: tuple[Float[Array, "i r"], ...],
    b: tuple[Float[Array, "r o"], ...],
) -> tuple[Float[Array, "*b o"], ...]:
    """`x (W + s A B)` for every matrix."""
    return tuple(x @ one for one in _sums(scale, kernels, a, b))


def _sums(scale: float, kernels: Any, a: Any, b: Any) -> list[jax.Array]:
    return [w + scale * (p @ q) for w, p, q in zip(kernels, a, b, strict=True)]


def _forward(scale: float, x: Any, kernels: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return summed(scale, x, kernels, a, b), (x, kernels, a, b)


def _backward(scale: float, kept: Any, dy: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    """Gradients. That of `W` is not computed where nothing asks for it: XLA deletes it."""
    x, kernels, a, b = kept
    # the sums are made again: kept, they would take as much memory as the weights of all layers
    dx = sum(d @ w.T for d, w in zip(dy, _sums(scale, kernels, a, b), strict=True))
    ends = [sum(p.shape[1] for p in a[: i + 1]) for i in range(len(a) - 1)]
    low = jnp.split(_outer(x, jnp.concatenate([scale * (d @ q.T) for d, q in zip(dy, b, strict=True)], -1)), ends, 1)
    down = jnp.split(x @ jnp.concatenate(a, 1), ends, -1)
    up = tuple(scale * _outer(u, d) for u, d in zip(down, dy, strict=True))
    return cotangents((dx, tuple(_outer(x, d) for d in dy), tuple(low), up), kept)


def _outer(x: Float[Array, "*b i"], y: Float[Array, "*b o"]) -> Float[Array, "i o"]:
    """`x^T y`, summed over all other axes.

    XLA's product for CPUs is two to four times faster with the narrow side as the rows of the result. The barrier keeps
    its simplifier from turning the product over again.
    """
    if y.shape[-1] < x.shape[-1]:
        return jax.lax.optimization_barrier(_outer(y, x)).T
    axes = tuple(range(x.ndim - 1))
    return jnp.tensordot(x, y, axes=(axes, axes))


summed.defvjp(_forward, _backward)


def added(
    scale: float, x: Float[Array, "*b i"], a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]
) -> list[Float[Array, "*b o"]]:
    """`s (x A) B` for every matrix; the products with `A` are one."""
    ends = [sum(p.shape[1] for p in a[: i + 1]) for i in range(len(a) - 1)]
    down = jnp.split(x @ jnp.concatenate(a, 1), ends, -1)
    return [scale * (u @ q) for u, q in zip(down, b, strict=True)]
