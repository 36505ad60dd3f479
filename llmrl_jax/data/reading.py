"""Reading data of any known format, by the ending of its name; and NumPy files: one `.npz`, or a folder with an
`.npy` per column. Never reads or writes a pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import new_draft, replacing
from llmrl_jax.data.columns import D4RL_NAMES, SPOKEN, Columns, Loaded, completed, from_columns, renamed, to_columns
from llmrl_jax.data.hdf5 import read_hdf5
from llmrl_jax.data.masked import HDF5, PARQUET, is_rows, read_masked
from llmrl_jax.data.npy import is_object
from llmrl_jax.data.parquet import column_names, read_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions


SAVE = (
    "save one row for each step with np.savez(FILE, observations=..., actions=..., rewards=..., next_observations=..., "
    "terminals=..., timeouts=...)"
)
PICKLES = (".pkl", ".pickle", ".pckl", ".joblib", ".pt", ".pth")
MINARI = ("data/main_data.hdf5", "main_data.hdf5")
"""The file of a Minari data set, in its folder."""


def read_data(path: str | Path, names: Mapping[str, str] | None = None) -> Loaded:
    """Read recorded steps: a `.parquet` or `.npz` file, a folder of `.npy` files, or an `.h5` or `.hdf5` file, with our
    columns or D4RL's (`D4RL_NAMES`); Minari's, robomimic's and d3rlpy's hdf5 (`llmrl_jax.data.hdf5`); padded episodes
    with masks, `.h5`, `.hdf5`, ImagineBench's `.parquet`, or an `.npy` file with a dict (`llmrl_jax.data.masked`).

    What other libraries leave out is derived, see `llmrl_jax.data.columns.completed`.

    **Arguments:** `names`, our name -> the name of a column in the file, where it is neither ours nor D4RL's.
    **Raises:** `FileNotFoundError`; `ModuleNotFoundError` for parquet without pyarrow and hdf5 without h5py;
    `DataError` for another format, Python objects, which need a pickle, or data that
    `llmrl_jax.data.columns.from_columns` refuses.
    """
    path, theirs = Path(path).expanduser(), {**D4RL_NAMES, **(names or {})}
    if path.is_dir():
        if file := next((path / name for name in MINARI if (path / name).is_file()), None):
            return read_hdf5(file, theirs)
        _refuse_folder(path)
    if path.suffix == PARQUET and not (path.is_file() and is_rows(column_names(path))):
        return read_parquet(path, theirs)
    if path.suffix in HDF5:
        return read_hdf5(path, theirs)
    if path.suffix == PARQUET or is_object(path):
        return Loaded(read_masked(path), {})
    if path.suffix in (".npz", ".npy") or path.is_dir() or not path.exists():
        return read_arrays(path, theirs)
    if path.suffix in PICKLES:
        raise DataError(
            f"{path} is a pickle (Decision Transformer's data are), and reading one runs what it says, so it is "
            f"refused. Where you trust its source, load it elsewhere, and {SAVE}"
        )
    if ".tfrecord" in path.name:
        raise DataError(f"{path} is a TFRecord (RLDS, TFDS): read it with tensorflow_datasets elsewhere, and {SAVE}")
    raise DataError(
        f"{path} ends in {path.suffix or 'nothing'}; a .parquet, .npz, .npy, .h5 or .hdf5 file, or a folder of .npy "
        f"files, is needed: {SAVE}"
    )


def _refuse_folder(path: Path) -> None:
    """**Raises** `DataError` for a data set of a library whose folders are not read."""
    here = {file.name for file in path.iterdir()}
    if "dataset_info.json" in here or any(".tfrecord" in name for name in here):
        raise DataError(f"{path} is a data set of TFDS or RLDS: read it with tensorflow_datasets elsewhere, and {SAVE}")
    if (path / "meta" / "info.json").is_file():
        raise DataError(
            f"{path} is a LeRobot data set: give one of the .parquet files of its folder data, with --data-names "
            "obs=observation.state,reward=next.reward,terminated=next.done,episode=episode_index (pictures are in "
            "videos, which are not read)"
        )
    if here & {".zgroup", ".zarray", "zarr.json"}:
        raise DataError(f"{path} is a Zarr store: read it with zarr elsewhere, and {SAVE}")
    if "metadata.json" in here and (path / "data").is_dir() or (path / "data" / "metadata.json").is_file():
        raise DataError(
            f"{path} is a Minari data set without main_data.hdf5: load it with minari elsewhere, and {SAVE}"
        )


# --- NumPy files ------------------------------------------------------------------------------------------------------


STRINGS = "strings."
"""Prefix of the name of a table of strings."""


def write_arrays(
    path: str | Path, data: Transitions | Trajectories, strings: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write data atomically, replacing existing files.

    **Arguments:** `path`, one file if it ends in `.npz`, else a folder of `.npy` files; `data`; `strings`, column
    (`text`, `goal`) -> the strings that its numbers index.
    **Raises:** `DataError` for data that a reader would refuse.
    """
    path = Path(path)
    columns = to_columns(data, strings)
    columns |= {STRINGS + name: np.array(list(x), np.str_) for name, x in (strings or {}).items()}
    if path.suffix == ".npz":
        with new_draft(path) as draft, draft.open("wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]
        return
    if path.suffix:
        raise DataError(f"{path}: data are written as one .npz file, or as a folder, whose name has no ending")
    with replacing(path) as folder:
        folder.mkdir()
        for name, column in columns.items():
            np.save(folder / f"{name}.npy", column, allow_pickle=False)


def read_arrays(path: str | Path, names: Mapping[str, str] | None = None) -> Loaded:
    """Read files written by `write_arrays`, or other files of arrays with these columns.

    **Arguments:** `path`, an `.npz` file, or a folder of `.npy` files; `names`, our column -> its name in the file of
    another library, whose columns are completed (`llmrl_jax.data.columns`).
    **Raises:** `FileNotFoundError`; `DataError` for Python objects, which need a pickle, and for data that
    `from_columns` refuses.
    """
    path = Path(path)
    if path.is_dir():
        columns = {file.stem: _single(file) for file in sorted(path.glob("*.npy"))}
    elif not path.exists():
        here = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there are no data at {path}{nearest(path.name, here)}")
    else:
        columns = _archive(path)
    strings = {name: columns.pop(STRINGS + name) for name in SPOKEN if STRINGS + name in columns}
    texts = {name: tuple(map(str, x)) for name, x in strings.items()}
    if names is not None:
        columns = completed(renamed(columns, names), str(path))
    return from_columns(columns, str(path), texts)


def _archive(path: Path) -> Columns:
    with path.open("rb") as file:
        content = _load(file, path, path.name)
        if isinstance(content, np.ndarray):
            raise DataError(
                f"{path} holds one array, {content.dtype}{list(content.shape)}; give the .npz file, or the folder of "
                ".npy files, that holds all columns"
            )
        return {name: _entry(content, name, path) for name in content.files}


def _single(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return _load(file, path, path.stem)


def _load(file: BinaryIO, path: Path, name: str) -> Any:
    try:
        return np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if "allow_pickle" in str(error):
            raise _pickled(path, name) from None
        raise DataError(f"{path} cannot be read as arrays: {error}") from error


def _entry(archive: Any, name: str, path: Path) -> np.ndarray:
    try:
        return archive[name]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise _pickled(path, name) from None
        raise DataError(f"{path}: {name} cannot be read: {error}") from error


def _pickled(path: Path, name: str) -> DataError:
    return DataError(
        f"{path}: {name} holds Python objects, as a pickle; reading one runs what it says, so it is refused. Where you "
        "trust its source, load it with numpy and allow_pickle=True elsewhere and save arrays of numbers with np.savez"
    )
