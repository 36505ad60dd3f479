"""Large batches in parts, so that what a network computes for a part stays in a processor's cache.

CQL values 30 actions in each of 256 states: one layer of 256 units is then 8 MB, and every pass over it goes to memory.
In parts of about 2,000 rows a gradient step takes three quarters of the time on two cores. An accelerator has no use
for parts: there a batch is one part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs_jax import tracing


ROWS = 2048
"""Rows of a network's input in one part, at most, if the batch can be divided so."""


def parts_of(batch: int, each: int) -> int:
    """The number of parts of a batch: the smallest that divides it into parts of at most `ROWS` rows.

    **Arguments:** `batch`, its rows; `each`, inputs of the network for each of them.
    """
    if tracing.platform() != "cpu":
        return 1
    return next(n for n in range(1, batch + 1) if batch % n == 0 and (batch // n * each <= ROWS or n == batch))


def _split(rows: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), rows)


def map_parts(function: Callable[[Any], Any], rows: Any, count: int) -> Any:
    """`function(rows)`, computed part by part.

    **Arguments:** `function`, of rows, leaves `[B, ...]`, to leaves `[B, ...]`, each row by itself; `rows`; `count`,
    parts, which divide `B`.
    """
    if count == 1:
        return function(rows)
    found = jax.lax.map(function, _split(rows, count))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)


def member_means(
    function: Callable[[Any, Any], Float[Array, "K b"]], members: Any, rows: Any, count: int
) -> Float[Array, " K"]:
    """The mean over rows of a number for each row and member of an ensemble.

    The gradient with respect to `members` is computed part by part, together with the means, so that the layers of a
    part are not kept. `rows` get no gradient.

    **Arguments:** `function`, of members and rows, leaves `[b, ...]`, to `[K, b]`, where member `k` of `members`,
    leaves `[K, ...]`, affects row `k` only; `members`; `rows`, leaves `[B, ...]`; `count`, parts, which divide `B`.
    """
    parts = _split(jax.lax.stop_gradient(rows), count)

    def means(members, part):
        found = jnp.mean(function(members, part), axis=1) / count
        return jnp.sum(found), found

    @jax.custom_vjp
    def mean(members, parts):
        return jnp.sum(jax.lax.map(lambda part: means(members, part)[1], parts), axis=0)

    def forward(members, parts):
        def add(total, part):
            (_, found), grads = jax.value_and_grad(means, has_aux=True)(members, part)
            return jax.tree.map(jnp.add, total, (found, grads)), None

        size = jax.tree.leaves(members)[0].shape[0]
        zero = (jnp.zeros(size), jax.tree.map(jnp.zeros_like, members))
        return tracing.scan(add, zero, parts)[0]

    def backward(grads, weight):
        return jax.tree.map(lambda g: g * weight.reshape(-1, *[1] * (g.ndim - 1)), grads), None

    mean.defvjp(forward, backward)
    return mean(members, parts)
