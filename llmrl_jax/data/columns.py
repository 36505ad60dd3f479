"""Data as named columns of NumPy arrays, as files hold them, with all checks on reading and writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
"""The columns that may be indices of strings."""

NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
"""Types that devices lack -> the types they are converted to, if every number fits."""

DTYPES = ("bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "float16", "float32")


@dataclass(frozen=True)
class Loaded:
    """The contents of a file."""

    data: Any
    """`Transitions` or `Trajectories`."""
    strings: Mapping[str, tuple[str, ...]]
    """Column (`text`, `goal`) -> the strings that its numbers index; only columns of strings."""


def to_columns(data: Transitions | Trajectories, strings: Mapping[str, Sequence[str]] | None = None) -> Columns:
    """The columns of data, checked; nested observations have dotted names, such as `obs.image`.

    **Raises:** `DataError`, see `from_columns`; also for a number without a string.
    """
    columns: Columns = {}
    for name in FIELDS:
        columns |= {k: np.asarray(x) for k, x in _flat(getattr(data, name), name)}
    if isinstance(data, Trajectories):
        columns["length"] = np.asarray(data.length)
    _check(columns, "these data")
    for name, known in (strings or {}).items():
        if name not in SPOKEN or name not in columns or columns[name].dtype != np.int32:
            raise DataError(f"strings are given for {name!r}; they go with an int32 column named text or goal")
        low, high = int(columns[name].min()), int(columns[name].max())
        if low < 0 or high >= len(known):
            raise DataError(f"{name} has numbers from {low} to {high}, but {len(known)} strings are given for it")
    if isinstance(data, Trajectories):
        check_episodes(data)
    return columns


def from_columns(
    columns: Mapping[str, np.ndarray],
    where: str,
    strings: Mapping[str, Sequence[str]] | None = None,
    present: Iterable[str] = (),
) -> Loaded:
    """Columns as arrays on the device: `Trajectories` if there is a column `length`, else `Transitions`.

    Columns with other names are ignored. `float64`, `int64` and `uint64` become types of the device (`NARROWED`).

    **Arguments:** `columns`; `where`, their name in messages; `strings`, the strings of columns that hold indices of
    strings, a column of strings (`text`, `goal`) becomes indices of its sorted strings; `present`, the names of all
    columns of the file, for messages (default: those of `columns`).
    **Raises:** `DataError` for a missing column, a wrong number of rows, a wrong type, NaN or infinity, a `next_obs`
    that differs in form from `obs`, and episodes without an end.
    """
    known = {name: tuple(x) for name, x in (strings or {}).items()}
    used: Columns = {}
    for name, column in columns.items():
        if name.partition(".")[0] not in FIELDS and name != "length":
            continue
        column = np.asarray(column)
        if column.dtype.kind in "UT" and name in SPOKEN:
            values, index = np.unique(column, return_inverse=True)
            known[name] = tuple(map(str, values))
            column = index.reshape(column.shape).astype(np.int32)
        used[name] = _narrow(column, name, where)
    _check(used, where, present or columns)
    parts = {name: _nested(used, name) for name in FIELDS}
    if "length" not in used:
        return Loaded(Transitions(**parts), known)
    data = Trajectories(**parts, length=jnp.asarray(used["length"]))
    check_episodes(data)
    return Loaded(data, known)


def renamed(columns: Mapping[str, Any], names: Mapping[str, str] | None) -> dict[str, Any]:
    """Columns by our names. **Arguments:** `names`, our name -> the name in `columns`, for columns that differ: a whole
    name, or what comes before its first dot.

    **Raises:** `DataError` for a column that is there under both names.
    """
    ours = {theirs: name for name, theirs in (names or {}).items()}
    found: dict[str, Any] = {}
    for name, column in columns.items():
        head, *rest = name.split(".")
        known = ours[name] if name in ours else ".".join([ours.get(head, head), *rest])
        if known in found:
            raise DataError(f"the data have {known!r} twice, also as {name!r}: leave one of them out")
        found[known] = column
    return found


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
        head, *rest = key.split(".")
        if head == name:
            inner = tree
            for part in rest[:-1]:
                inner = inner.setdefault(part, {})
            inner[rest[-1]] = jnp.asarray(column)
    return tree or ()


def _narrow(column: np.ndarray, name: str, where: str) -> np.ndarray:
    wanted = NARROWED.get(str(column.dtype))
    if wanted is None:
        return column
    with np.errstate(over="ignore"):  # overflow to infinity is refused later
        narrow = column.astype(wanted)
    if column.dtype.kind != "f" and np.any(narrow != column):
        raise DataError(f"{where}: {name} has numbers that do not fit {wanted}, which is what devices have")
    return narrow


def _check(columns: Columns, where: str, present: Iterable[str] = ()) -> None:
    heads = {name.partition(".")[0] for name in columns}
    missing = [name for name in REQUIRED if name not in heads]
    if missing:
        every = sorted(present or columns)
        hint = nearest(missing[0], sorted(set(every) - set(REQUIRED)))
        raise DataError(
            f"{where} has no {', '.join(missing)}{hint}; it has {', '.join(every)[:300] or 'no column'} (name columns "
            "with --data-names OURS=THEIRS, in Python `names`)"
        )
    both = sorted(name for name in columns if name.partition(".")[0] in columns and "." in name)
    if both:
        raise DataError(f"{where} has {both[0]} beside {both[0].partition('.')[0]}; one of them is needed")
    lead = columns["reward"].shape
    axes = 2 if "length" in columns else 1
    if len(lead) != axes:
        what = "[episodes, steps]" if axes == 2 else "[steps]"
        raise DataError(f"{where}: reward has the shape {list(lead)}; {what} is needed")
    if not lead[0]:
        raise DataError(f"{where} has no {'episode' if axes == 2 else 'step'}; at least 1 is needed")
    for name, column in columns.items():
        wanted = lead[:1] if name == "length" else lead
        if (
            column.shape[: len(wanted)] != wanted
            or name in ("terminated", "truncated", "length")
            and (column.ndim != len(wanted))
        ):
            raise DataError(
                f"{where}: {name} has the shape {list(column.shape)}, but reward has {list(lead)}: each step is a row"
            )
        _check_type(name, column, where)
    seen = {name for name in columns if name.partition(".")[0] == "obs"}
    reached = {name.removeprefix("next_") for name in columns if name.partition(".")[0] == "next_obs"}
    for name in sorted(seen | reached):
        here, there = (
            f"{columns[key].dtype}{list(columns[key].shape)}" if key in columns else "missing"
            for key in (name, "next_" + name)
        )
        if here != there:
            raise DataError(f"{where}: {name} is {here}, but next_{name} is {there}; they must be equal")


def _check_type(name: str, column: np.ndarray, where: str) -> None:
    kinds = {"reward": "float32", "terminated": "bool", "truncated": "bool", "length": "int32"}
    wanted = kinds.get(name)
    if column.dtype == object:
        raise DataError(
            f"{where}: {name} holds Python objects (lists of unequal lengths?); an array of numbers is needed"
        )
    if wanted and column.dtype != wanted or str(column.dtype) not in DTYPES:
        raise DataError(f"{where}: {name} is {column.dtype}; {wanted or 'one of ' + ', '.join(DTYPES)} is needed")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        row = np.argwhere(~np.isfinite(column))[0]
        raise DataError(f"{where}: {name}{row.tolist()} is {column[tuple(row)]}; a finite number is needed")
