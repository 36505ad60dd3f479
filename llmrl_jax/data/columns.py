"""Data as named columns of NumPy arrays, as files hold them, with all checks on reading and writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.checks import nearest
from llmrl_jax.data.transitions import FIELDS, DataError, Trajectories, Transitions, check_episodes


Columns = dict[str, np.ndarray]

D4RL_NAMES: Mapping[str, str] = {
    "obs": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_obs": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
}
"""Our names -> those of D4RL's files, for `names` of the readers."""

REQUIRED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
SPOKEN = ("text", "goal")
"""The columns that may hold strings in files of other libraries, which are then left out."""

_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""Types that devices lack -> the types they are converted to, if every number fits."""

DTYPES = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "float16", "float32")


def to_columns(data: Transitions | Trajectories) -> Columns:
    """Columns of data, checked; nested observations have dotted names, such as `obs.image`.

    **Raises:** `DataError`, see `from_columns`.
    """
    columns: Columns = {}
    for name in FIELDS:
        columns |= {k: np.asarray(x) for k, x in _flat(getattr(data, name), name)}
    if isinstance(data, Trajectories):
        columns["length"] = np.asarray(data.length)
    _check(columns, "these data")
    if isinstance(data, Trajectories):
        check_episodes(data)
    return columns


def from_columns(
    columns: Mapping[str, np.ndarray], source: str, present: Iterable[str] = ()
) -> Transitions | Trajectories:
    """Columns as arrays on the device: `Trajectories` if there is a column `length`, else `Transitions`.

    Columns with other names are ignored, and so are a `text` and a `goal` of strings, which devices do not hold.
    `float64`, `int64` and `uint64` become types of the device, of 32 bits.

    **Arguments:** `columns`; `source`, their name in messages; `present`, the names of all columns of the file, for
    messages (default: those of `columns`).
    **Raises:** `DataError` for a missing column, a wrong number of rows, a wrong type, NaN or infinity, a `next_obs`
    that differs in form from `obs`, and padded episodes without an end.
    """
    used: Columns = {}
    for name, column in columns.items():
        if name.partition(".")[0] not in FIELDS and name != "length":
            continue
        column = np.asarray(column)
        if column.dtype.kind not in "UT" or name not in SPOKEN:
            used[name] = _narrow(column, name, source)
    _check(used, source, present or columns)
    parts = {name: _nested(used, name) for name in FIELDS}
    if "length" not in used:
        return Transitions(**parts)
    data = Trajectories(**parts, length=jnp.asarray(used["length"]))
    check_episodes(data)
    return data


def own_names(names: Mapping[str, str] | None) -> dict[str, str]:
    """The names among `names` that are not D4RL's, which every reader of several formats knows."""
    return {name: theirs for name, theirs in (names or {}).items() if D4RL_NAMES.get(name) != theirs}


def renamed(
    columns: Mapping[str, Any], names: Mapping[str, str] | None, source: str, present: Iterable[str] = ()
) -> dict[str, Any]:
    """Columns by our names. **Arguments:** `names`, our name -> the name in `columns`, for columns that differ: a whole
    name, or what comes before its first dot; `source`, their name in messages; `present`, the names of all columns of
    the file (default: those of `columns`).

    **Raises:** `DataError` for a column that is there under both names, and for a name, other than D4RL's, that no
    column has: where it is misspelt, the right column would not be read.
    """
    heads = sorted({*columns, *present, *(name.partition(".")[0] for name in columns)})
    for name, theirs in own_names(names).items():
        if theirs not in heads:
            raise DataError(
                f"{source} has no column {theirs!r}, which the names of columns give as {name}"
                f"{nearest(theirs, heads)}; it has {', '.join(heads)[:300] or 'no column'}"
            )
    ours = {theirs: name for name, theirs in (names or {}).items()}
    result: dict[str, Any] = {}
    for name, column in columns.items():
        head, *tail = name.split(".")
        our_name = ours[name] if name in ours else ".".join([ours.get(head, head), *tail])
        if our_name in result:
            raise DataError(f"the data have {our_name!r} twice, also as {name!r}: leave one of them out")
        result[our_name] = column
    return result


def _flat(tree: Any, name: str) -> list[tuple[str, Any]]:
    """The leaves of nested dicts by dotted names."""
    if isinstance(tree, Mapping):
        if dotted := [key for key in tree if "." in key]:
            raise DataError(f"{name} has the key {dotted[0]!r}; files separate nested keys by dots, so rename it")
        return [pair for key in sorted(tree) for pair in _flat(tree[key], f"{name}.{key}")]
    if isinstance(tree, tuple) and not tree:
        return []
    if isinstance(tree, (jax.Array, np.ndarray)):
        return [(name, tree)]
    raise DataError(f"{name} is {type(tree).__name__}; files hold arrays and nested dicts of arrays")


