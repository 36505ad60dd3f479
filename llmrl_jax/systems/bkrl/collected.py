"""Collected episodes: on disk as parquet or in the published npy layout, in memory as arrays, sampled as windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from llmrl_jax.core.files import digest_of
from llmrl_jax.data.parquet import read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Transitions, episode_lengths
from llmrl_jax.rl.shaping import NO_ACTION


FLAT = ("action", "reward", "terminated", "truncated")
"""What `Collected` holds of every step."""


@dataclass(frozen=True)
class Windows:
    """`B` windows of `n` actions; `n + 1` observations each."""

    obs: Any
    """Leaves `[B, n + 1, ...]`, the newest last."""
    action: Int[np.ndarray, "B n"]
    time: Int[np.ndarray, " B"]
    """The step of the episode at which the window begins."""
    episode: Int[np.ndarray, " B"]
    followed: Bool[np.ndarray, " B"]
    """Whether a step of the episode follows the last observation. None follows a terminal state; what would follow a
    truncation is unknown."""
    to_come: Float[np.ndarray, " B"]
    """Discounted sum of the rewards after the last observation; 0 if no step follows."""
    earned: Float[np.ndarray, " B"]
    """Discounted sum of the rewards from the first step of the window on."""

    def __len__(self) -> int:
        return len(self.time)


def begun(windows: Windows, missing: Int[np.ndarray, " B"]) -> Windows:
    """Windows as shaping shows them near the start of an episode: `NO_ACTION` in the place of the first `missing`
    actions of each, and the first observation after these in the place of those before it."""
    place = np.arange(windows.action.shape[1] + 1)
    rows, first = np.arange(len(windows))[:, None], np.asarray(missing)[:, None]
    obs = jax.tree.map(lambda x: x[rows, np.maximum(place, first)], windows.obs)
    action = np.where(place[:-1] < first, NO_ACTION, windows.action).astype(windows.action.dtype)
    return dataclasses.replace(windows, obs=obs, action=action)


@dataclass(frozen=True)
class Collected:
    """`E` episodes of `S` steps in all, in order."""

    obs: Any
    """Leaves `[S + E, ...]`: those of each episode before every step, and at its end."""
    action: Int[np.ndarray, " S"]
    reward: Float[np.ndarray, " S"]
    terminated: Bool[np.ndarray, " S"]
    truncated: Bool[np.ndarray, " S"]
    digest: str
    """SHA-256 of the files that they were read from."""

    @cached_property
    def lengths(self) -> Int[np.ndarray, " E"]:
        """Steps of each episode."""
        return episode_lengths(self.terminated, self.truncated)

    @cached_property
    def starts(self) -> Int[np.ndarray, " E"]:
        """The first step of each episode. Its first observation is at `starts[i] + i`."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def split(self, share: float) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " B"]]:
        """Episodes to show and episodes to test with: every `1 / share`-th one is for tests.

        **Raises:** `DataError` for so few episodes that none would be for tests.
        """
        every = max(2, round(1 / share))
        if len(self) < every:
            raise DataError(
                f"there are {len(self)} episodes; at least {every} are needed, so that one is for tests: collect more"
            )
        held = np.arange(len(self)) % every == every - 1
        return np.flatnonzero(~held), np.flatnonzero(held)

    def sample(
        self, rng: np.random.Generator, count: int, actions: int, episodes: Any = None, *, gamma: float = 0.99
    ) -> Windows:
        """Windows of `actions` steps: an episode with so many steps, uniformly, and a place in it, uniformly.

        **Arguments:** `episodes`, the numbers of those to draw from (None: all); `gamma`, discount of rewards to come.
        **Raises:** `DataError` if no episode is long enough.
        """
        every = np.arange(len(self)) if episodes is None else np.asarray(episodes)
        count_all, every = len(every), every[self.lengths[every] >= actions]
        if not len(every):
            raise DataError(
                f"none of {count_all} episodes has {actions} steps: collect longer ones, or take a shorter window"
            )
        episode = rng.choice(every, count)
        time = rng.integers(0, self.lengths[episode] - actions + 1)
        return self.at(episode, time, actions, gamma=gamma)

    def at(self, episode: Any, time: Any, actions: int, *, gamma: float = 0.99) -> Windows:
        """The windows that begin at given steps of given episodes."""
        episode, time = np.asarray(episode), np.asarray(time)
        first = self.starts[episode] + time
        steps = first[:, None] + np.arange(actions)
        places = (first + episode)[:, None] + np.arange(actions + 1)
        end = time + actions
        last = self.starts[episode] + end
        followed = end < self.lengths[episode]
        to_come = self.to_come(gamma)
        return Windows(
            obs=jax.tree.map(lambda x: x[places], self.obs),
            action=self.action[steps],
            time=time,
            episode=episode,
            followed=followed,
            to_come=np.where(followed, to_come[np.minimum(last, len(to_come) - 1)], 0.0).astype(np.float32),
            earned=np.where(time == self.lengths[episode], 0.0, to_come[np.minimum(first, len(to_come) - 1)]).astype(
                np.float32
            ),
        )

    def to_come(self, gamma: float) -> Float[np.ndarray, " S"]:
        """Discounted sum of the rewards from each step on, in its episode."""
        total, found = 0.0, np.zeros(len(self.reward))
        ends = self.terminated | self.truncated
        for i in range(len(self.reward) - 1, -1, -1):
            total = float(self.reward[i]) + (0.0 if ends[i] else gamma * total)
            found[i] = total
        return found

    def transitions(self) -> Transitions:
        """The same as steps, with the observation that each reached."""
        number = np.repeat(np.arange(len(self)), self.lengths)
        before = np.arange(len(self.action)) + number
        take = lambda index: jax.tree.map(lambda x: x[index], self.obs)  # noqa: E731
        flags = self.terminated, self.truncated
        parts = (take(before), self.action, self.reward, take(before + 1), *flags)
        return Transitions(*jax.tree.map(jnp.asarray, parts))


