"""Stacks of frames in a replay buffer, each frame held once.

A stack of the newest `F` frames moves on by one frame per step, so a buffer of whole observations (`obs` and
`next_obs`) holds every frame `2 F` times. Here a step has one frame, the newest of its `obs`; the newest of its
`next_obs` is the next step's frame, except at the end of an episode, whose last frame is in a separate buffer. Reading
a step stacks frames again: exactly what whole storage would return.

Frames that end episodes have one slot for every `STEPS_PER_END` steps of an environment. Where episodes are shorter
than that on average, the buffer drops its oldest steps earlier (`FrameBuffer.readable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from envs_jax.env import Stack


STEPS_PER_END = 16
"""Steps of an environment for each slot of a frame that ended an episode."""


@struct.dataclass
class FrameBuffer:
    """The frames of `rows` environments; part of a `llmrl_jax.rl.replay.BufferState`."""

    frames: Any
    """Part of the observation -> `[slots, rows, ...]`: the newest frame of each step's `obs`; behind the newest step,
    that of its `next_obs`."""
    finals: Any
    """Part -> `[ends, rows, ...]`: the newest frame of the `next_obs` of steps that ended an episode."""
    age: jax.Array
    """uint8 `[slots, rows]`, steps from the start of the episode to each step, at most the longest stack less 1."""
    end: jax.Array
    """int32 `[slots, rows]`, index of a step's frame in `finals`; -1: the step ended no episode."""
    since: jax.Array
    """int32 `[ends, rows]`, steps after the one whose frame a slot holds; the buffer's length if that step is gone."""
    next: jax.Array
    """int32 `[]`, the slot of the next step."""
    next_end: jax.Array
    """int32 `[rows]`, the slot of the next frame that ends an episode."""
    ended: jax.Array
    """bool `[rows]`, whether the newest step ended its episode; False before the first step, whose frames are all held,
    wherever in an episode it is."""
    readable: jax.Array
    """int32 `[]`, the newest steps of each row whose frames are all held."""