def _nested(columns: Columns, name: str) -> Any:
    """An array, nested dicts of arrays, or `()`, from the columns whose names start with `name`."""
    if name in columns:
        return jnp.asarray(columns[name])
    tree: Any = {}
    for key, column in columns.items():
        head, *tail = key.split(".")
        if head == name:
            inner = tree
            for part in tail[:-1]:
                inner = inner.setdefault(part, {})
            inner[tail[-1]] = jnp.asarray(column)
    return tree or ()


def _narrow(column: np.ndarray, name: str, source: str) -> np.ndarray:
    column = column.astype(column.dtype.newbyteorder("="), copy=False)
    dtype = _NARROWED.get(str(column.dtype))
    if dtype is None:
        return column
    with np.errstate(over="ignore"):  # overflow to infinity is refused later
        narrow = column.astype(dtype)
    if column.dtype.kind != "f" and np.any(narrow != column):
        raise DataError(f"{source}: {name} has numbers that do not fit {dtype}, which is what devices have")
    return narrow


def _check(columns: Columns, source: str, present: Iterable[str] = ()) -> None:
    heads = {name.partition(".")[0] for name in columns}
    missing = [name for name in REQUIRED if name not in heads]
    if missing:
        present_names = sorted(present or columns)
        hint = nearest(missing[0], sorted(set(present_names) - set(REQUIRED)))
        raise DataError(
            f"{source} has no {', '.join(missing)}{hint}; it has {', '.join(present_names)[:300] or 'no column'} "
            f"(name columns "
            "with --data-names OURS=THEIRS, in Python `names`)"
        )
    ambiguous = sorted(name for name in columns if name.partition(".")[0] in columns and "." in name)
    if ambiguous:
        raise DataError(f"{source} has {ambiguous[0]} beside {ambiguous[0].partition('.')[0]}; one of them is needed")
    lead = columns["reward"].shape
    axes = 2 if "length" in columns else 1
    if len(lead) != axes:
        axes_text = "[episodes, steps]" if axes == 2 else "[steps]"
        raise DataError(f"{source}: reward has the shape {list(lead)}; {axes_text} is needed")
    if not lead[0]:
        raise DataError(f"{source} has no {'episode' if axes == 2 else 'step'}; at least 1 is needed")
    for name, column in columns.items():
        shape = lead[:1] if name == "length" else lead
        if (
            column.shape[: len(shape)] != shape
            or name in ("terminated", "truncated", "length")
            and (column.ndim != len(shape))
        ):
            raise DataError(
                f"{source}: {name} has the shape {list(column.shape)}, but reward has {list(lead)}: each step is a row"
            )
        _check_type(name, column, source)
    observed = {name for name in columns if name.partition(".")[0] == "obs"}
    reached = {name.removeprefix("next_") for name in columns if name.partition(".")[0] == "next_obs"}
    for name in sorted(observed | reached):
        first, second = (
            f"{columns[key].dtype}{list(columns[key].shape)}" if key in columns else "missing"
            for key in (name, "next_" + name)
        )
        if first != second:
            raise DataError(f"{source}: {name} is {first}, but next_{name} is {second}; they must be equal")


def _check_type(name: str, column: np.ndarray, source: str) -> None:
    kinds = {"reward": "float32", "terminated": "bool", "truncated": "bool", "length": "int32"}
    dtype = kinds.get(name)
    if column.dtype == object:
        raise DataError(
            f"{source}: {name} holds Python objects (lists of unequal lengths?); an array of numbers is needed"
        )
    if dtype and column.dtype != dtype or str(column.dtype) not in DTYPES:
        raise DataError(f"{source}: {name} is {column.dtype}; {dtype or 'one of ' + ', '.join(DTYPES)} is needed")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        row = np.argwhere(~np.isfinite(column))[0]
        raise DataError(f"{source}: {name}{row.tolist()} is {column[tuple(row)]}; a finite number is needed")


# --- columns of other libraries ---------------------------------------------------------------------------------------


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


