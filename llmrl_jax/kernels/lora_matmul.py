"""Products of one input with several matrices that have adapters (LoRA, Hu et al. 2021): `y_i = x (W_i + s A_i B_i)`.

`lora_reference` is the formula, and there are three forms of it:

* `merged_matmul`: for many tokens in float32, `s A B` is added to `W` before the product, which is then one product as
  without adapters. In a narrower dtype the sum would lose what is small beside `W`, and for few tokens it would cost
  more than it saves (`merges`).
* `adapter_products`: else `s (x A) B` is computed by itself, to be added to `x W`.
* `mixed_precision_matmul`: factors rounded to a narrower dtype, sums and everything between products in float32. TPUs
  multiply float32 so by default, and GPUs and CPUs with matrix units for bfloat16 (AMX) can: a fifth of the time on one
  core. Adapters are rows of the same product, `[x, x A] [W; s B]`: nothing is added to the rounded `W`.

No gradient forms that of `W`: the thin products with `A` and `B` remain, and those with the same input are one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.tracing import cotangents


AnyArray = Array | np.ndarray
Matrices = tuple[Float[AnyArray, "_ _"], ...]


def lora_reference(
    scale: float, x: Float[Array, "*b i"], kernels: Matrices, a: Matrices, b: Matrices
) -> list[Float[Array, "*b _"]]:
    """`x W + s (x A) B` for every matrix; those without adapters come last."""
    plain = [x @ w for w in kernels]
    return [y + scale * (x @ p @ q) for y, p, q in zip(plain, a, b, strict=False)] + plain[len(a) :]


def _ends(a: Sequence[Any]) -> list[int]:
    """The columns at which the adapters `A`, side by side, are split again."""
    return [sum(p.shape[1] for p in a[: i + 1]) for i in range(len(a) - 1)]


# --- float32, many tokens: adapters are added to their matrices -------------------------------------------------------


def merges(x: Float[Array, "*b i"], outputs: Sequence[int]) -> bool:
    """Return whether `W + s A B` costs less than the products of `x` with `A` and with `B`, and loses nothing.

    Per rank it takes `i o` multiplications and additions, and they take `i + o` per token.

    **Arguments:** `outputs`, the columns of each matrix with adapters; False if there is none.
    """
    tokens, i = math.prod(x.shape[:-1]), x.shape[-1]
    return bool(outputs) and x.dtype == jnp.float32 and all(tokens * (i + o) >= i * o for o in outputs)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def merged_matmul(
    scale: float, x: Float[Array, "*b i"], kernels: Matrices, a: Matrices, b: Matrices
) -> tuple[Float[Array, "*b _"], ...]:
    """`x (W + s A B)` for every matrix."""
    return tuple(x @ w for w in _merged(scale, kernels, a, b))


def _merged(scale: float, kernels: Any, a: Any, b: Any) -> list[jax.Array]:
    return [w + scale * (p @ q) for w, p, q in zip(kernels, a, b, strict=True)]


def _merged_forward(scale: float, x: Any, kernels: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return merged_matmul(scale, x, kernels, a, b), (x, kernels, a, b)


def _merged_backward(scale: float, saved: Any, dy: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    """Gradients. That of `W` is not computed where nothing asks for it: XLA deletes it."""
    x, kernels, a, b = saved
    # the sums are made again: kept, they would take as much memory as the weights of all layers
    dx = sum(d @ w.T for d, w in zip(dy, _merged(scale, kernels, a, b), strict=True))
    d_low_rank = jnp.concatenate([scale * (d @ q.T) for d, q in zip(dy, b, strict=True)], -1)
    d_a = jnp.split(_outer(x, d_low_rank), _ends(a), 1)
    low_rank = jnp.split(x @ jnp.concatenate(a, 1), _ends(a), -1)
    d_b = tuple(scale * _outer(u, d) for u, d in zip(low_rank, dy, strict=True))
    return cotangents((dx, tuple(_outer(x, d) for d in dy), tuple(d_a), d_b), saved)


def _outer(x: Float[Array, "*b i"], y: Float[Array, "*b o"]) -> Float[Array, "i o"]:
    """`x^T y`, summed over all other axes.

    XLA's product for CPUs is two to four times faster with the narrow side as the rows of the result. The barrier keeps
    its simplifier from turning the product over again.
    """
    if y.shape[-1] < x.shape[-1]:
        return jax.lax.optimization_barrier(_outer(y, x)).T
    axes = tuple(range(x.ndim - 1))
    return jnp.tensordot(x, y, axes=(axes, axes))


merged_matmul.defvjp(_merged_forward, _merged_backward)


# --- any dtype, few tokens: adapters have their own products ----------------------------------------------------------


def adapter_products(
    scale: float, x: Float[Array, "*b i"], a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]
) -> list[Float[Array, "*b _"]]:
    """`s (x A) B` for every matrix; the products with `A` are one."""
    low_rank = jnp.split(x @ jnp.concatenate(a, 1), _ends(a), -1)
    return [scale * (u @ q) for u, q in zip(low_rank, b, strict=True)]


# --- mixed precision --------------------------------------------------------------------------------------------------


def _dot(x: Float[Array, "*b i"], w: Float[AnyArray, "i o"], dtype: Any) -> Float[Array, "*b o"]:
    """`x W`, both rounded to `dtype`, in float32."""
    return jax.lax.dot_general(
        x.astype(dtype), w.astype(dtype), (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=jnp.float32
    )


def _dot_transposed(x: Float[Array, "*b o"], w: Float[AnyArray, "i o"], dtype: Any) -> Float[Array, "*b i"]:
    return jax.lax.dot_general(
        x.astype(dtype), w.astype(dtype), (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def _rounded_outer(x: Float[Array, "*b i"], y: Float[Array, "*b o"], dtype: Any) -> Float[Array, "i o"]:
    """`_outer` of rounded factors; the narrower operand is transposed, since XLA for CPUs has its fast product only for
    rows times columns."""
    if y.shape[-1] < x.shape[-1]:
        return jax.lax.optimization_barrier(_rounded_outer(y, x, dtype)).T
    transposed = jax.lax.optimization_barrier(x.astype(dtype).reshape(-1, x.shape[-1]).T)
    return _dot(transposed, y.reshape(-1, y.shape[-1]), dtype)


def rounded_matmul(dtype: Any, x: Float[Array, "*b i"], w: Float[AnyArray, "i o"]) -> Float[Array, "*b o"]:
    """`x W` of factors rounded to `dtype`."""
    return mixed_precision_matmul(dtype, 1.0, x, (w,), (), ())[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def rounded_matmul_transposed(dtype: Any, x: Float[Array, "*b i"], w: Float[AnyArray, "o i"]) -> Float[Array, "*b o"]:
    """`x W^T`, as of hidden states and a table of embeddings. (Transposed for `rounded_matmul`, it runs at a sixth of
    the speed on a CPU.)"""
    return _dot_transposed(x, w, dtype).astype(x.dtype)


def _transposed_forward(dtype: Any, x: Any, w: Any) -> tuple[jax.Array, Any]:
    return rounded_matmul_transposed(dtype, x, w), (x, w)


def _transposed_backward(dtype: Any, saved: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = saved
    return cotangents((_dot(dy, w, dtype).astype(x.dtype), _rounded_outer(dy, x, dtype).astype(w.dtype)), saved)


rounded_matmul_transposed.defvjp(_transposed_forward, _transposed_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def mixed_precision_matmul(
    dtype: Any, scale: float, x: Float[Array, "*b i"], kernels: Matrices, a: Matrices, b: Matrices
) -> Any:
    """`x W + s (x A) B` for every matrix, in the dtype of `x`.

    **Arguments:** `dtype`, of the factors of all products, of the gradient's, too; `a` and `b`, of as many matrices,
    counted from the first: the rest have no adapters.
    """
    return _mixed_forward(dtype, scale, x, kernels, a, b)[0]


def _stacked(dtype: Any, scale: float, kernels: Matrices, b: Matrices) -> list[jax.Array]:
    """Every kernel over `s B`, with rows of zeros for the adapters of the others: `[i + R, o]`."""
    rows: list[jax.Array] = []
    for i, w in enumerate(kernels):
        blocks = [scale * q if i == j else jnp.zeros((q.shape[0], w.shape[1]), q.dtype) for j, q in enumerate(b)]
        rows.append(jnp.concatenate([w.astype(dtype), *(u.astype(dtype) for u in blocks)], 0))
    return rows


def _mixed_forward(dtype: Any, scale: float, x: Any, kernels: Matrices, a: Matrices, b: Matrices) -> tuple[Any, Any]:
    inputs = x.astype(dtype)
    low_rank = _dot(x, jnp.concatenate(a, 1), dtype) if a else None
    if low_rank is not None:
        inputs = jnp.concatenate([inputs, low_rank.astype(dtype)], -1)
    outs = tuple(_dot(inputs, w, dtype).astype(x.dtype) for w in _stacked(dtype, scale, kernels, b))
    return outs, (x, kernels, a, b)


def _mixed_backward(dtype: Any, scale: float, saved: Any, dy: Sequence[jax.Array]) -> tuple[Any, ...]:
    """Gradients. Those of `W` are not computed where nothing asks for them: XLA deletes them."""
    x, kernels, a, b = saved
    inputs = x.shape[-1]
    stacked = _stacked(dtype, scale, kernels, b)
    dx: Any = sum(_dot_transposed(d, w, dtype) for d, w in zip(dy, stacked, strict=True))
    d_a: Matrices = ()
    d_b: Matrices = ()
    if a:
        dx, d_low_rank = dx[..., :inputs], dx[..., inputs:]
        a_joined = jnp.concatenate(a, 1)
        dx = dx + _dot_transposed(d_low_rank, a_joined, dtype)
        d_a = tuple(jnp.split(_rounded_outer(x, d_low_rank, dtype), _ends(a), 1))
        low_rank = jnp.split(_dot(x, a_joined, dtype), _ends(a), -1)
        d_b = tuple(scale * _rounded_outer(u, d, dtype) for u, d in zip(low_rank, dy, strict=False))
    like = lambda new, old: tuple(n.astype(o.dtype) for n, o in zip(new, old, strict=True))  # noqa: E731
    d_kernels = like([_rounded_outer(x, d, dtype) for d in dy], kernels)
    return cotangents((dx.astype(x.dtype), d_kernels, like(d_a, a), like(d_b, b)), saved)


mixed_precision_matmul.defvjp(_mixed_forward, _mixed_backward)
