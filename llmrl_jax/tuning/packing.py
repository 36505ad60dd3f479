"""Packing of examples of different lengths into rows of one length, without attention between examples."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from flax import struct

from llmrl_jax.tuning.rows import DataError, Example


@struct.dataclass
class Packed:
    """`N` rows of `S` tokens."""

    tokens: np.ndarray
    """int32 `[N, S]`, padded on the right with 0."""
    positions: np.ndarray
    """int32 `[N, S]`, from 0 in every example; -1 at padding."""
    segments: np.ndarray
    """int32 `[N, S]`, the index within its row of the example that a token belongs to, from 1; 0 at padding."""
    learn: np.ndarray
    """bool `[N, S]`, whether the token is a target; never the first of an example, which has no predecessor."""


def pack(
    examples: Iterable[Example],
    length: int,
    *,
    several: bool = True,
    overflow: Literal["refuse", "cut"] = "refuse",
    names: Sequence[str] = (),
) -> Packed:
    """Pack examples into rows: the longest first, each into the fullest row that still has room for it.

    **Arguments:** `examples`; `length` `S` of a row; `several`, False for one example per row; `overflow`, handling of
    an example longer than a row: `refuse`, or `cut` off its end; `names`, of the examples, for errors.
    **Returns:** `Packed`, in an order that depends only on the examples.
    **Raises:** `DataError` if there is no example, one is longer than a row, or one has no target.
    """
    if length < 2:
        raise ValueError(f"rows of {length} tokens hold nothing to predict; at least 2 are needed")
    fitted: list[Example] = []
    for i, example in enumerate(examples):
        name = names[i] if i < len(names) else f"example {i}"
        if len(example.tokens) > length:
            if overflow == "refuse":
                raise DataError(
                    f"{name} has {len(example.tokens)} tokens, a row {length}: make rows longer (length), or cut "
                    "what does not fit (overflow cut)"
                )
            example = Example(example.tokens[:length], example.learn[:length])
        if not any(example.learn[1:]):
            raise DataError(f"{name}: within {length} tokens there is nothing to learn; make rows longer (length)")
        fitted.append(example)
    if not fitted:
        raise DataError("there is no example in the data")
    rows = best_fit([len(e.tokens) for e in fitted], length) if several else [[i] for i in range(len(fitted))]
    shape = (len(rows), length)
    packed = Packed(
        np.zeros(shape, np.int32), np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
    )
    for r, row in enumerate(rows):
        start = 0
        for segment, i in enumerate(row, 1):
            example, n = fitted[i], len(fitted[i].tokens)
            span = slice(start, start + n)
            packed.tokens[r, span] = example.tokens
            packed.positions[r, span] = np.arange(n)
            packed.segments[r, span] = segment
            packed.learn[r, span] = example.learn
            packed.learn[r, start] = False
            start += n
    return packed


def best_fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Best-fit decreasing bin packing: the rows as lists of examples."""
    rows: list[list[int]] = []
    open_: list[tuple[int, int]] = []  # (room left, row), ascending
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        index = bisect.bisect_left(open_, (sizes[i], -1))
        if index == len(open_):
            rows.append([i])
            room, row = length - sizes[i], len(rows) - 1
        else:
            room, row = open_.pop(index)
            rows[row].append(i)
            room -= sizes[i]
        if room > 1:  # an example has at least two tokens
            bisect.insort(open_, (room, row))
    return rows