def completed(columns: Mapping[str, np.ndarray], source: str) -> Columns:
    """The columns of steps `[N, ...]`, with our names, in the types that are needed, and with those that can be
    derived:

    * Flags may be numbers 0 and 1, rewards of any type of numbers; rewards, flags and whole-number actions `[N, 1]`.
    * A step ends its episode where `episode` changes. Without `episode` and `truncated`, it does where its next
      observation is not the observation of the following step. Such an end is a time-out if it is not terminal. So is
      that of the last step, without `truncated`.
    * Without `next_obs`, it is the following observation of the episode, as in D4RL's `qlearning_dataset`. The last
      step of an episode that timed out, or was not over when recording stopped, has none and is left out; the episode
      is then cut off after the step before. A terminal step, whose next observation targets do not read, gets its own
      observation.

    Columns with `length` (padded episodes), or that lack something else, are returned as they are.
    **Raises:** `DataError` if neither `next_obs` nor the ends of episodes are there, or if no step remains.
    """
    padded = "length" in columns
    typed = {name: _typed(name, np.asarray(column), 2 if padded else 1) for name, column in columns.items()}
    parts = [name for name in typed if name.partition(".")[0] == "obs"]
    rows = {len(x) if x.ndim else -1 for name, x in typed.items() if name.partition(".")[0] in (*FIELDS, EPISODE)}
    if padded or not parts or "terminated" not in typed or len(rows) != 1 or rows & {0, -1}:
        return typed
    has_next = any(name.partition(".")[0] == "next_obs" for name in typed)
    if "truncated" not in typed:
        ends = _ends(typed, parts, source, has_next)
        typed["truncated"] = ends & (typed["terminated"] == 0)
    elif EPISODE in typed and typed["truncated"].dtype == bool and typed["truncated"].ndim == 1:
        # recording stopped within an episode, and went on with another
        ends = _ends(typed, parts, source, has_next) & (typed["terminated"] == 0)
        typed["truncated"] = typed["truncated"] | np.append(ends[:-1], False)
    return typed if has_next else _followed(typed, parts, source)


def _typed(name: str, column: np.ndarray, axes: int) -> np.ndarray:
    """A column in the type that is needed. **Arguments:** `axes`, those of a reward."""
    flag, number = name in ("terminated", "truncated"), column.dtype.kind in "biuf"
    is_discrete = name == "action" and column.dtype.kind in "iu"
    if (flag or is_discrete or name in ("reward", EPISODE)) and column.ndim == axes + 1 and column.shape[-1] == 1:
        column = column[..., 0]
    if flag and number and np.isin(column, (0, 1)).all():
        return column.astype(bool)
    return column.astype(np.float32) if name == "reward" and number else column


def _ends(columns: Columns, parts: list[str], source: str, has_next: bool) -> np.ndarray:
    """Last steps of their episodes, bool `[N]`."""
    last = np.ones(1, bool)
    if EPISODE in columns:
        return np.concatenate([columns[EPISODE][1:] != columns[EPISODE][:-1], last])
    if not has_next:
        raise DataError(
            f"{source} has no truncated (D4RL: timeouts) and no next_obs, so nothing says where an episode was cut "
            "off: "
            "name one of them, or episode, the number of each step's episode (--data-names OURS=THEIRS)"
        )
    away = np.zeros(len(columns["terminated"]) - 1, bool)
    for name in parts:
        after, current = columns.get("next_" + name), columns[name]
        if after is not None and after.shape == current.shape and current.dtype.kind in "biuf":
            is_same = (
                np.isclose(after[:-1], current[1:], RTOL, ATOL)
                if current.dtype.kind == "f"
                else after[:-1] == current[1:]
            )
            away |= ~is_same.reshape(len(away), -1).all(axis=1)
    return np.concatenate([away, last])


def _followed(columns: Columns, parts: list[str], source: str) -> Columns:
    """With the following observation of the episode as `next_obs`, without the steps that have none."""
    terminated, truncated = columns["terminated"].astype(bool), columns["truncated"].astype(bool)
    unfinished = truncated & ~terminated
    unfinished[-1] |= not terminated[-1]
    cut = np.append(unfinished[1:], False) & ~(terminated | truncated)
    has_next_ = ~unfinished
    if not has_next_.any():
        raise DataError(f"{source} has no next_obs, and no step is followed by another one of its episode")
    ours = {name: column for name, column in columns.items() if name.partition(".")[0] in (*FIELDS, EPISODE)}
    result = {name: column[has_next_] for name, column in ours.items()}  # others are no columns of steps
    result["truncated"] = (truncated | cut)[has_next_]
    for name in parts:
        current = columns[name]
        mask = terminated.reshape(-1, *[1] * (current.ndim - 1))
        result["next_" + name] = np.where(mask, current, np.concatenate([current[1:], current[-1:]]))[has_next_]
    return result
