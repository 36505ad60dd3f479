"""Reading data of any known format, by the ending of its name."""

from __future__ import annotations

from pathlib import Path

from llmrl_jax.data.arrays import read_arrays
from llmrl_jax.data.columns import D4RL_NAMES, Loaded
from llmrl_jax.data.imagine_bench import is_rows
from llmrl_jax.data.masked import HDF5, PARQUET, read_masked
from llmrl_jax.data.npy import is_object
from llmrl_jax.data.parquet import column_names, read_parquet
from llmrl_jax.data.transitions import DataError


def read_data(path: str | Path) -> Loaded:
    """Read a `.parquet` or `.npz` file, or a folder of `.npy` files, with our columns or D4RL's (`D4RL_NAMES`); or
    padded episodes with masks, `.h5`, `.hdf5`, ImagineBench's `.parquet`, or an `.npy` file with a dict
    (`llmrl_jax.data.masked`).

    **Raises:** `FileNotFoundError`; `ModuleNotFoundError` for parquet without pyarrow; `DataError` for another ending,
    Python objects elsewhere, which need a pickle, or data that `llmrl_jax.data.columns.from_columns` refuses.
    """
    path = Path(path).expanduser()
    if path.suffix == PARQUET and not (path.is_file() and is_rows(column_names(path))):
        return read_parquet(path, D4RL_NAMES)
    if path.suffix in (*HDF5, PARQUET) or is_object(path):
        return Loaded(read_masked(path), {})
    if path.suffix in (".npz", ".npy") or path.is_dir() or not path.exists():
        return read_arrays(path, D4RL_NAMES)
    raise DataError(
        f"{path} ends in {path.suffix or 'nothing'}; a .parquet, .npz, .npy or .h5 file, or a folder of .npy files, is "
        "needed"
    )
