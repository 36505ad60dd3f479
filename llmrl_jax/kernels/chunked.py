"""Functions of large batches in chunks of rows, whose activations stay in a processor's cache.

CQL values 30 actions in each of 256 states: one layer of 256 units is then 8 MB, and every pass over it goes to memory.
In chunks of about 2,000 rows a gradient step takes three quarters of the time on two cores. An accelerator has no use
for chunks: there a batch is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs_jax import tracing


ROWS = 2048
"""Rows of a network's input in one chunk, at most, if the batch can be divided so."""


def num_chunks(batch: int, inputs: int) -> int:
    """The number of chunks of a batch: the smallest that divides it into chunks of at most `ROWS` rows.

    **Arguments:** `batch`, its rows; `inputs`, of the network for each of them.
    """
    if tracing.platform() != "cpu":
        return 1
    return next(n for n in range(1, batch + 1) if batch % n == 0 and (batch // n * inputs <= ROWS or n == batch))


def _split(rows: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), rows)


def chunked_map(function: Callable[[Any], Any], rows: Any, count: int) -> Any:
    """`function(rows)`, computed chunk by chunk.

    **Arguments:** `function`, of rows, leaves `[B, ...]`, to leaves `[B, ...]`, each row by itself; `rows`; `count`,
    chunks, which divide `B`.
    """
    if count == 1:
        return function(rows)
    outputs = jax.lax.map(function, _split(rows, count))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), outputs)


def chunked_ensemble_mean(
    function: Callable[[Any, Any], Float[Array, "K b"]], members: Any, rows: Any, count: int
) -> Float[Array, " K"]:
    """`mean(function(members, rows), axis=1)`, computed chunk by chunk.

    The gradient with respect to `members` is computed with the means, so that the activations of a chunk are not kept.
    `rows` get no gradient.

    **Arguments:** `function`, of members and rows, leaves `[b, ...]`, to `[K, b]`, where member `k` of `members`,
    leaves `[K, ...]`, affects row `k` only; `members`; `rows`, leaves `[B, ...]`; `count`, chunks, which divide `B`.
    """
    chunks = _split(jax.lax.stop_gradient(rows), count)

    def means(members, chunk):
        mean = jnp.mean(function(members, chunk), axis=1) / count
        return jnp.sum(mean), mean

    @jax.custom_vjp
    def mean(members, chunks):
        return jnp.sum(jax.lax.map(lambda chunk: means(members, chunk)[1], chunks), axis=0)

    def forward(members, chunks):
        def add(total, chunk):
            (_, mean), grads = jax.value_and_grad(means, has_aux=True)(members, chunk)
            return jax.tree.map(jnp.add, total, (mean, grads)), None

        size = jax.tree.leaves(members)[0].shape[0]
        zero = (jnp.zeros(size), jax.tree.map(jnp.zeros_like, members))
        return tracing.scan(add, zero, chunks)[0]

    def backward(grads, weight):
        return jax.tree.map(lambda g: g * weight.reshape(-1, *[1] * (g.ndim - 1)), grads), None

    mean.defvjp(forward, backward)
    return mean(members, chunks)
