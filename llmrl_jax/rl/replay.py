"""A replay buffer on the device: a ring buffer of items, written in order, and sampled in several ways.

A draw (uniform, or in proportion to priorities) gives indices into the memory; a view reads at these indices: single
items, or n-step transitions. Draws and views combine freely. Everything is a pure function of a
`BufferState`, which is part of a learner's state: it is saved with the state, and split over the devices of a mesh as
environments are. Of observations that are stacks of frames, each frame is held once (`llmrl_jax.rl.frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from envs_jax.env import Stack
from llmrl_jax.parallel.memory import available, nbytes
from llmrl_jax.rl.frames import Frames


@struct.dataclass
class BufferState:
    """Contents of a replay buffer; part of a learner's state, and so of its checkpoints."""

    items: Any
    """Leaves `[capacity, ...]`, with rows `[capacity / rows, rows, ...]`; slots not yet written are zeros."""
    next: jax.Array
    """int32 `[]`, index at which the next item (with rows: the next step of all rows) is written."""
    size: jax.Array
    """int32 `[]`, items held, at most the capacity."""
    priorities: Any = ()
    """The `PriorityTree` of a prioritised buffer; `()` in others."""
    frames: Any = ()
    """The `FrameBuffer` of a buffer with stacks; `()` in others."""


COUNTERS = ("replay.next", "replay.size")
"""The parts of a buffer, the `replay` of a learner's state, that do not depend on what is added."""


@struct.dataclass
class Sample:
    """Indices into a replay buffer, for one batch."""

    index: Int[Array, " B"]
    """Index of an item: with rows, `time * rows + row`."""
    probability: Float[Array, " B"]
    """Probability of that item in one draw."""


