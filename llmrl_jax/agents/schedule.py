"""Episodes by number in a fixed number of rows: rows of episodes that have ended are given to the next ones.

`llmrl_jax.agents.demonstrations` and `llmrl kalm collect` use it, with programs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from envs_jax.resets import select
from llmrl_jax.agents.play import Rows


NO_EPISODE = -1
"""The number of an idle row."""


@dataclass(frozen=True)
class Programs:
    """What runs on the device; `B` is the number of rows."""

    start: Callable[[Any, Any], Rows]
    """From `given` and numbers, int32 `[B]`, to these episodes' first states."""
    go_on: Callable[[Any, Rows], tuple[Rows, dict[str, Any]]]
    """A few steps, from `given` and rows: `llmrl_jax.agents.play.watch`."""
    given: Any = ()
    """What both read, such as weights: an argument of the compiled programs, and no constant in them."""
    last: Callable[[Rows], Any] = lambda rows: ()
    """What is kept of rows whose episodes have ended, leaves `[B, ...]`; needs `watch(..., hold=True)`."""


@dataclass(frozen=True)
class Played:
    """An episode of `T` steps."""

    number: int
    steps: dict[str, Any]
    """The records of its steps, leaves `[T, ...]`."""
    last: Any
    """`Programs.last` of its row."""


def played(programs: Programs, episodes: int, rows: int) -> Iterator[Played]:
    """Play episodes `0 .. episodes - 1`, and yield them in that order as they end.

    When half of the rows are idle they are refilled, so that a step is rarely taken for rows that have ended. Episodes
    that depend on their number alone do not depend on `rows`.
    """
    start, go_on, renew = _compiled(programs)
    lanes = min(rows, episodes)
    numbers, following, done = np.arange(lanes, dtype=np.int32), lanes, 0
    parts: list[list[dict[str, Any]]] = [[] for _ in range(lanes)]
    waiting: dict[int, Played] = {}
    state = start(programs.given, numbers)
    while done < episodes:
        state, kept, last = go_on(programs.given, state)
        kept, last, over = jax.device_get((kept, last, state.over))
        for lane in np.flatnonzero(numbers != NO_EPISODE):
            live = int(kept["live"][:, lane].sum())
            parts[lane].append(jax.tree.map(lambda x, live=live, lane=lane: x[:live, lane], kept))
            if over[lane]:
                number = int(numbers[lane])
                whole = jax.tree.map(lambda *xs: np.concatenate(xs), *parts[lane])
                waiting[number] = Played(number, whole, jax.tree.map(lambda x, lane=lane: x[lane].copy(), last))
                numbers[lane], parts[lane] = NO_EPISODE, []
        while done in waiting:
            yield waiting.pop(done)
            done += 1
        idle = np.flatnonzero(numbers == NO_EPISODE)
        if following < episodes and 2 * len(idle) >= lanes:
            taken = idle[: episodes - following]
            numbers[taken] = np.arange(following, following + len(taken))
            following += len(taken)
            chosen = np.isin(np.arange(lanes), taken)
            state = renew(programs.given, state, np.where(chosen, numbers, 0).astype(np.int32), chosen)


def _compiled(programs: Programs) -> tuple[Any, Any, Any]:
    def go_on(given: Any, rows: Rows) -> tuple[Rows, dict[str, Any], Any]:
        rows, kept = programs.go_on(given, rows)
        return rows, kept, programs.last(rows)

    def renew(given: Any, rows: Rows, numbers: Any, chosen: Any) -> Rows:
        return select(chosen, programs.start(given, numbers), rows)

    return jax.jit(programs.start), jax.jit(go_on), jax.jit(renew)
