"""Episodes padded to one length, with masks: the files of KALM and ImagineBench (2404.09248, 2505.10010).

`observations` `[N, T, d]`, `actions` `[N, T]` or `[N, T, a]`, `rewards` and `masks` `[N, T]` or `[N, T, 1]`; also
`next_observations` and `terminals`, if they are there, and what is said of episodes: `instructions`, `goals`,
`env_names`. `.h5` and `.hdf5` hold them as arrays, `.npy` as a pickled dict, which `envs_jax.npy` reads without
running anything, `.parquet` as rows (ImagineBench, below).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.extras import require
from envs_jax.npy import numbers_of, read_objects, texts_of
from llmrl_jax.core.files import new_draft
from llmrl_jax.data.parquet import arrow
from llmrl_jax.data.transitions import DataError, Trajectories, missing_data


REQUIRED = ("observations", "actions", "rewards", "masks")
_OPTIONAL = ("next_observations", "terminals", "action_masks")
_EXTRAS = ("instructions", "goals", "env_names")
"""What is said of episodes: texts `[N]` or `[N, W]`, numbers `[N, ...]`, texts `[N]`."""
HDF5 = (".h5", ".hdf5")
PARQUET = ".parquet"


@dataclass(frozen=True)
class Published:
    """The contents of a file."""

    data: Trajectories
    about: Mapping[str, np.ndarray]
    """The instructions, goals and names of environments that are there, with an element for each episode."""


def read_masked(path: str | Path) -> Trajectories:
    """Read the episodes of a file of this form.

    Masks may be called `action_masks`. Where observations have a row more than rewards, it is what the last action of
    an episode that fills its row led to. Where `terminals` are missing, an episode that fills its row was cut off, and
    any other ended by success. Where `next_observations` are missing, or are zeros at the end of an episode, the last
    observation stands for what its action led to, of which the files do not tell; it is only read where an episode was
    cut off.

    **Returns:** observations float32 `[N, T, d]`; actions int32 `[N, T]` if their type is one of integers, else float32
    `[N, T, a]`.
    **Raises:** `FileNotFoundError`; `ModuleNotFoundError` for hdf5 without h5py; `DataError` for a missing key, arrays
    that do not fit together, masks with holes, and numbers that are not finite.
    """
    path = Path(path).expanduser()
    return _from_masked(read_arrays(path, (*REQUIRED, *_OPTIONAL)), str(path))


def read_published(path: str | Path) -> Published:
    """Read a file of this form with what it says of its episodes. **Raises:** see `read_masked`; also `DataError` where
    what it says has not an element for each episode."""
    path = Path(path).expanduser()
    arrays = read_arrays(path, (*REQUIRED, *_OPTIONAL, *_EXTRAS))
    data, about = _from_masked(arrays, str(path)), {name: arrays[name] for name in _EXTRAS if name in arrays}
    for name, value in about.items():
        if len(value) != len(data):
            raise DataError(f"{path}: {name} are of {len(value)} episodes, and there are {len(data)}")
    return Published(data, about)


def _from_masked(arrays: Mapping[str, np.ndarray], source: str) -> Trajectories:
    """Arrays of this form as episodes; see `read_masked`. **Arguments:** `source`, their name in messages."""
    arrays = dict(arrays)
    if "masks" not in arrays and "action_masks" in arrays:
        arrays["masks"] = arrays["action_masks"]
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise DataError(f"{source} has no {missing[0]!r} (it has {', '.join(sorted(arrays)) or 'nothing'})")
    obs = np.asarray(arrays["observations"])
    if obs.ndim != 3 or not obs.size:
        raise DataError(f"{source}: observations are {list(obs.shape)}; [episodes, steps, size] is needed")
    steps = {np.shape(arrays[name])[1:2] for name in ("actions", "rewards", "masks")}
    reached = obs[:, 1:] if steps == {(obs.shape[1] - 1,)} else None  # a row more: what the last action led to
    obs = obs if reached is None else obs[:, :-1]
    rows = obs.shape[:2]
    mask = _flat(arrays["masks"], rows, f"{source}: masks").astype(bool)
    length = mask.sum(1)
    ragged = np.flatnonzero((length == 0) | (mask != (np.arange(rows[1]) < length[:, None])).any(1))
    if len(ragged):
        raise DataError(f"{source}: the mask of episode {ragged[0]} is not ones and then zeros, from the first step on")
    last = np.arange(rows[1]) == length[:, None] - 1
    after = np.concatenate([obs[:, 1:], obs[:, -1:]], axis=1)
    if "next_observations" in arrays:
        next_obs_ = np.asarray(arrays["next_observations"])
        if next_obs_.shape != obs.shape:
            raise DataError(f"{source}: next_observations are {list(next_obs_.shape)}, observations {list(obs.shape)}")
        after = np.where(last[..., None] & ~next_obs_.any(-1, keepdims=True), obs, next_obs_)
    elif reached is not None:
        after = np.where((last & (length < rows[1])[:, None])[..., None], obs, reached)
    else:
        after = np.where(last[..., None], obs, after)
    if "terminals" in arrays:
        ended = _flat(arrays["terminals"], rows, f"{source}: terminals").astype(bool) & mask
        early = np.argwhere(ended & ~last)
        if len(early):
            raise DataError(
                f"{source}: episode {early[0][0]} is terminal at step {early[0][1]}, and goes on after it: cut it there"
            )
    else:
        ended = last & (length < rows[1])[:, None]
    action = np.asarray(arrays["actions"])
    if action.shape[:2] != rows or action.ndim not in (2, 3):
        raise DataError(
            f"{source}: actions are {list(action.shape)}; {list(rows)} with at most one axis more is needed"
        )
    if action.dtype.kind in "iub":
        action = action[..., 0] if action.ndim == 3 and action.shape[2] == 1 else action
        if action.ndim == 3:
            raise DataError(f"{source}: actions are whole numbers {list(action.shape)}; one for each step is needed")
    elif action.ndim == 2:
        action = action[..., None]
    parts = {
        "obs": obs.astype(np.float32),
        "action": action.astype(np.int32 if action.dtype.kind in "iub" else np.float32),
        "reward": _flat(arrays["rewards"], rows, f"{source}: rewards").astype(np.float32),
        "next_obs": after.astype(np.float32),
        "terminated": ended,
        "truncated": last & ~ended,
    }
    for name, x in parts.items():
        shaped = mask.reshape(rows + (1,) * (x.ndim - 2))
        parts[name] = np.where(shaped, x, np.zeros((), x.dtype))
        bad = np.argwhere(~np.isfinite(parts[name]))
        if len(bad):
            raise DataError(f"{source}: {name} of episode {bad[0][0]}, step {bad[0][1]} is not finite")
    return Trajectories(**{name: jnp.asarray(x) for name, x in parts.items()}, length=jnp.asarray(length, jnp.int32))


def to_masked(data: Trajectories) -> dict[str, np.ndarray]:
    """Episodes of vectors in this form; rewards, masks and terminals are `[N, T, 1]`.

    **Raises:** `DataError` for observations that are no vectors.
    """
    obs = np.asarray(data.obs) if not isinstance(data.obs, dict) else np.empty(0)
    if obs.ndim != 3:
        raise DataError("observations have parts; an array [episodes, steps, size] is needed")
    wide = {"rewards": data.reward, "masks": data.mask, "terminals": data.terminated}
    return {
        "observations": obs,
        "next_observations": np.asarray(data.next_obs),
        "actions": np.asarray(data.action),
        **{name: np.asarray(x)[..., None] for name, x in wide.items()},
    }


def write_masked(path: str | Path, data: Trajectories | Mapping[str, Any]) -> None:
    """Write episodes in this form, atomically: `.h5`, `.hdf5`, `.parquet` as ImagineBench's, or `.npy`, which NumPy
    pickles.

    **Arguments:** `data`, episodes, or arrays by their names, of numbers or, as `instructions`, of texts.
    **Raises:** `DataError` for another ending, or arrays of something else; `ModuleNotFoundError` for hdf5 without h5py
    and parquet without pyarrow.
    """
    path = Path(path)
    arrays = to_masked(data) if isinstance(data, Trajectories) else {name: np.asarray(x) for name, x in data.items()}
    if unsupported := [name for name, x in arrays.items() if x.dtype.kind not in "biufU"]:
        raise DataError(f"{unsupported[0]} is no array of numbers or of texts, as all in such a file are: leave it out")
    if path.suffix in HDF5:
        h5py = _h5py()
        with new_draft(path) as draft, h5py.File(draft, "w") as file:
            for name, x in arrays.items():
                file[name] = x.astype(h5py.string_dtype()) if x.dtype.kind == "U" else x
        return
    if path.suffix == PARQUET:
        _write_rows(path, arrays)
        return
    if path.suffix != ".npy":
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}; .npy, .h5, .hdf5 or .parquet is written")
    with new_draft(path) as draft, draft.open("wb") as file:
        np.save(file, np.array(arrays, object), allow_pickle=True)


def _flat(value: Any, rows: tuple[int, ...], source: str) -> np.ndarray:
    """Numbers `[N, T]`, also where they are `[N, T, 1]`."""
    value = np.asarray(value)
    value = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    if value.shape != rows or value.dtype.kind not in "biuf":
        raise DataError(f"{source} are {value.dtype}{list(value.shape)}; numbers {list(rows)} are needed")
    return value


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read arrays by name, where a file has them; its others are not looked at.

    **Raises:** `FileNotFoundError`, naming the nearest; `DataError` for a file of another form."""
    if not path.is_file():
        raise missing_data(path)
    read = _hdf5 if path.suffix in HDF5 else read_rows if path.suffix == PARQUET else _npy
    return read(path, names)


