"""Batches of recorded steps or episodes: drawn with replacement, or each once per epoch.

For batches from several sources, with an exact number from each, see `llmrl_jax.core.mixing`.
"""

from __future__ import annotations

from typing import TypeVar

import jax
from jaxtyping import Array, Int

from llmrl_jax.core.checks import between
from llmrl_jax.core.mixing import Source
from llmrl_jax.data.transitions import Trajectories, Transitions


Data = TypeVar("Data", Transitions, Trajectories)


def draw(data: Data, key: jax.Array, batch_size: int) -> Data:
    """Steps, or episodes, drawn uniformly and independently: leaves `[batch_size, ...]`."""
    return data.take(jax.random.randint(key, (batch_size,), 0, len(data)))


def source(data: Data) -> Source:
    """The data as a source of a mixed batch, see `llmrl_jax.core.mixing.mixed`."""
    return lambda key, rows: draw(data, key, rows)


def epoch(key: jax.Array, count: int, batch_size: int) -> Int[Array, "{count//batch_size} {batch_size}"]:
    """A random order of `count` steps or episodes, in batches: each occurs once; a remainder smaller than a
    batch is dropped in this epoch.

    **Returns:** int32, for `take`.
    """
    between("batch_size", batch_size, 1, count)
    order = jax.random.permutation(key, count)
    return order[: count // batch_size * batch_size].reshape(-1, batch_size)
