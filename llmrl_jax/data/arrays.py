"""Data as NumPy files: one `.npz`, or a folder with an `.npy` per column. Never reads or writes a pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import new_draft, replacing
from llmrl_jax.data.columns import SPOKEN, Columns, Loaded, from_columns, renamed, to_columns
from llmrl_jax.data.foreign import completed
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions


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
    another library, whose columns are completed (`llmrl_jax.data.foreign`).
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
