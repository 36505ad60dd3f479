"""Rejection sampling for a whole batch: no row idles until the slowest one is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax import tracing


def first_accepted(attempt: Callable[..., tuple[jax.Array, Any]], *args: jax.Array) -> Any:
    """The value of the first accepted attempt; attempts are numbered from 1.

    Under `vmap`, the slots of finished rows are used for the others: each iteration makes as many attempts as the batch
    has rows, several consecutive ones per row if fewer rows are left. The value of a row is always that of its own
    first accepted attempt, whatever the size of the batch.

    **Arguments:** `attempt`, `(number, *args) -> (accepted bool [], value)`, which depends on no other traced value; an
    attempt must be accepted with a probability above zero, or the loop never ends.
    """

    def search(*args):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(attempt, jnp.int32(1), *args))
        start = (jnp.int32(1), (jnp.bool_(False), blank[1]))
        return tracing.while_loop(
            lambda carry: ~carry[1][0], lambda carry: (carry[0] + 1, attempt(carry[0], *args)), start
        )[1][1]

    batched = jax.custom_batching.custom_vmap(search)

    @batched.def_vmap
    @tracing.standard_promotion
    def rule(size, mapped, *args):
        rows = [a if m else jnp.broadcast_to(a, (size, *jnp.shape(a))) for a, m in zip(args, mapped)]
        tries = jax.vmap(attempt)
        _, blank = jax.eval_shape(tries, jnp.ones(size, jnp.int32), *rows)
        places = jnp.arange(size, dtype=jnp.int32)

        def body(carry):
            waiting, number, values = carry
            count = jnp.sum(waiting, dtype=jnp.int32)
            per_row = size // count
            rank = places // per_row
            row = jnp.argsort(~waiting)[jnp.minimum(rank, count - 1)]
            accepted, candidates = tries(number[row] + places % per_row, *[a[row] for a in rows])
            # the slots of a row are adjacent, in the order of its attempts: the first accepted one counts
            slot = jnp.full(size, size, jnp.int32).at[row].min(jnp.where(accepted & (rank < count), places, size))
            won = slot < size

            def pick(new, old):
                return jnp.where(won.reshape(-1, *[1] * (old.ndim - 1)), jnp.take(new, slot, axis=0, mode="clip"), old)

            return waiting & ~won, number + per_row, jax.tree.map(pick, candidates, values)

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), blank)
        start = (jnp.ones(size, bool), jnp.ones(size, jnp.int32), zeros)
        values = tracing.while_loop(lambda carry: jnp.any(carry[0]), body, start)[2]
        return values, jax.tree.map(lambda _: True, values)

    return batched(*args)
