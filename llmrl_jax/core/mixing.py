"""Batches from several sources, with an exact number of rows from each (KALM: real and imagined steps, 1:1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


Source = Callable[[jax.Array, int], Any]
"""`(key, rows) -> rows`, leaves `[rows, ...]`: a replay memory, data, a model."""


def counts(batch_size: int, shares: Sequence[int]) -> tuple[int, ...]:
    """The number of rows of a batch from each source.

    **Arguments:** `batch_size`; `shares`, positive integers: `(1, 1)` for halves, `(3, 1)` for three quarters.
    **Raises:** `ValueError` if the batch cannot be divided by these shares.
    """
    total = sum(shares)
    if not shares or min(shares) < 1:
        raise ValueError(f"the shares of a mixed batch are {tuple(shares)}; positive integers are needed, as in (1, 1)")
    if batch_size < total or batch_size % total:
        ratio = ":".join(map(str, shares))
        raise ValueError(f"a batch of {batch_size} cannot be mixed {ratio}; choose a multiple of {total}")
    return tuple(batch_size // total * share for share in shares)


def mixed(key: jax.Array, batch_size: int, sources: Sequence[Source], shares: Sequence[int]) -> Any:
    """A batch with rows of several sources, in the order of the sources.

    **Arguments:** `key`; source `i` gets `fold_in(key, i)`; `batch_size`; `sources`; `shares`, one for each, see
    `counts`.
    **Returns:** leaves `[batch_size, ...]`.
    **Raises:** `ValueError` if the batch cannot be divided by these shares, or sources differ in structure, shapes or
    dtypes.
    """
    if len(sources) != len(shares):
        raise ValueError(f"{len(sources)} sources were given with {len(shares)} shares; one share for each is needed")
    rows = counts(batch_size, shares)
    parts = [source(jax.random.fold_in(key, i), n) for i, (source, n) in enumerate(zip(sources, rows))]
    named, structure = jax.tree_util.tree_flatten_with_path(parts[0])
    for i, part in enumerate(parts[1:], 1):
        other: Any = jax.tree.structure(part)
        if other != structure:
            raise ValueError(f"source {i} of a mixed batch gives {other}; source 0 gives {structure}")
        for (path, a), b in zip(named, jax.tree.leaves(part)):
            if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                raise ValueError(
                    f"source {i} of a mixed batch gives {b.dtype}{list(b.shape[1:])} as {jax.tree_util.keystr(path)}; "
                    f"source 0 gives {a.dtype}{list(a.shape[1:])}"
                )
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