@dataclass(frozen=True)
class Frames:
    """The pure functions of the frames of `length` steps of `rows` environments."""

    length: int
    rows: int
    stacks: Mapping[str, Stack]
    """The parts of observations that are stacks."""

    @property
    def depth(self) -> int:
        """Frames of the longest stack."""
        return max(stack.frames for stack in self.stacks.values())

    @property
    def slots(self) -> int:
        """Frames of each row: one per step, those before the oldest step, and one behind the newest."""
        return self.length + self.depth

    @property
    def ends(self) -> int:
        """Slots of each row for frames that end episodes."""
        return self.length // STEPS_PER_END + 1

    def init(self, obs: Any) -> FrameBuffer:
        """No frames. **Arguments:** `obs`, one observation, for the shapes and dtypes of its leaves.

        **Raises:** `ValueError` for an observation without one of the stacks.
        """
        for name, stack in self.stacks.items():
            shape = tuple(obs[name].shape) if isinstance(obs, dict) and name in obs else None
            if not shape or shape[-1] != stack.frames:
                problem = "is missing" if shape is None else f"has the shape {list(shape)}"
                raise ValueError(
                    f"the part {name!r} of an observation {problem}; a stack of {stack.frames} frames is needed, the "
                    "last axis of an array of a dict"
                )

        def blank(count: int) -> dict[str, jax.Array]:
            return {name: jnp.zeros((count, self.rows, *obs[name].shape[:-1]), obs[name].dtype) for name in self.stacks}

        return FrameBuffer(
            frames=blank(self.slots),
            finals=blank(self.ends),
            age=jnp.full((self.slots, self.rows), self.depth - 1, jnp.uint8),
            end=jnp.full((self.slots, self.rows), -1, jnp.int32),
            since=jnp.full((self.ends, self.rows), self.length, jnp.int32),
            next=jnp.int32(0),
            next_end=jnp.zeros(self.rows, jnp.int32),
            ended=jnp.zeros(self.rows, bool),
            readable=jnp.int32(0),
        )

    def without_stacks(self, obs: Any) -> Any:
        """An observation without its stacks."""
        return {name: x for name, x in obs.items() if name not in self.stacks}

    def add(self, buffer: FrameBuffer, obs: Any, next_obs: Any, ended: Bool[Array, "T rows"]) -> FrameBuffer:
        """The frames with those of `T` further steps.

        **Arguments:** `obs` and `next_obs`, leaves `[T, rows, ...]`; `ended`, whether a step was the last one of its
        episode, for whatever reason.
        """
        count = ended.shape[0]
        time = jnp.arange(count)[:, None]
        index = (buffer.next + jnp.arange(count + 1)) % self.slots

        def write(old, new):
            return old.at[index[: len(new)]].set(new, mode="promise_in_bounds", unique_indices=True)

        def newest(name):
            return jnp.concatenate([obs[name][..., -1], next_obs[name][-1:, ..., -1]])

        begins = jnp.concatenate([buffer.ended[None], ended[:-1]])
        begin = jax.lax.cummax(jnp.where(begins, time, -1), axis=0)
        earlier = buffer.age[(buffer.next - 1) % self.slots].astype(jnp.int32) + 1
        age = jnp.minimum(jnp.where(begin >= 0, time - begin, earlier + time), self.depth - 1)

        order, total = jnp.cumsum(ended, axis=0) - 1, jnp.sum(ended, axis=0)
        spot = (buffer.next_end + order) % self.ends
        is_stored = ended & (total - order <= self.ends)
        target = jnp.where(is_stored, spot, self.ends)

        def write_ends(old, new):
            scatter = jax.vmap(lambda x, i, y: x.at[i].set(y, mode="drop"), in_axes=1, out_axes=1)
            return scatter(old, target, new)

        since = jnp.minimum(buffer.since + count, self.length)
        after = write_ends(since, jnp.broadcast_to(count - 1 - time, ended.shape))
        replaced = write_ends(jnp.zeros(since.shape, bool), is_stored)
        lost = jnp.min(jnp.where(replaced, since, self.length))
        passed = jnp.min(jnp.where(ended & ~is_stored, count - 1 - time, self.length))
        return FrameBuffer(
            frames={name: write(self._before(buffer, name, obs[name]), newest(name)) for name in buffer.frames},
            finals={name: write_ends(x, next_obs[name][..., -1]) for name, x in buffer.finals.items()},
            age=write(buffer.age, age.astype(jnp.uint8)),
            end=write(buffer.end, jnp.where(ended, spot, -1)),
            since=after,
            next=(buffer.next + count) % self.slots,
            next_end=(buffer.next_end + total) % self.ends,
            ended=ended[-1],
            readable=jnp.minimum(jnp.minimum(buffer.readable + count, self.length), jnp.minimum(lost, passed)),
        )

    def _before(self, buffer: FrameBuffer, name: str, stacks: Array) -> Array:
        """The frames of a part with those before the first step of all in the slots before its own."""
        older, frames = jnp.moveaxis(stacks[0, ..., :-1], -1, 0), buffer.frames[name]
        slot = (buffer.next - len(older) + jnp.arange(len(older))) % self.slots
        earlier = jnp.where(buffer.readable == 0, older, _get(frames, slot))
        return frames.at[slot].set(earlier, mode="promise_in_bounds", unique_indices=True)

    def read(self, buffer: FrameBuffer, back: Int[Array, " *B"], row: Int[Array, " *B"]) -> tuple[Any, Any]:
        """The stacks of steps.

        **Arguments:** `back`, how many steps of its row follow each step, below `buffer.readable`; `row`.
        **Returns:** the stacks of `obs` and of `next_obs`: part -> `[*B, ..., F]`.
        """
        slot, axis = (buffer.next - 1 - back) % self.slots, back.ndim
        age, end = _get(buffer.age, slot, row).astype(jnp.int32)[..., None], _get(buffer.end, slot, row)
        obs, next_obs = {}, {}
        for name, stack in self.stacks.items():
            frames = buffer.frames[name]
            steps = jnp.arange(stack.frames - 1, -1, -1)
            x = _get(frames, (slot[..., None] - jnp.minimum(steps, age)) % self.slots, row[..., None])
            if stack.fill == "zeros":
                x = jnp.where(_expand_mask(steps <= age, x), x, jnp.zeros((), x.dtype))
            following = _get(frames, (slot + 1) % self.slots, row)
            final = _get(buffer.finals[name], jnp.maximum(end, 0), row)
            new = jnp.where(_expand_mask(end >= 0, final), final, following)
            later = jnp.concatenate([jax.lax.slice_in_dim(x, 1, None, axis=axis), jnp.expand_dims(new, axis)], axis)
            obs[name], next_obs[name] = jnp.moveaxis(x, axis, -1), jnp.moveaxis(later, axis, -1)
        return obs, next_obs

    def shard(self, buffer: FrameBuffer, split: Callable[[Any, int], Any], copied: Callable[[Any], Any]) -> FrameBuffer:
        """The frames on a mesh: rows are split, the rest is replicated. **Arguments:** as for `Replay.shard`."""
        parts = vars(buffer)
        by_row = split({name: parts[name] for name in ("frames", "finals", "age", "end", "since")}, 1)
        per_row = split({name: parts[name] for name in ("next_end", "ended")}, 0)
        return FrameBuffer(**by_row, **per_row, **copied({name: parts[name] for name in ("next", "readable")}))


def _get(x: Array, *index: Array) -> Array:
    return x.at[index].get(mode="promise_in_bounds")


def _expand_mask(mask: Array, x: Array) -> Array:
    """A mask of the leading axes of `x`, for all of its axes."""
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
