"""Columns of other libraries, completed: flags as 0 and 1, columns `[N, 1]`, no next observations, no time-outs.

D4RL's files have `timeouts` and mostly no `next_observations`; what its `qlearning_dataset` returns has next
observations and no time-outs. Learners need next observations, and no offline learner reads `truncated`; episodes do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmrl_jax.core.checks import nearest
from llmrl_jax.data.columns import FIELDS, Columns
from llmrl_jax.data.transitions import DataError


EPISODE = "episode"
"""A column with the number of the episode of each step, which need not start at 0."""
RTOL, ATOL = 1e-5, 1e-6
"""How far the next observation of a step and the observation of the following one may differ within an episode."""


def parse_names(text: str) -> dict[str, str]:
    """Names of columns from `OURS=THEIRS,...`, as in `obs=observation.state,reward=next.reward`.

    **Returns:** our name -> theirs, as the readers take them. **Raises:** `DataError` for another form, a name that is
    not ours, or one that occurs twice.
    """
    names: dict[str, str] = {}
    for part in filter(None, (x.strip() for x in text.split(","))):
        ours, equals, theirs = (x.strip() for x in part.partition("="))
        if not equals or not ours or not theirs:
            raise DataError(f"data-names has {part!r}; OURS=THEIRS is needed, as in obs=observations,reward=rewards")
        if ours.partition(".")[0] not in (*FIELDS, EPISODE):
            swapped = theirs.partition(".")[0] in FIELDS
            hint = f"; write {theirs}={ours}" if swapped else nearest(ours, [*FIELDS, EPISODE])
            raise DataError(
                f"data-names has {part!r}, and {ours!r} is none of our names{hint} ({', '.join((*FIELDS, EPISODE))})"
            )
        if ours in names:
            raise DataError(f"data-names has {ours!r} twice, as {names[ours]!r} and as {theirs!r}")
        names[ours] = theirs
    return names


def completed(columns: Mapping[str, np.ndarray], where: str) -> Columns:
    """The columns of steps `[N, ...]`, with our names, in the types that are needed, and with those that can be
    derived:

    * Flags may be numbers 0 and 1, rewards of any type of numbers; rewards, flags and whole-number actions `[N, 1]`.
    * Without `truncated`, a step ends its episode where `episode` changes; else where its next observation is not the
      observation of the following step. Such an end is a time-out if it is not terminal. So is that of the last step.
    * Without `next_obs`, it is the following observation of the episode, as in D4RL's `qlearning_dataset`. The last
      step of an episode that timed out, or was not over when recording stopped, has none and is left out; the episode
      is then cut off after the step before. A terminal step, whose next observation targets do not read, gets its own
      observation.

    Columns with `length` (padded episodes), or that lack something else, are returned as they are.
    **Raises:** `DataError` if neither `next_obs` nor the ends of episodes are there, or if no step remains.
    """
    made = {name: _typed(name, np.asarray(column)) for name, column in columns.items()}
    parts = [name for name in made if name.partition(".")[0] == "obs"]
    rows = {len(x) if x.ndim else -1 for name, x in made.items() if name.partition(".")[0] in (*FIELDS, EPISODE)}
    if "length" in made or not parts or "terminated" not in made or len(rows) != 1 or rows & {0, -1}:
        return made
    has_next = any(name.partition(".")[0] == "next_obs" for name in made)
    if "truncated" not in made:
        ends = _ends(made, parts, where, has_next)
        made["truncated"] = ends & (made["terminated"] == 0)
    return made if has_next else _followed(made, parts, where)


def _typed(name: str, column: np.ndarray) -> np.ndarray:
    flag, number = name in ("terminated", "truncated"), column.dtype.kind in "biuf"
    whole = name == "action" and column.dtype.kind in "iu"
    if (flag or whole or name == "reward") and column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if flag and number and np.isin(column, (0, 1)).all():
        return column.astype(bool)
    return column.astype(np.float32) if name == "reward" and column.dtype.kind in "biu" else column


def _ends(columns: Columns, parts: list[str], where: str, has_next: bool) -> np.ndarray:
    """Which steps are the last of their episodes, bool `[N]`."""
    last = np.ones(1, bool)
    if EPISODE in columns:
        return np.concatenate([columns[EPISODE][1:] != columns[EPISODE][:-1], last])
    if not has_next:
        raise DataError(
            f"{where} has no truncated (D4RL: timeouts) and no next_obs, so nothing says where an episode was cut off: "
            "name one of them, or episode, the number of each step's episode (--data-names OURS=THEIRS)"
        )
    away = np.zeros(len(columns["terminated"]) - 1, bool)
    for name in parts:
        after, here = columns.get("next_" + name), columns[name]
        if after is not None and after.shape == here.shape and here.dtype.kind in "biuf":
            same = np.isclose(after[:-1], here[1:], RTOL, ATOL) if here.dtype.kind == "f" else after[:-1] == here[1:]
            away |= ~same.reshape(len(away), -1).all(axis=1)
    return np.concatenate([away, last])


def _followed(columns: Columns, parts: list[str], where: str) -> Columns:
    """With the following observation of the episode as `next_obs`, without the steps that have none."""
    terminated, truncated = columns["terminated"].astype(bool), columns["truncated"].astype(bool)
    unfinished = truncated & ~terminated
    unfinished[-1] |= not terminated[-1]
    cut = np.append(unfinished[1:], False) & ~(terminated | truncated)
    kept = ~unfinished
    if not kept.any():
        raise DataError(f"{where} has no next_obs, and no step is followed by another one of its episode")
    made = {name: column[kept] for name, column in columns.items()}
    made["truncated"] = (truncated | cut)[kept]
    for name in parts:
        here = columns[name]
        own = terminated.reshape(-1, *[1] * (here.ndim - 1))
        made["next_" + name] = np.where(own, here, np.concatenate([here[1:], here[-1:]]))[kept]
    return made