def _npy(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    objects = read_objects(path, DataError)
    if len(objects) != 1 or not isinstance(objects[0], dict):
        raise DataError(f"{path} has no dict of arrays")
    arrays = {}
    for name, value in objects[0].items():
        if name not in names:
            continue
        read = numbers_of(value)
        if read is None and name in _EXTRAS:
            read = texts_of(value)
        if read is None:
            kind = "numbers or texts" if name in _EXTRAS else "numbers"
            raise DataError(f"{path}: {name} is no array of {kind} of one shape")
        arrays[name] = read
    return arrays


def _hdf5(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    h5py = _h5py()
    arrays = {}
    try:
        with h5py.File(path, "r") as file:
            for name in names:
                if name in file:
                    texts = h5py.check_string_dtype(file[name].dtype) is not None
                    arrays[name] = np.asarray(file[name].asstr()[...], str) if texts else np.asarray(file[name])
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as hdf5: {error}") from error
    return arrays


def _h5py() -> Any:
    return require("an hdf5 file", "data", "h5py")


# --- ImagineBench's parquet -------------------------------------------------------------------------------------------
#
# One row for each episode, whose arrays are bytes. An array `KEY` `[N, ...]` is three columns: `KEY_data`, the bytes of
# a row (a list of its elements for texts, and for an array of one axis), `KEY_shape`, the shape of the whole, as
# "(6400, 50, 10)", and `KEY_dtype`, as "float32". `row_index` is the number of the episode, and texts, one for each
# episode, are `list_KEY`.


INDEX, DATA, SHAPE, DTYPE, LIST = "row_index", "_data", "_shape", "_dtype", "list_"
_SHAPES = re.compile(r"\(?\s*[0-9]{1,9}(\s*,\s*[0-9]{1,9}){0,7}\s*,?\s*\)?")
_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|[<>=|]?(b1|[iu][1248]|f[248])")
_TEXTS = re.compile(r"object|str|[<>=|]?(O|U[0-9]{1,6})")
"""Descriptions of types that are read."""


def is_rows(names: Any) -> bool:
    """Return whether columns of these names are of this form."""
    return INDEX in names and any(name.endswith(DATA) for name in names)


def read_rows(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """Arrays `names` that a file has, of numbers `[N, ...]` or of texts, episodes in the order of
    `row_index`.

    **Raises:** `ModuleNotFoundError` without pyarrow; `DataError` for a file of another form, or whose bytes do not fit
    their shapes.
    """
    table = _table(path)
    if not is_rows(table.column_names):
        raise DataError(
            f"{path} has the columns {', '.join(table.column_names)[:200]}; ImagineBench's files have {INDEX}, and "
            f"NAME{DATA}, NAME{SHAPE}, NAME{DTYPE} for each array"
        )
    index = _values(table, INDEX, path)
    if sorted(index) != list(range(len(index))):
        raise DataError(f"{path}: {INDEX} are not the numbers from 0 to {len(index) - 1}, each once")
    order = np.argsort(index)
    arrays = {}
    for name in table.column_names:
        key = name.removesuffix(DATA)
        if name.endswith(DATA) and key in names:
            arrays[key] = _array(table, key, path)[order]
        elif name.startswith(LIST) and (key := name.removeprefix(LIST)) in names:
            values = _values(table, name, path)
            if not all(isinstance(x, str) for x in values):
                raise DataError(f"{path}: {name} is no list of texts, one for each episode")
            arrays[key] = np.array(values)[order]
    return arrays


def _write_rows(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays `[N, ...]` of numbers or texts in this form, atomically.

    **Raises:** `ModuleNotFoundError` without pyarrow; `DataError` for arrays of unequal lengths, or with no axis.
    """
    pa, parquet = arrow()
    if scalars := [name for name, x in arrays.items() if not x.ndim]:
        raise DataError(f"{scalars[0]} is one number, and not one for each episode: leave it out")
    if len(lengths := {len(x) for x in arrays.values()}) != 1:
        raise DataError(f"arrays of {' and '.join(map(str, sorted(lengths)))} episodes cannot be in one file")
    (count,) = lengths
    columns: dict[str, Any] = {INDEX: np.arange(count)}
    for name, x in arrays.items():
        if x.dtype.kind == "U" and x.ndim == 1:
            columns[LIST + name] = pa.array(x.tolist(), pa.string())
            continue
        is_flat = x.dtype.kind == "U" or x.ndim == 1
        rows = [row.reshape(-1).tolist() if is_flat else row.tobytes() for row in x]
        columns[name + DATA] = pa.array(rows, None if is_flat else pa.binary())
        columns[name + SHAPE] = pa.array([str(x.shape)] * count)
        columns[name + DTYPE] = pa.array([str(x.dtype)] * count)
    with new_draft(path) as draft:
        parquet.write_table(pa.table(columns), draft, compression="zstd")


def _table(path: Path) -> Any:
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
    source = f"{path}: {key}"
    shapes, types = ({str(x) for x in _values(table, key + end, path)} for end in (SHAPE, DTYPE))
    for name, listed, possible in ((SHAPE, shapes, _SHAPES), (DTYPE, types, (_TYPES, _TEXTS))):
        forms = possible if isinstance(possible, tuple) else (possible,)
        if len(listed) != 1 or not any(form.fullmatch(next(iter(listed))) for form in forms):
            raise DataError(f"{source}{name} is {' and '.join(sorted(listed)[:2])[:80]!r}; one that is known is needed")
    shape = tuple(int(n) for n in re.findall(r"[0-9]+", shapes.pop()))[1:]
    described, size = types.pop(), math.prod(shape)
    texts = _TEXTS.fullmatch(described) is not None
    kind = np.dtype(str if texts else described)
    rows = []
    for number, value in enumerate(_values(table, key + DATA, path)):
        if isinstance(value, bytes) and not texts:
            if len(value) != size * kind.itemsize:
                needed = f"{size * kind.itemsize} are needed for {described}{list(shape)}"
                raise DataError(f"{source} of row {number} has {len(value)} bytes; {needed}")
            rows.append(np.frombuffer(value, kind).reshape(shape))
            continue
        values = value if isinstance(value, list) else [value]
        fine = (str,) if texts else (bool, int, float)
        if len(values) != size or not all(isinstance(x, fine) for x in values):
            raise DataError(f"{source} of row {number} is not a list of {size} {'texts' if texts else 'numbers'}")
        rows.append(np.array(values, kind).reshape(shape))
    return np.stack(rows)
