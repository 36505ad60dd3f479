"""Recorded steps as arrays on the device: one by one, or as episodes of one length with padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int


class DataError(ValueError):
    """Data that cannot be used; the message says which column and row, what is wrong, and what to do."""


@struct.dataclass
class Transitions:
    """`N` steps, those of an episode one after the other; leaves `[N, ...]`."""

    obs: Any
    """An array, or nested dicts of arrays."""
    action: jax.Array
    reward: Float[Array, " N"]
    next_obs: Any
    """The observation that the step reached, before any reset; as `obs`."""
    terminated: Bool[Array, " N"]
    """Whether nothing follows: a value function is 0 there."""
    truncated: Bool[Array, " N"]
    """Whether the episode was cut there, by a time-out or because recording stopped."""
    text: Any = ()
    """What is said at the step: numbers of strings, captions, tokens or embeddings; `()` for nothing."""
    goal: Any = ()
    """What the step is meant for, as `text`; `()` for nothing."""

    def __len__(self) -> int:
        return self.reward.shape[0]

    def take(self, index: Int[Array, " *B"]) -> Transitions:
        """The steps of these numbers: leaves `[*B, ...]`."""
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), self)


@struct.dataclass
class Trajectories:
    """`E` episodes with room for `T` steps each, as `Transitions`; leaves `[E, T, ...]`, zeros behind an episode."""

    obs: Any
    action: jax.Array
    reward: Float[Array, "E T"]
    next_obs: Any
    terminated: Bool[Array, "E T"]
    truncated: Bool[Array, "E T"]
    length: Int[Array, " E"]
    """Steps of each episode."""
    text: Any = ()
    goal: Any = ()

    def __len__(self) -> int:
        return self.length.shape[0]

    @property
    def mask(self) -> Bool[Array, "E T"]:
        """Which places hold a step."""
        return jnp.arange(self.reward.shape[1]) < self.length[:, None]

    def take(self, index: Int[Array, " *B"]) -> Trajectories:
        """The episodes of these numbers: leaves `[*B, ...]`."""
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), self)


FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "text", "goal")
"""What both have in common."""


def episode_lengths(terminated: Any, truncated: Any) -> np.ndarray:
    """The numbers of steps of consecutive episodes, int64, from the ends of steps `[N]`.

    **Raises:** `DataError` where the last episode has no end.
    """
    ends = np.asarray(terminated) | np.asarray(truncated)
    if not len(ends) or not ends[-1]:
        raise DataError(
            f"the last of {len(ends)} steps neither terminates nor truncates its episode: set truncated there, as "
            "recording stopped, or leave the episode out"
        )
    return np.diff(np.flatnonzero(ends), prepend=-1)


def to_trajectories(transitions: Transitions, length: int | None = None) -> Trajectories:
    """Steps as episodes.

    **Arguments:** `transitions`; `length`, the room for each episode (None: that of the longest).
    **Raises:** `DataError` where an episode has more steps than that, or the last one has no end.
    """
    lengths = episode_lengths(transitions.terminated, transitions.truncated)
    longest = int(lengths.max())
    room = longest if length is None else length
    if longest > room:
        raise DataError(
            f"episode {int(lengths.argmax())} has {longest} steps, more than the length of {room}: raise the length"
        )
    starts = np.cumsum(lengths) - lengths
    place = np.arange(room)
    inside = place < lengths[:, None]
    index = jnp.asarray(np.where(inside, starts[:, None] + place, 0), jnp.int32)
    mask = jnp.asarray(inside)

    def spread(x):
        y = x.at[index].get(mode="promise_in_bounds")
        return jnp.where(mask.reshape(mask.shape + (1,) * (y.ndim - 2)), y, jnp.zeros((), y.dtype))

    parts = {name: jax.tree.map(spread, getattr(transitions, name)) for name in FIELDS}
    return Trajectories(**parts, length=jnp.asarray(lengths, jnp.int32))


def to_transitions(trajectories: Trajectories) -> Transitions:
    """Episodes as steps, without the padding.

    **Raises:** `DataError` where an episode does not end with its last step, or before it.
    """
    check_episodes(trajectories)
    index = jnp.asarray(np.flatnonzero(np.asarray(trajectories.mask)), jnp.int32)

    def joined(x):
        return x.reshape(-1, *x.shape[2:]).at[index].get(mode="promise_in_bounds")

    return Transitions(**{name: jax.tree.map(joined, getattr(trajectories, name)) for name in FIELDS})


def check_episodes(trajectories: Trajectories) -> None:
    """Check that every episode has steps, and ends with its last one and not before. **Raises:** `DataError`."""
    length, room = np.asarray(trajectories.length), trajectories.reward.shape[1]
    ends = np.asarray((trajectories.terminated | trajectories.truncated) & trajectories.mask)
    for i in np.flatnonzero((length < 1) | (length > room)):
        raise DataError(f"episode {i} has a length of {length[i]}; from 1 to {room}, the room for its steps, is needed")
    first = np.where(ends.any(axis=1), ends.argmax(axis=1), -1)
    for i in np.flatnonzero(first != length - 1):
        where = f"ends at step {first[i]}" if first[i] >= 0 else "has no step that terminates or truncates it"
        raise DataError(f"episode {i} of {length[i]} steps {where}; its last step, {length[i] - 1}, must be its end")
