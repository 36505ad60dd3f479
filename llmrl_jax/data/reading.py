"""Reading data of any known format, by the ending of its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmrl_jax.data.arrays import read_arrays
from llmrl_jax.data.columns import D4RL_NAMES, Loaded
from llmrl_jax.data.hdf5 import read_hdf5
from llmrl_jax.data.imagine_bench import is_rows
from llmrl_jax.data.masked import HDF5, PARQUET, read_masked
from llmrl_jax.data.npy import is_object
from llmrl_jax.data.parquet import column_names, read_parquet
from llmrl_jax.data.transitions import DataError


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

    What other libraries leave out is derived, see `llmrl_jax.data.foreign.completed`.

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
