"""Recorded steps as arrays on the device: flat, or as episodes padded to one length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from llmrl_jax.core.checks import nearest


class DataError(ValueError):
    """Data that cannot be used; the message names the column and row, the fault and the remedy."""


def missing_data(path: Path) -> FileNotFoundError:
    """The error of a file or folder of data that is not there, naming the nearest."""
    neighbours = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
    return FileNotFoundError(f"there are no data at {path}{nearest(path.name, neighbours)}")


@struct.dataclass
class Transitions:
    """`N` steps, with the steps of an episode in order; leaves `[N, ...]`. Learners hold steps in other shapes, such as
    `[T, N, ...]` for `T` steps of `N` environments.

    Rewards are float32, flags bool; actions integers `[N]` or float32 `[N, D]`.

    **Example:**

    ```pycon
    >>> import jax.numpy as jnp, llmrl_jax as lr
    >>> obs, ends = jnp.arange(4.0)[:, None], jnp.array([False, True, False, True])
    >>> data = lr.Transitions(obs, jnp.array([0, 1, 0, 1]), jnp.ones(4), obs + 1, ends, jnp.zeros(4, bool))
    >>> len(data), lr.data.episode_lengths(data.terminated, data.truncated).tolist()
    (4, [2, 2])
    ```
    """

    obs: Any
    """An array, or nested dicts of arrays."""
    action: jax.Array
    reward: Float[Array, " N"]
    next_obs: Any
    """The observation after the step, before any reset; as `obs`."""
    terminated: Bool[Array, " N"]
    """Whether the step ends in a terminal state, whose value is 0; in learning, whether nothing is bootstrapped."""
    truncated: Any = ()
    """bool `[N]`, whether the episode was cut off after the step, by a time-out or because recording stopped; `()` in a
    replay buffer of single steps."""
    text: Any = ()
    """The text of the step: indices of strings, captions, tokens or embeddings; `()`: none."""
    goal: Any = ()
    """The goal of the step, as `text`; `()`: none."""
    returns: Any = ()
    """For a bonus, the returns of its stream from the step on; `()` in data, and from a learner without a stream."""

    def __len__(self) -> int:
        return self.reward.shape[0]

    def take(self, index: Int[Array, " *B"]) -> Transitions:
        """Steps at these indices: leaves `[*B, ...]`."""
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), self)


@struct.dataclass
class Trajectories:
    """`E` episodes padded to `T` steps each, as `Transitions`; leaves `[E, T, ...]`, zeros after an episode."""

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
        """Entries that hold a step."""
        return jnp.arange(self.reward.shape[1]) < self.length[:, None]

    def take(self, index: Int[Array, " *B"]) -> Trajectories:
        """Episodes at these indices: leaves `[*B, ...]`."""
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), self)


FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "text", "goal")
"""The fields of data in both classes."""


def episode_lengths(terminated: Any, truncated: Any) -> np.ndarray:
    """Numbers of steps of consecutive episodes, int64, from the flags of steps `[N]`.

    **Raises:** `DataError` if the last episode has no end.
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

    **Arguments:** `transitions`; `length`, the padded length (None: that of the longest episode).
    **Raises:** `DataError` if an episode has more steps, or the last one has no end.
    """
    lengths = episode_lengths(transitions.terminated, transitions.truncated)
    longest = int(lengths.max())
    room = longest if length is None else length
    if longest > room:
        raise DataError(
            f"episode {int(lengths.argmax())} has {longest} steps, more than the length of {room}: raise the length"
        )
    starts = np.cumsum(lengths) - lengths
    step = np.arange(room)
    inside = step < lengths[:, None]
    index = jnp.asarray(np.where(inside, starts[:, None] + step, 0), jnp.int32)
    mask = jnp.asarray(inside)

    def spread(x):
        y = x.at[index].get(mode="promise_in_bounds")
        return jnp.where(mask.reshape(mask.shape + (1,) * (y.ndim - 2)), y, jnp.zeros((), y.dtype))

    parts = {name: jax.tree.map(spread, getattr(transitions, name)) for name in FIELDS}
    return Trajectories(**parts, length=jnp.asarray(lengths, jnp.int32))


def to_transitions(trajectories: Trajectories) -> Transitions:
    """Episodes as steps, without the padding.

    **Raises:** `DataError` if an episode does not end with its last step, or ends before it.
    """
    check_episodes(trajectories)
    index = jnp.asarray(np.flatnonzero(np.asarray(trajectories.mask)), jnp.int32)

    def joined(x):
        return jnp.asarray(x).reshape(-1, *x.shape[2:]).at[index].get(mode="promise_in_bounds")

    return Transitions(**{name: jax.tree.map(joined, getattr(trajectories, name)) for name in FIELDS})


def check_episodes(trajectories: Trajectories) -> None:
    """Check that every episode has steps, and ends with its last one only. **Raises:** `DataError`."""
    length, room = np.asarray(trajectories.length), trajectories.reward.shape[1]
    ends = np.asarray((trajectories.terminated | trajectories.truncated) & trajectories.mask)
    for i in np.flatnonzero((length < 1) | (length > room)):
        raise DataError(f"episode {i} has a length of {length[i]}; from 1 to {room}, the room for its steps, is needed")
    first = np.where(ends.any(axis=1), ends.argmax(axis=1), -1)
    for i in np.flatnonzero(first != length - 1):
        ending = f"ends at step {first[i]}" if first[i] >= 0 else "has no step that terminates or truncates it"
        raise DataError(f"episode {i} of {length[i]} steps {ending}; its last step, {length[i] - 1}, must be its end")
