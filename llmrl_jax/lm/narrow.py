"""Products of wide activations with weights whose factors are rounded to a narrower dtype, and summed in float32.

TPUs multiply float32 so by default, and GPUs and CPUs with matrix units for bfloat16 (AMX) can: such a product takes a
fifth of the time on one core, while everything between products stays in float32, which a CPU computes in any case.
Adapters are rows of the same product, `[x, x A] [W; s B]`, not a second one: nothing is added to the rounded `W`, which
would lose what is small beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.tracing import cotangents


AnyArray = Array | np.ndarray
Matrices = tuple[Float[AnyArray, "_ _"], ...]
Computed = Literal["float32", "bfloat16", "mixed"]
"""How a model computes: all in one dtype; or `mixed`, in float32 but for the factors of products with weights."""


def computed(name: str) -> dict[str, Any]:
    """The arguments `dtype` and `factors` of `llmrl_jax.lm.Llama` for a value of `Computed`."""
    mixed = name == "mixed"
    return {"dtype": jnp.dtype("float32" if mixed else name), "factors": jnp.dtype(jnp.bfloat16) if mixed else None}


def dot(x: Float[Array, "*b i"], w: Float[AnyArray, "i o"], factors: Any) -> Float[Array, "*b o"]:
    """`x W`, both rounded to `factors`, in float32."""
    return jax.lax.dot_general(
        x.astype(factors), w.astype(factors), (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def _dot_transposed(x: Float[Array, "*b o"], w: Float[AnyArray, "i o"], factors: Any) -> Float[Array, "*b i"]:
    return jax.lax.dot_general(
        x.astype(factors), w.astype(factors), (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def _outer(x: Float[Array, "*b i"], y: Float[Array, "*b o"], factors: Any) -> Float[Array, "i o"]:
    """`x^T y`, summed over all other axes; the narrow side is the one that is turned over (XLA for CPUs has its fast
    product only for rows times columns), and the barrier keeps the simplifier from turning it back."""
    if y.shape[-1] < x.shape[-1]:
        return jax.lax.optimization_barrier(_outer(y, x, factors)).T
    turned = jax.lax.optimization_barrier(x.astype(factors).reshape(-1, x.shape[-1]).T)
    return dot(turned, y.reshape(-1, y.shape[-1]), factors)


def with_columns(factors: Any, x: Float[Array, "*b i"], w: Float[AnyArray, "i o"]) -> Float[Array, "*b o"]:
    """`x W`."""
    return adapted(factors, 1.0, x, (w,), (), ())[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_rows(factors: Any, x: Float[Array, "*b i"], w: Float[AnyArray, "o i"]) -> Float[Array, "*b o"]:
    """`x W^T`, as of hidden states and a table of embeddings. (Turned over for `with_columns`, it runs at a sixth of
    the speed on a CPU.)"""
    return _dot_transposed(x, w, factors).astype(x.dtype)


def _rows_forward(factors: Any, x: Any, w: Any) -> tuple[jax.Array, Any]:
    return with_rows(factors, x, w), (x, w)


def _rows_backward(factors: Any, kept: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = kept
    return cotangents((dot(dy, w, factors).astype(x.dtype), _outer(dy, x, factors).astype(w.dtype)), kept)


with_rows.defvjp(_rows_forward, _rows_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def adapted(factors: Any, scale: float, x: Float[Array, "*b i"], kernels: Matrices, a: Matrices, b: Matrices) -> Any:
    """`x W + s (x A) B` for every matrix, in the dtype of `x`.

    **Arguments:** `factors`, the dtype of the factors of all products, of the gradient's, too; `a` and `b`, of as many
    matrices, counted from the first: the rest have no adapters.
    """
    return _forward(factors, scale, x, kernels, a, b)[0]


def _joined(factors: Any, scale: float, kernels: Matrices, a: Matrices, b: Matrices) -> list[jax.Array]:
    """Every kernel over `s B`, with rows of zeros for the adapters of the others: `[i + R, o]`."""
    rows: list[jax.Array] = []
    for i, w in enumerate(kernels):
        up = [scale * q if i == j else jnp.zeros((q.shape[0], w.shape[1]), q.dtype) for j, q in enumerate(b)]
        rows.append(jnp.concatenate([w.astype(factors), *(u.astype(factors) for u in up)], 0))
    return rows


def _forward(factors: Any, scale: float, x: Any, kernels: Matrices, a: Matrices, b: Matrices) -> tuple[Any, Any]:
    wide = x.astype(factors)
    down = dot(x, jnp.concatenate(a, 1), factors) if a else None
    if down is not None:
        wide = jnp.concatenate([wide, down.astype(factors)], -1)
    outs = tuple(dot(wide, w, factors).astype(x.dtype) for w in _joined(factors, scale, kernels, a, b))
    return outs, (x, kernels, a, b)


def _backward(factors: Any, scale: float, kept: Any, dy: Sequence[jax.Array]) -> tuple[Any, ...]:
    """Gradients. Those of `W` are not computed where nothing asks for them: XLA deletes them."""
    x, kernels, a, b = kept
    own = x.shape[-1]
    joined = _joined(factors, scale, kernels, a, b)
    back: Any = sum(_dot_transposed(d, w, factors) for d, w in zip(dy, joined, strict=True))
    dx = back
    low: Matrices = ()
    up: Matrices = ()
    if a:
        dx, d_down = back[..., :own], back[..., own:]
        every = jnp.concatenate(a, 1)
        dx = dx + _dot_transposed(d_down, every, factors)
        ends = [sum(p.shape[1] for p in a[: i + 1]) for i in range(len(a) - 1)]
        low = tuple(jnp.split(_outer(x, d_down, factors), ends, 1))
        down = jnp.split(dot(x, every, factors), ends, -1)
        up = tuple(scale * _outer(u, d, factors) for u, d in zip(down, dy, strict=False))
    typed = lambda new, old: tuple(n.astype(o.dtype) for n, o in zip(new, old, strict=True))  # noqa: E731
    full = typed([_outer(x, d, factors) for d in dy], kernels)
    return cotangents((dx.astype(x.dtype), full, typed(low, a), typed(up, b)), kept)


adapted.defvjp(_forward, _backward)
