"""ImagineBench's parquet: one row for each episode, whose arrays are bytes.

An array `KEY` `[N, ...]` is three columns: `KEY_data`, a row's bytes (a list of its elements for texts, and for an
array of one axis), `KEY_shape`, the shape of the whole, as "(6400, 50, 10)", and `KEY_dtype`, as "float32". `row_index`
is the number of the episode, and texts, one for each episode, are `list_KEY`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.core.files import new_draft
from llmrl_jax.data.parquet import arrow
from llmrl_jax.data.transitions import DataError


INDEX, DATA, SHAPE, DTYPE, LIST = "row_index", "_data", "_shape", "_dtype", "list_"
_SHAPES = re.compile(r"\(?\s*[0-9]{1,9}(\s*,\s*[0-9]{1,9}){0,7}\s*,?\s*\)?")
_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|[<>=|]?(b1|[iu][1248]|f[248])")
_TEXTS = re.compile(r"object|str|[<>=|]?(O|U[0-9]{1,6})")
"""Descriptions of types that are read."""


def is_rows(names: Any) -> bool:
    """Whether columns of these names are of this form."""
    return INDEX in names and any(name.endswith(DATA) for name in names)


def read_rows(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Those of the arrays `names` that a file has, of numbers `[N, ...]` or of texts, episodes in the order of
    `row_index`.

    **Raises:** `ModuleNotFoundError` without pyarrow; `DataError` for a file of another form, or whose bytes do not fit
    their shapes.
    """
    table = _read(path)
    if not is_rows(table.column_names):
        raise DataError(
            f"{path} has the columns {', '.join(table.column_names)[:200]}; ImagineBench's files have {INDEX}, and "
            f"NAME{DATA}, NAME{SHAPE}, NAME{DTYPE} for each array"
        )
    index = _values(table, INDEX, path)
    if sorted(index) != list(range(len(index))):
        raise DataError(f"{path}: {INDEX} are not the numbers from 0 to {len(index) - 1}, each once")
    order = np.argsort(index)
    found = {}
    for name in table.column_names:
        key = name.removesuffix(DATA)
        if name.endswith(DATA) and key in names:
            found[key] = _array(table, key, path)[order]
        elif name.startswith(LIST) and (key := name.removeprefix(LIST)) in names:
            values = _values(table, name, path)
            if not all(isinstance(x, str) for x in values):
                raise DataError(f"{path}: {name} is no list of texts, one for each episode")
            found[key] = np.array(values)[order]
    return found


def write_rows(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays `[N, ...]` of numbers or texts in this form, atomically.

    **Raises:** `ModuleNotFoundError` without pyarrow; `DataError` for arrays of unequal lengths, or with no axis.
    """
    pa, parquet = arrow()
    if odd := [name for name, x in arrays.items() if not x.ndim]:
        raise DataError(f"{odd[0]} is one number, and not one for each episode: leave it out")
    if len(lengths := {len(x) for x in arrays.values()}) != 1:
        raise DataError(f"arrays of {' and '.join(map(str, sorted(lengths)))} episodes cannot be in one file")
    (count,) = lengths
    columns: dict[str, Any] = {INDEX: np.arange(count)}
    for name, x in arrays.items():
        if x.dtype.kind == "U" and x.ndim == 1:
            columns[LIST + name] = pa.array(x.tolist(), pa.string())
            continue
        whole = x.dtype.kind == "U" or x.ndim == 1
        rows = [row.reshape(-1).tolist() if whole else row.tobytes() for row in x]
        columns[name + DATA] = pa.array(rows, None if whole else pa.binary())
        columns[name + SHAPE] = pa.array([str(x.shape)] * count)
        columns[name + DTYPE] = pa.array([str(x.dtype)] * count)
    with new_draft(path) as draft:
        parquet.write_table(pa.table(columns), draft, compression="zstd")


def _read(path: Path) -> Any:
    _, parquet = arrow()
    try:
        return parquet.read_table(path)
    except Exception as error:
        raise DataError(f"{path} is not parquet: {error}") from error


def _values(table: Any, name: str, path: Path) -> list[Any]:
    if name not in table.column_names:
        raise DataError(f"{path} has no column {name}")
    values = table.column(name).to_pylist()
    if any(x is None for x in values):
        raise DataError(f"{path}: {name} has missing values; every episode needs one")
    return values


def _array(table: Any, key: str, path: Path) -> np.ndarray:
    """All rows of an array, in the order of the file."""
    where = f"{path}: {key}"
    shapes, types = ({str(x) for x in _values(table, key + end, path)} for end in (SHAPE, DTYPE))
    for name, found, known in ((SHAPE, shapes, _SHAPES), (DTYPE, types, (_TYPES, _TEXTS))):
        forms = known if isinstance(known, tuple) else (known,)
        if len(found) != 1 or not any(form.fullmatch(next(iter(found))) for form in forms):
            raise DataError(f"{where}{name} is {' and '.join(sorted(found)[:2])[:80]!r}; one that is known is needed")
    shape = tuple(int(n) for n in re.findall(r"[0-9]+", shapes.pop()))[1:]
    described, size = types.pop(), math.prod(shape)
    texts = _TEXTS.fullmatch(described) is not None
    kind = np.dtype(str if texts else described)
    rows = []
    for number, value in enumerate(_values(table, key + DATA, path)):
        if isinstance(value, bytes) and not texts:
            if len(value) != size * kind.itemsize:
                needed = f"{size * kind.itemsize} are needed for {described}{list(shape)}"
                raise DataError(f"{where} of row {number} has {len(value)} bytes; {needed}")
            rows.append(np.frombuffer(value, kind).reshape(shape))
            continue
        given = value if isinstance(value, list) else [value]
        fine = (str,) if texts else (bool, int, float)
        if len(given) != size or not all(isinstance(x, fine) for x in given):
            raise DataError(f"{where} of row {number} is not a list of {size} {'texts' if texts else 'numbers'}")
        rows.append(np.array(given, kind).reshape(shape))
    return np.stack(rows)
