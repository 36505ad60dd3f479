"""Sampling of indices in proportion to their priorities, by a sum tree whose nodes have 16 children.

A cumulative sum over the whole memory takes time proportional to its capacity. A binary tree takes one gather for each
of its 20 levels at a million entries, sequentially, and compiles slowly. With 16 children there are 5 levels. Sums are
recomputed from their 16 terms at every change, so rounding errors do not accumulate, and no result depends on the order
in which a device writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


CHILDREN = 16


@struct.dataclass
class PriorityTree:
    """Priorities and their sums."""

    levels: Any
    """Tuple of float32 `[nodes, 16]`: the priorities of all indices in order, 0 for empty slots; then the sums of each
    of these nodes; and so on, up to a single node."""
    highest: Float[Array, ""]
    """The highest priority that was ever set; 1 before that."""


@dataclass(frozen=True)
class Priorities:
    """The pure functions of a tree of `capacity` priorities."""

    capacity: int

    def init(self) -> PriorityTree:
        """A tree with all priorities 0."""
        levels: list[jax.Array] = []
        nodes = self.capacity
        while not levels or nodes > 1:
            nodes = -(-nodes // CHILDREN)
            levels.append(jnp.zeros((nodes, CHILDREN)))
        return PriorityTree(tuple(levels), jnp.float32(1))

    def set(self, tree: PriorityTree, index: Int[Array, " N"], priority: Float[Array, " N"]) -> PriorityTree:
        """The tree with new priorities at given indices; for a repeated index the higher priority is taken.

        **Arguments:** `index`; `priority`, not negative.
        """
        levels, value = [], priority
        for level in tree.levels:
            index, child = index // CHILDREN, index % CHILDREN
            level = level.at[index, child].set(0.0, mode="promise_in_bounds")
            level = level.at[index, child].max(value, mode="promise_in_bounds")  # independent of the write order
            value = jnp.sum(level.at[index].get(mode="promise_in_bounds"), axis=1)
            levels.append(level)
        return PriorityTree(tuple(levels), jnp.maximum(tree.highest, jnp.max(priority)))

    def kept(self, tree: PriorityTree, mask: Bool[Array, " capacity"]) -> PriorityTree:
        """The tree with priority 0 where the mask is False."""
        entries = tree.levels[0].reshape(-1)
        entries = jnp.where(jnp.pad(mask, (0, entries.shape[0] - self.capacity)), entries, 0.0)
        levels = [entries.reshape(-1, CHILDREN)]
        for level in tree.levels[1:]:
            sums = jnp.sum(levels[-1], axis=1)
            levels.append(jnp.pad(sums, (0, level.size - sums.shape[0])).reshape(level.shape))
        return tree.replace(levels=tuple(levels))

    def sample(
        self, tree: PriorityTree, key: jax.Array, count: int
    ) -> tuple[Int[Array, "{count}"], Float[Array, "{count}"]]:
        """Indices, one from each of `count` equal ranges of the sum of all priorities, and the probability of each.

        An index with priority 0 is never drawn, unless all are 0: then index 0 is drawn, with probability 0.
        """
        total = jnp.sum(tree.levels[-1])
        ends = jnp.arange(count + 1) / count * total
        index, weight = self.draw_between(tree, key, ends[:-1], ends[1:])
        return index, weight / jnp.where(total > 0, total, 1)

    def draw_between(
        self, tree: PriorityTree, key: jax.Array, low: Float[Array, " B"], high: Float[Array, " B"]
    ) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
        """An index for a uniform point in each range of the cumulative sum of priorities, and its priority.

        A float32 cannot name such a point: at a million equal priorities, it has 16 places within each. So every level
        draws a new point from what the range and the chosen child have in common, which has the same distribution.

        **Arguments:** `low` and `high`, the ends of the ranges, from 0 to the sum.
        """
        index = jnp.zeros(low.shape, jnp.int32)
        weight = jnp.zeros(low.shape)
        for level, level_key in zip(reversed(tree.levels), jax.random.split(key, len(tree.levels))):
            offset = jax.random.uniform(level_key, low.shape) * (high - low)
            child, start, weight = descend(level.at[index].get(mode="promise_in_bounds"), low, offset)
            low, high = (jnp.clip(end - start, 0, weight) for end in (low, high))
            index = index * CHILDREN + child
        return index, weight


def descend(
    weights: Float[Array, "B 16"], low: Float[Array, " B"], offset: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """The child whose interval of the cumulative sum contains the point `low + offset`, the start of the interval, and
    the child's weight.

    It is never a child of weight 0 if there is another: rounding may put a point beyond the last interval, and it is
    then assigned to the last one.
    """
    ends = jnp.cumsum(weights, axis=1)
    positive = weights > 0
    order = jnp.arange(CHILDREN, dtype=jnp.int32)
    last = jnp.max(jnp.where(positive, order, 0), axis=1)
    within = positive & (ends - low[:, None] > offset[:, None])  # the difference keeps the low bits of the offset
    child = jnp.min(jnp.where(within, order, last[:, None]), axis=1)
    weight = jnp.take_along_axis(weights, child[:, None], axis=1)[:, 0]
    start = jnp.take_along_axis(ends, child[:, None], axis=1)[:, 0] - weight
    return child, start, weight