@dataclass(frozen=True)
class Replay:
    """Pure functions of a replay buffer of `capacity` items: pytrees of arrays, the newest replacing the oldest."""

    capacity: int
    """Maximum number of items. The whole buffer is allocated at once."""
    rows: int | None = None
    """Environments, each with its own buffer of `capacity / rows` consecutive steps; over a mesh, each device holds its
    environments' steps. None: items without an order, for single-step sampling only."""
    prioritized: bool = False
    """Whether items have sampling priorities."""
    stacked: Mapping[str, Stack] = field(default_factory=dict, hash=False)
    """Parts of `obs` and `next_obs`, dicts, that are stacks of frames, of which each frame is held once. Needs rows."""

    def __post_init__(self):
        if self.capacity < 1:
            raise ValueError(f"the replay buffer has a capacity of {self.capacity}; at least 1 is needed")
        if self.rows is not None and (self.rows < 1 or self.capacity % self.rows):
            raise ValueError(
                f"a replay buffer of {self.capacity} items cannot be divided among {self.rows} environments: "
                f"choose a multiple of {max(self.rows, 1)} as its capacity"
            )
        if self.stacked and self.rows is None:
            raise ValueError("stacks of frames need steps in their order: give the replay buffer its `rows`")

    @property
    def length(self) -> int:
        """Steps of each row; without rows, the capacity."""
        return self.capacity // (self.rows or 1)

    @property
    def _tree(self) -> Priorities:
        return Priorities(self.capacity)

    @property
    def _frames(self) -> Frames:
        return Frames(self.length, self.rows or 1, self.stacked)

    # --- writing ------------------------------------------------------------------------------------------------------

    def init(self, item: Any) -> BufferState:
        """Empty replay buffer.

        **Arguments:** `item`, one item, for the shapes and dtypes of its leaves (arrays or `jax.ShapeDtypeStruct`).
        """
        lead = (self.capacity,) if self.rows is None else (self.length, self.rows)
        frames = self._frames.init(item.obs) if self.stacked else ()
        items = jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), self._unstacked(item))
        return BufferState(items, jnp.int32(0), jnp.int32(0), self._tree.init() if self.prioritized else (), frames)

    def check_room(self, item: Any, option: str, devices: int = 1) -> None:
        """**Raises** `ValueError` for a buffer of such items that is larger than the memory: a CPU would notice when it
        is used, not when it is allocated. **Arguments:** `option`, which sets the capacity, for the message; `devices`,
        which hold equal parts."""
        needed, free = nbytes(jax.eval_shape(self.init, item)), available(devices)
        if free is not None and needed > free:
            raise ValueError(
                f"a replay buffer of {self.capacity} steps takes {needed / 1e9:.1f} GB, but there are "
                f"{free / 1e9:.1f} GB: lower {option}"
            )

    def _unstacked(self, items: Any) -> Any:
        """Items without the stacks of their observations."""
        if not self.stacked:
            return items
        return items.replace(
            obs=self._frames.without_stacks(items.obs), next_obs=self._frames.without_stacks(items.next_obs)
        )

    def add(self, buffer: BufferState, items: Any, ended: Bool[Array, "T rows"] | None = None) -> BufferState:
        """Buffer with items appended in order. Their priority is the highest that any item has had.

        **Arguments:** `items`, leaves `[N, ...]`, with rows `[T, rows, ...]`, of the shapes and dtypes given to `init`;
        `ended`, with stacks: whether a step was the last one of its episode, for whatever reason.
        **Raises:** `ValueError` for other shapes or dtypes, or for more items per call than the capacity.
        """
        per_step = self.rows or 1
        steps, items = items, self._unstacked(items)
        count = jax.tree.leaves(items)[0].shape[0]
        if count > self.length:
            unit = "items" if self.rows is None else f"steps of {self.rows} environments"
            raise ValueError(
                f"{count} {unit} at once do not fit a replay buffer of {self.capacity}: raise its capacity"
            )
        slots = (buffer.next + jnp.arange(count)) % self.length

        def write(old, new):
            if new.shape != (count, *old.shape[1:]) or new.dtype != old.dtype:
                raise ValueError(
                    f"items of {new.dtype}{list(new.shape)} were added to a replay buffer of "
                    f"{old.dtype}{list(old.shape)}; {old.dtype}{[count, *old.shape[1:]]} is needed"
                )
            return old.at[slots].set(new, mode="promise_in_bounds", unique_indices=True)

        tree = buffer.priorities
        if self.prioritized:
            index = (slots[:, None] * per_step + jnp.arange(per_step)).reshape(-1)
            tree = self._tree.set(tree, index, jnp.broadcast_to(tree.highest, index.shape))
        after = BufferState(
            items=jax.tree.map(write, buffer.items, items),
            next=(buffer.next + count) % self.length,
            size=jnp.minimum(buffer.size + count * per_step, self.capacity),
            priorities=tree,
        )
        return self._with_frames(buffer, after, steps, ended) if self.stacked else after

    def _with_frames(self, before: BufferState, after: BufferState, steps: Any, ended: Array | None) -> BufferState:
        """The buffer `after` further steps, with their frames. Steps that lost a frame can no longer be sampled."""
        if ended is None:
            raise ValueError("a memory with stacks of frames needs to know which steps ended their episode: `ended`")
        frames = self._frames.add(before.frames, steps.obs, steps.next_obs, ended)
        after = after.replace(frames=frames)
        if not self.prioritized:
            return after
        expected = jnp.minimum(before.frames.readable + ended.shape[0], self.length)
        back = (after.next - 1 - jnp.arange(self.capacity) // (self.rows or 1)) % self.length
        tree = tracing.cond(
            frames.readable < expected,
            lambda tree: self._tree.masked(tree, back < frames.readable),
            lambda tree: tree,
            after.priorities,
        )
        return after.replace(priorities=tree)

    def shard(self, buffer: BufferState, split: Callable[[Any, int], Any], copied: Callable[[Any], Any]) -> BufferState:
        """Buffer on a mesh: rows are split as environments are, everything else is replicated.

        **Arguments:** `split`, from a tree and an axis to the tree with that axis split; `copied`, from a tree to the
        replicated tree. Priorities are replicated, so that sums over the whole buffer are the same on any number of
        devices.
        """
        items = copied(buffer.items) if self.rows is None else split(buffer.items, 1)
        frames = self._frames.shard(buffer.frames, split, copied) if self.stacked else ()
        next, size, priorities = copied((buffer.next, buffer.size, buffer.priorities))
        return BufferState(items, next, size, priorities, frames)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def can_sample(self, buffer: BufferState, minimum: int = 1) -> Bool[Array, ""]:
        """Return whether at least `minimum` items were added, of those that fit."""
        return buffer.size >= minimum

    def num_readable(self, buffer: BufferState) -> Int[Array, ""]:
        """Items that can be sampled: with stacks fewer than `buffer.size` where episodes are very short."""
        return buffer.frames.readable * (self.rows or 1) if self.stacked else buffer.size

    def draw(self, buffer: BufferState, key: jax.Array, batch_size: int) -> Sample:
        """Indices sampled uniformly with replacement. An empty buffer gives index 0."""
        count = jnp.maximum(self.num_readable(buffer), 1)
        index = jax.random.randint(key, (batch_size,), 0, count)
        if self.stacked:
            oldest = jnp.where(count < buffer.size, buffer.next * (self.rows or 1) - count, 0)
            index = (index + oldest) % self.capacity
        return Sample(index, jnp.broadcast_to(1 / count, (batch_size,)))

    def draw_prioritized(self, buffer: BufferState, key: jax.Array, batch_size: int) -> Sample:
        """Indices sampled in proportion to their priorities (Schaul et al., 1511.05952, section 3.3).

        The sum of all priorities is cut into `batch_size` equal ranges, and one index is sampled from each.
        """
        return Sample(*self._tree.sample(buffer.priorities, key, batch_size))

    def prioritize(self, buffer: BufferState, index: Int[Array, " B"], priority: Float[Array, " B"]) -> BufferState:
        """Buffer with new priorities for some items.

        **Arguments:** `index`, of a draw, with no `add` since; `priority`, positive: for instance
        `(|TD error| + 1e-6) ** alpha`. For a repeated index the higher priority is taken.
        """
        return buffer.replace(priorities=self._tree.set(buffer.priorities, index, priority))

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, buffer: BufferState, index: Int[Array, " *B"]) -> Any:
        """Items at given indices: leaves `[*B, ...]`."""
        return self._steps(buffer, *self._split(index))

    def n_step(
        self, buffer: BufferState, index: Int[Array, " B"], n: int, gamma: float | jax.Array
    ) -> tuple[Any, Float[Array, " B"]]:
        """Transitions over up to `n` steps (Sutton and Barto, section 7.1), starting at given indices.

        A transition of `m` steps has `reward = sum_{k<m} gamma^k r_k`, and `next_obs`, `terminated` and `truncated` of
        its last step. `m` is `n`, or less if the episode terminates or is truncated earlier, or if the newest step of
        the row is reached: it bootstraps there. The target for a value function V is
        `reward + discount * (0 if terminated else V(next_obs))`.

        **Arguments:** `index`, of a draw; `n`, at least 1; `gamma`, discount per step.
        **Returns:** the transitions, leaves `[B, ...]`, of the items' type (`Transitions`, or another struct with its
        fields); and `discount = gamma^m`, float32 `[B]`.
        **Raises:** `ValueError` without rows.
        """
        if n < 1:
            raise ValueError(f"n-step transitions of n = {n} steps; at least 1 is needed")
        items = buffer.items
        times, row = self._following(index, n)
        reward = self._read(items.reward, times, row)
        mask = self._mask(buffer, times, row)
        powers = jnp.cumprod(jnp.concatenate([jnp.ones(1), jnp.full(n, gamma, jnp.float32)]))
        steps = jnp.sum(mask, axis=1)
        first = self.get(buffer, index)
        last = (jnp.take_along_axis(times, steps[:, None] - 1, axis=1)[:, 0], row[:, 0])
        return first.replace(
            reward=jnp.sum(jnp.where(mask, powers[:n] * reward, 0), axis=1),
            next_obs=self._next_obs(buffer, *last),
            terminated=self._read(items.terminated, *last),
            truncated=self._read(items.truncated, *last),
        ), powers[steps]

    # --- indices ------------------------------------------------------------------------------------------------------

    def _split(self, index: Array) -> tuple[Array, ...]:
        """Item indices as indices of the leading axes."""
        return (index,) if self.rows is None else (index // self.rows, index % self.rows)

    def _read(self, tree: Any, *index: Array) -> Any:
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), tree)

    def _steps(self, buffer: BufferState, *index: Array) -> Any:
        """Whole items."""
        items = self._read(buffer.items, *index)
        if not self.stacked:
            return items
        obs, next_obs = self._stacks(buffer, *index)
        return items.replace(obs={**items.obs, **obs}, next_obs={**items.next_obs, **next_obs})

    def _next_obs(self, buffer: BufferState, *index: Array) -> Any:
        """The `next_obs` of items."""
        next_obs = self._read(buffer.items.next_obs, *index)
        return {**next_obs, **self._stacks(buffer, *index)[1]} if self.stacked else next_obs

    def _stacks(self, buffer: BufferState, time: Array, row: Array) -> tuple[Any, Any]:
        back = (buffer.next - 1 - time) % self.length
        return self._frames.read(buffer.frames, back, jnp.broadcast_to(row, back.shape))

    def _following(self, index: Array, n: int) -> tuple[Array, Array]:
        """The time `[B, n]` and row `[B, 1]` of the `n` steps starting at each index."""
        label = f"{n}-step transitions"
        if self.rows is None:
            raise ValueError(f"{label} need steps in their order: give the replay buffer its `rows`, the environments")
        if not 1 <= n <= self.length:
            raise ValueError(f"{label} do not fit a replay buffer of {self.length} steps per environment")
        time, row = self._split(index)
        return (time[:, None] + jnp.arange(n)) % self.length, row[:, None]

    def _mask(self, buffer: BufferState, times: Array, row: Array) -> Array:
        """Return whether steps continue the episode of the first one, bool `[B, count]`."""
        items, stored = buffer.items, buffer.size // (self.rows or 1)
        oldest = jnp.where(stored == self.length, buffer.next, 0)
        left = stored - (times[:, 0] - oldest) % self.length  # steps from the first to the newest, both included
        ends = self._read(items.terminated, times, row) | self._read(items.truncated, times, row)
        before = jnp.cumsum(ends, axis=1) - ends
        stored_yet = jnp.arange(times.shape[1]) < left[:, None]
        return ((before == 0) & stored_yet).at[:, 0].set(True)


