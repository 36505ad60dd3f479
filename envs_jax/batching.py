"""Functions of a batch as functions of one row: for parts of an environment that are faster on a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from envs_jax.tracing import standard_promotion


def _rows(size: int, batched: Any, args: Any) -> Any:
    """Arguments that all have a leading axis of this size; `batched` says which of them have it already."""
    return jax.tree.map(
        lambda x, is_batched: x if is_batched else jnp.broadcast_to(x, (size, *jnp.shape(x))), args, batched
    )


def batched_as_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one row that calls `function`, which computes all rows of a batch together.

    `function` takes and returns pytrees whose leaves have a leading axis `[B]`, and its rows do not depend on one
    another. It can branch on the batch (`lax.cond`, a `while_loop` up to the longest row, only the rows that need a
    rare computation), where `vmap` of a function of one row would compute both branches for every row. Under `vmap` it
    is called once for the batch, under several nested ones once for all their rows.
    """

    @custom_vmap
    def call_rows(*args):
        return function(*args)

    @call_rows.def_vmap
    @standard_promotion
    def _(size, batched, *args):
        args = _rows(size, list(batched), list(args))
        leading = jnp.shape(jax.tree.leaves(args)[0])[:2]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), args)
        outputs = jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), call_rows(*flat))
        return outputs, jax.tree.map(lambda _: True, outputs)

    @custom_vmap
    def call_row(*args):
        return jax.tree.map(lambda x: x[0], function(*jax.tree.map(lambda x: x[None], args)))

    @call_row.def_vmap
    @standard_promotion
    def _(size, batched, *args):
        outputs = call_rows(*_rows(size, list(batched), list(args)))
        return outputs, jax.tree.map(lambda _: True, outputs)

    return call_row
