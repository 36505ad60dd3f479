"""Data as parquet: one row per step, typed columns, compressed by zstd (extra `data`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.extras import require
from llmrl_jax.core.files import new_draft
from llmrl_jax.data.columns import SPOKEN, Columns, completed, from_columns, renamed, to_columns
from llmrl_jax.data.transitions import (
    FIELDS,
    DataError,
    Trajectories,
    Transitions,
    episode_lengths,
    missing_data,
    to_transitions,
)


METADATA = b"llmrl_jax.data"
FORMAT = 1
_ROW_GROUP = 65_536
"""Rows per row group."""


def arrow() -> tuple[Any, Any]:
    """pyarrow and its reader of parquet. **Raises:** `ModuleNotFoundError`, with what to install."""
    return require("a parquet file", "data", "pyarrow"), require("a parquet file", "data", "pyarrow.parquet")


def write_parquet(path: str | Path, data: Transitions | Trajectories) -> None:
    """Write data atomically, replacing an existing file.

    The columns are `episode` and `step` (int32, both from 0), then those of the data; an array per step is a list of
    fixed size, with its shape in the file's metadata.

    **Arguments:** `path`, which ends in `.parquet`; `data`, with complete episodes.
    **Raises:** `ModuleNotFoundError` without pyarrow; `DataError` for data that a reader would refuse.
    """
    pa, parquet = arrow()
    path = Path(path)
    if path.suffix != ".parquet":
        raise DataError(f"{path} does not end in .parquet, which is what is written")
    transitions = to_transitions(data) if isinstance(data, Trajectories) else data
    columns = to_columns(transitions)
    lengths = episode_lengths(columns["terminated"], columns["truncated"])
    arrays = {
        "episode": pa.array(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)),
        "step": pa.array(np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])),
    }
    arrays |= {name: _lists(pa, column) for name, column in columns.items()}
    meta = {"format": FORMAT, "shapes": {name: list(x.shape[1:]) for name, x in columns.items()}}
    table = pa.table(arrays).replace_schema_metadata({METADATA: json.dumps(meta)})
    with new_draft(path) as draft:
        parquet.write_table(table, draft, compression="zstd", row_group_size=_ROW_GROUP, use_dictionary=False)


def read_parquet(path: str | Path, names: Mapping[str, str] | None = None) -> Transitions:
    """Read a file written by `write_parquet`, or another file with these columns, as `Transitions`.

    **Arguments:** `path`; `names`, our column -> its name in the file of another library, whose columns are completed
    (`llmrl_jax.data.columns`); a file that `write_parquet` wrote has our names, and needs none.
    **Raises:** `ModuleNotFoundError` without pyarrow; `FileNotFoundError`; `DataError` for a file that is not parquet,
    lists of unequal lengths, missing values, incomplete episodes, and data that `from_columns` refuses.
    """
    pa, parquet = arrow()
    path = Path(path)
    if not path.is_file():
        raise missing_data(path)
    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path} is not parquet: {error}") from error
    is_ours = METADATA in (table.schema.metadata or {})  # else `step` may be a counter of all steps
    meta = json.loads(table.schema.metadata[METADATA]) if is_ours else {}
    if meta.get("format", FORMAT) != FORMAT:
        raise DataError(f"{path} has the format {meta['format']}; this version reads {FORMAT}")
    columns = {}
    named = {x: x for x in table.column_names}
    for name, theirs in (named if is_ours else renamed(named, names, str(path))).items():
        if name.partition(".")[0] not in (*FIELDS, "episode", "step"):
            continue
        source = f"{path}: {theirs}"
        array = _combined(pa, table.column(theirs), source)
        if name not in SPOKEN or not pa.types.is_string(array.type):
            columns[name] = _array(pa, array, meta.get("shapes", {}).get(name), source)
    full = columns if names is None else completed(columns, str(path))
    data = from_columns(full, str(path), table.column_names)
    if is_ours and {"episode", "step", "terminated", "truncated"} <= columns.keys():
        _check_episodes(columns, str(path))
    return data  # type: ignore[return-value]  # no column is named length


def column_names(path: Path) -> list[str]:
    """The names of a file's columns; none for a file that is not parquet, as `read_parquet` says.

    **Raises:** `ModuleNotFoundError` without pyarrow.
    """
    _, parquet = arrow()
    try:
        return list(parquet.read_schema(path).names)
    except Exception:  # noqa: BLE001 - whatever a damaged file raises
        return []


def _lists(pa: Any, column: np.ndarray) -> Any:
    width = int(np.prod(column.shape[1:]))
    if not width:
        raise DataError(f"a column has the shape {list(column.shape)}, without a number in a row; leave it out")
    flat = pa.array(np.ascontiguousarray(column).reshape(-1))
    return flat if column.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _combined(pa: Any, chunked: Any, source: str) -> Any:
    """A column as one Arrow array; dictionary-encoded strings are decoded."""
    if chunked.null_count:
        raise DataError(f"{source} has {chunked.null_count} missing values of {len(chunked)}; every step needs one")
    array = pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array


def _array(pa: Any, array: Any, shape: list[int] | None, source: str) -> np.ndarray:
    """Numbers, or lists of them, as an array `[rows, ...]`."""
    rows, widths = len(array), []
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        widths.append(_width(pa, array, source))
        array = array.flatten()
        if array.null_count:
            raise DataError(f"{source} has lists with missing values; every entry needs one")
    return array.to_numpy(zero_copy_only=False).reshape(rows, *(widths if shape is None else shape))


def _width(pa: Any, array: Any, source: str) -> int:
    """The common length of the lists of a column."""
    if pa.types.is_fixed_size_list(array.type):
        return array.type.list_size
    lengths = np.diff(array.offsets.to_numpy())
    ragged = np.flatnonzero(lengths != lengths[:1])
    if len(ragged):
        raise DataError(
            f"{source} has lists of {lengths[0]} and, in row {ragged[0]}, of {lengths[ragged[0]]}: one width is needed"
        )
    return int(lengths[0]) if len(lengths) else 0


def _check_episodes(columns: Columns, source: str) -> None:
    """Check that the rows of an episode are contiguous and ordered, and that only the last one ends it."""
    lengths = episode_lengths(columns["terminated"], columns["truncated"])
    starts = np.cumsum(lengths) - lengths
    step = np.arange(len(columns["step"])) - np.repeat(starts, lengths)
    bounds = np.flatnonzero(np.diff(columns["episode"], prepend=columns["episode"][0] - 1))
    wrong = np.flatnonzero(columns["step"] != step)
    if len(wrong) or not np.array_equal(bounds, starts):
        row = int(wrong[0]) if len(wrong) else int(np.setxor1d(bounds, starts)[0])
        raise DataError(
            f"{source}: row {row} is step {columns['step'][row]} of episode {columns['episode'][row]}, but by the ends "
            f"of episodes it is step {step[row]}: an episode is not whole, or its rows are not in their order"
        )