def importance_weights(
    probability: Float[Array, " B"], size: Int[Array, ""], beta: float | jax.Array
) -> Float[Array, " B"]:
    """Factors of the losses of a prioritised batch: `(size * probability) ** -beta`, divided by the batch's largest.

    Schaul et al., 1511.05952, section 3.4; `beta` is 0 for no correction and 1 for the full one.
    """
    weights = (jnp.maximum(size, 1) * probability) ** -beta
    return weights / jnp.max(weights)


# --- priorities -------------------------------------------------------------------------------------------------------


_CHILDREN = 16


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
    """Pure functions of a tree of `capacity` priorities: indices are sampled in proportion to them.

    It is a sum tree whose nodes have 16 children. A cumulative sum over the whole buffer takes time proportional to its
    capacity. A binary tree takes one gather for each of its 20 levels at a million entries, sequentially, and compiles
    slowly. With 16 children there are 5 levels. Sums are recomputed from their 16 terms at every change, so rounding
    errors do not accumulate, and no result depends on the order in which a device writes."""

    capacity: int

    def init(self) -> PriorityTree:
        """Tree with all priorities 0."""
        levels: list[jax.Array] = []
        nodes = self.capacity
        while not levels or nodes > 1:
            nodes = -(-nodes // _CHILDREN)
            levels.append(jnp.zeros((nodes, _CHILDREN)))
        return PriorityTree(tuple(levels), jnp.float32(1))

    def set(self, tree: PriorityTree, index: Int[Array, " N"], priority: Float[Array, " N"]) -> PriorityTree:
        """Tree with new priorities at given indices; for a repeated index the higher priority is taken.

        **Arguments:** `index`; `priority`, not negative.
        """
        levels, value = [], priority
        for level in tree.levels:
            index, child = index // _CHILDREN, index % _CHILDREN
            level = level.at[index, child].set(0.0, mode="promise_in_bounds")
            level = level.at[index, child].max(value, mode="promise_in_bounds")  # independent of the write order
            value = jnp.sum(level.at[index].get(mode="promise_in_bounds"), axis=1)
            levels.append(level)
        return PriorityTree(tuple(levels), jnp.maximum(tree.highest, jnp.max(priority)))

    def masked(self, tree: PriorityTree, mask: Bool[Array, " capacity"]) -> PriorityTree:
        """Tree with priority 0 where the mask is False."""
        entries = tree.levels[0].reshape(-1)
        entries = jnp.where(jnp.pad(mask, (0, entries.shape[0] - self.capacity)), entries, 0.0)
        levels = [entries.reshape(-1, _CHILDREN)]
        for level in tree.levels[1:]:
            sums = jnp.sum(levels[-1], axis=1)
            levels.append(jnp.pad(sums, (0, level.size - sums.shape[0])).reshape(level.shape))
        return tree.replace(levels=tuple(levels))

    def sample(
        self, tree: PriorityTree, key: jax.Array, count: int
    ) -> tuple[Int[Array, "{count}"], Float[Array, "{count}"]]:
        """Indices, one from each of `count` equal ranges of the sum of all priorities, and the probability of each.

        An index with priority 0 is never sampled, unless all are 0: then index 0 is sampled, with probability 0.
        """
        total = jnp.sum(tree.levels[-1])
        ends = jnp.arange(count + 1) / count * total
        index, weight = self.draw_between(tree, key, ends[:-1], ends[1:])
        return index, weight / jnp.where(total > 0, total, 1)

    def draw_between(
        self, tree: PriorityTree, key: jax.Array, low: Float[Array, " B"], high: Float[Array, " B"]
    ) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
        """Indices, one for a uniform point in each range of the cumulative sum of priorities, and their priorities.

        A float32 cannot name such a point: at a million equal priorities, it has 16 values within each. So every level
        draws a new point from what the range and the chosen child have in common, which has the same distribution.

        **Arguments:** `low` and `high`, the ends of the ranges, from 0 to the sum.
        """
        index = jnp.zeros(low.shape, jnp.int32)
        weight = jnp.zeros(low.shape)
        for level, level_key in zip(reversed(tree.levels), jax.random.split(key, len(tree.levels))):
            offset = jax.random.uniform(level_key, low.shape) * (high - low)
            child, start, weight = descend_tree(level.at[index].get(mode="promise_in_bounds"), low, offset)
            low, high = (jnp.clip(end - start, 0, weight) for end in (low, high))
            index = index * _CHILDREN + child
        return index, weight


def descend_tree(
    weights: Float[Array, "B 16"], low: Float[Array, " B"], offset: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """The child whose interval of the cumulative sum contains the point `low + offset`, the start of the interval, and
    the child's weight.

    It is never a child of weight 0 if there is another: rounding may put a point beyond the last interval, and it is
    then assigned to the last one.
    """
    ends = jnp.cumsum(weights, axis=1)
    positive = weights > 0
    order = jnp.arange(_CHILDREN, dtype=jnp.int32)
    last = jnp.max(jnp.where(positive, order, 0), axis=1)
    contains = positive & (ends - low[:, None] > offset[:, None])  # the difference keeps the low bits of the offset
    child = jnp.min(jnp.where(contains, order, last[:, None]), axis=1)
    weight = jnp.take_along_axis(weights, child[:, None], axis=1)[:, 0]
    start = jnp.take_along_axis(ends, child[:, None], axis=1)[:, 0] - weight
    return child, start, weight