def of_transitions(steps: Transitions, digest: str = "") -> Collected:
    """Whole episodes, from their steps."""
    host = jax.tree.map(np.asarray, steps)
    lengths = episode_lengths(host.terminated, host.truncated)
    ends = np.cumsum(lengths)

    def joined(before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.insert(before, ends, after[ends - 1], axis=0)

    obs = jax.tree.map(joined, host.obs, host.next_obs)
    action = host.action.astype(np.int32)
    return Collected(obs, action, host.reward.astype(np.float32), host.terminated, host.truncated, digest)


def write(path: Path, data: Collected) -> None:
    """Write episodes as parquet, atomically."""
    write_parquet(path, data.transitions())


def read(path: str | Path) -> Collected:
    """Read a parquet file of `write`, or all of a folder, in the order of their names.

    **Raises:** `FileNotFoundError`; `DataError` for files that are none, are damaged, or do not belong together.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted((path / "collected").glob("*.parquet")) or sorted(path.glob("*.parquet"))
        if not files:
            raise FileNotFoundError(f"there are no collected episodes in {path}: `llmrl bkrl collect` writes them")
    else:
        files = [path]
    parts = []
    for file in files:
        steps = read_parquet(file).data
        if not isinstance(steps, Transitions):
            raise DataError(f"{file} has no steps of episodes; a file of `llmrl bkrl collect` is needed")
        parts.append(of_transitions(steps))
    return joined(parts, digest_of(*files), [str(file) for file in files])


def joined(parts: Sequence[Collected], digest: str, names: Sequence[str] = ()) -> Collected:
    """The episodes of several parts. **Raises:** `DataError` if their observations have other parts or shapes."""
    first = shapes(parts[0].obs)
    for i, part in enumerate(parts):
        if shapes(part.obs) != first:
            which = names[i] if names else f"part {i}"
            raise DataError(f"{which} has observations {shapes(part.obs)}, and the first part {first}: read one world")
    join: Any = lambda *xs: np.concatenate(xs)  # noqa: E731
    obs = jax.tree.map(join, *(part.obs for part in parts))
    flat = {name: join(*(getattr(part, name) for part in parts)) for name in FLAT}
    return Collected(obs=obs, **flat, digest=digest)


def shapes(obs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The parts of observations, with their shapes and types."""
    return {name: [list(x.shape[1:]), np.dtype(x.dtype).name] for name, x in sorted(obs.items())}
