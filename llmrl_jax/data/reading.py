"""Reading data of any known format, by the ending of its name: NumPy files, and HDF5 files of other libraries. Never
reads or writes a pickle."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from envs_jax.extras import require
from envs_jax.npy import is_object
from llmrl_jax.core.files import new_draft, replacing
from llmrl_jax.data.columns import (
    D4RL_NAMES,
    EPISODE,
    FIELDS,
    SPOKEN,
    Columns,
    completed,
    from_columns,
    own_names,
    renamed,
    to_columns,
)
from llmrl_jax.data.masked import HDF5, PARQUET, is_rows, read_masked
from llmrl_jax.data.parquet import column_names, read_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, missing_data


_SAVE = (
    "save one row for each step with np.savez(FILE, observations=..., actions=..., rewards=..., next_observations=..., "
    "terminals=..., timeouts=...)"
)
_PICKLES = (".pkl", ".pickle", ".pckl", ".joblib", ".pt", ".pth")
_MINARI = ("data/main_data.hdf5", "main_data.hdf5")
"""The file of a Minari data set, in its folder."""


def read_data(path: str | Path, names: Mapping[str, str] | None = None) -> Transitions | Trajectories:
    """Read recorded steps: a `.parquet` or `.npz` file, a folder of `.npy` files, or an `.h5` or `.hdf5` file, with our
    columns or D4RL's (`D4RL_NAMES`); Minari's, robomimic's and d3rlpy's hdf5 (`read_hdf5`); padded episodes with masks,
    `.h5`, `.hdf5`, ImagineBench's `.parquet`, or an `.npy` file with a dict (`llmrl_jax.data.masked`).

    What other libraries leave out is derived, see `llmrl_jax.data.columns.completed`.

    **Arguments:** `names`, our name -> the name of a column in the file, where it is neither ours nor D4RL's.
    **Raises:** `FileNotFoundError`; `ModuleNotFoundError` for parquet without pyarrow and hdf5 without h5py;
    `DataError` for another format, Python objects, which need a pickle, or data that
    `llmrl_jax.data.columns.from_columns` refuses.

    **Example:**

    ```pycon
    >>> import numpy as np, llmrl_jax as lr
    >>> obs = np.linspace(0, 1, 32, dtype=np.float32).reshape(8, 4)
    >>> ends = np.arange(8) % 4 == 3
    >>> flags = {"terminals": ends, "timeouts": np.zeros(8, bool)}
    >>> np.savez("steps.npz", observations=obs, actions=np.arange(8) % 2, rewards=np.ones(8), **flags)
    >>> data = lr.read_data("steps.npz")
    >>> len(data), data.next_obs.shape
    (8, (8, 4))
    ```
    """
    path, theirs = Path(path).expanduser(), {**D4RL_NAMES, **(names or {})}
    if path.is_dir():
        if file := next((path / name for name in _MINARI if (path / name).is_file()), None):
            return read_hdf5(file, theirs)
        _refuse_folder(path)
    if path.suffix == PARQUET and not (path.is_file() and is_rows(column_names(path))):
        return read_parquet(path, theirs)
    if path.suffix in HDF5:
        return read_hdf5(path, theirs)
    if path.suffix == PARQUET or is_object(path):
        _refuse_names(path, names)
        return read_masked(path)
    if path.suffix in (".npz", ".npy") or path.is_dir() or not path.exists():
        return read_arrays(path, theirs)
    if path.suffix in _PICKLES:
        raise DataError(
            f"{path} is a pickle (Decision Transformer's data are), and reading one runs what it says, so it is "
            f"refused. Where you trust its source, load it elsewhere, and {_SAVE}"
        )
    if ".tfrecord" in path.name:
        raise DataError(f"{path} is a TFRecord (RLDS, TFDS): read it with tensorflow_datasets elsewhere, and {_SAVE}")
    raise DataError(
        f"{path} ends in {path.suffix or 'nothing'}; a .parquet, .npz, .npy, .h5 or .hdf5 file, or a folder of .npy "
        f"files, is needed: {_SAVE}"
    )


def _refuse_names(path: Path, names: Mapping[str, str] | None) -> None:
    """**Raises** `DataError` for names of columns in a format that has its own."""
    if names := own_names(names):
        listed = ",".join(f"{name}={theirs}" for name, theirs in names.items())
        raise DataError(
            f"names of columns are {listed}, but {path} is of a format that has its own: leave them out, or {_SAVE}"
        )


def _refuse_folder(path: Path) -> None:
    """**Raises** `DataError` for a data set of a library whose folders are not read."""
    names = {file.name for file in path.iterdir()}
    if "dataset_info.json" in names or any(".tfrecord" in name for name in names):
        raise DataError(
            f"{path} is a data set of TFDS or RLDS: read it with tensorflow_datasets elsewhere, and {_SAVE}"
        )
    if (path / "meta" / "info.json").is_file():
        raise DataError(
            f"{path} is a LeRobot data set: give one of the .parquet files of its folder data, with --data-names "
            "obs=observation.state,reward=next.reward,terminated=next.done,episode=episode_index (pictures are in "
            "videos, which are not read)"
        )
    if names & {".zgroup", ".zarray", "zarr.json"}:
        raise DataError(f"{path} is a Zarr store: read it with zarr elsewhere, and {_SAVE}")
    if "metadata.json" in names and (path / "data").is_dir() or (path / "data" / "metadata.json").is_file():
        raise DataError(
            f"{path} is a Minari data set without main_data.hdf5: load it with minari elsewhere, and {_SAVE}"
        )


# --- NumPy files ------------------------------------------------------------------------------------------------------


def write_arrays(path: str | Path, data: Transitions | Trajectories) -> None:
    """Write data atomically, replacing existing files.

    **Arguments:** `path`, one file if it ends in `.npz`, else a folder of `.npy` files; `data`.
    **Raises:** `DataError` for data that a reader would refuse.
    """
    path = Path(path)
    columns = to_columns(data)
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


def read_arrays(path: str | Path, names: Mapping[str, str] | None = None) -> Transitions | Trajectories:
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
        raise missing_data(path)
    else:
        columns = _archive(path)
    if names is not None:
        columns = completed(renamed(columns, names, str(path)), str(path))
    return from_columns(columns, str(path))


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


# --- hdf5 of other libraries ------------------------------------------------------------------------------------------


MINARI_EPISODE, ROBOMIMIC_EPISODE = re.compile(r"episode_([0-9]+)"), re.compile(r"demo_([0-9]+)")
_CONVERT = "read it with its own library and save observations, actions, rewards, terminals and timeouts with np.savez"
"""The remedy for a layout that is not read."""


def read_hdf5(path: str | Path, names: Mapping[str, str] | None = None) -> Transitions | Trajectories:
    """Read an `.h5` or `.hdf5` file.

    * Flat columns `[N, ...]`, of which groups are nested parts of observations; groups such as `infos` and `metadata`
      are not read. `episode_terminals`, of d3rlpy before version 2, is the end of an episode for whatever reason.
    * Minari: `episode_I` with `observations` of a step more than `actions`, `rewards`, `terminations`, `truncations`.
    * robomimic: `data/demo_I` with a group `obs`, and `next_obs` where it is there. `dones` are terminal states; an
      episode without one was cut off.
    * d3rlpy's `ReplayBuffer.dump`: `observations_I`, `actions_I`, `rewards_I`, `terminated_I`.
    * Padded episodes with masks, as `read_masked`.

    **Arguments:** `names`, our name -> that of flat columns. **Returns:** `Transitions`, or `Trajectories` of padded
    episodes. **Raises:** `FileNotFoundError`; `ModuleNotFoundError` without h5py; `DataError` for another layout, and
    what `completed` and `from_columns` refuse.
    """
    h5py, path = require("an hdf5 file", "data", "h5py"), Path(path)
    if not path.is_file():
        raise missing_data(path)
    try:
        with h5py.File(path, "r") as file:
            layout = None if _is_masked(h5py, file) else _layout(h5py, file)
            if layout is not _columns:
                _refuse_names(path, names)
            if layout is None:
                return read_masked(path)
            columns, present = layout(h5py, file, names or {}, str(path)), list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as hdf5: {error}") from error
    return from_columns(completed(columns, str(path)), str(path), present)


def _is_masked(h5py: Any, file: Any) -> bool:
    """Return whether these are padded episodes, `[episodes, steps, ...]`."""
    masks = file.get("masks", file.get("action_masks"))
    if isinstance(masks, h5py.Dataset):
        return masks.ndim > 1
    obs, reward = file.get("observations"), file.get("rewards")
    are_arrays = isinstance(obs, h5py.Dataset) and isinstance(reward, h5py.Dataset)
    return are_arrays and obs.ndim == 3 and reward.shape[:2] == obs.shape[:2]


Layout = Callable[[Any, Any, Mapping[str, str], str], Columns]


def _layout(h5py: Any, file: Any) -> Layout:
    if any(MINARI_EPISODE.fullmatch(name) for name in file):
        return _minari
    if isinstance(file.get("data"), h5py.Group) and any(ROBOMIMIC_EPISODE.fullmatch(name) for name in file["data"]):
        return _robomimic
    return _d3rlpy if "num_episodes" in file and "columns" in file else _columns


def _columns(h5py: Any, file: Any, names: Mapping[str, str], source: str) -> Columns:
    columns: Columns = {}
    heads = {name.partition(".")[0] for name in (*FIELDS, EPISODE, *names.values())}
    for name in file:
        if name in heads or name in ("episode_terminals", "length"):
            columns |= _parts(h5py, file[name], name, source)
    ends = columns.pop("episode_terminals", None)
    if not columns:
        raise DataError(f"{source} has none of the columns of recorded steps; it has {_listed(file)}: {_CONVERT}")
    columns = renamed(columns, names, source, file)
    if ends is not None and "truncated" not in columns and "terminated" in columns:
        ends, terminated = np.asarray(ends), columns["terminated"]
        if ends.shape == terminated.shape:
            columns["truncated"] = (ends != 0) & (terminated == 0)
    return columns


def _minari(h5py: Any, file: Any, names: Mapping[str, str], source: str) -> Columns:
    def episode(group: Any, location: str) -> Columns:
        _needs(group, ("observations", "actions", "rewards", "terminations", "truncations"), location)
        obs = _parts(h5py, group["observations"], "obs", location)
        steps = _steps(h5py, group, location, terminated="terminations", truncated="truncations")
        count = len(steps["reward"])
        if wrong := next((name for name, x in obs.items() if len(x) != count + 1), None):
            raise DataError(
                f"{location}: {wrong} has {len(obs[wrong])} rows, and there are {count} steps; one more is needed"
            )
        after = {"next_" + name: x[1:] for name, x in obs.items()}
        return {**{name: x[:-1] for name, x in obs.items()}, **after, **steps}

    return _joined(((name, file[name]) for name in _sorted(file, MINARI_EPISODE)), episode, source)


def _robomimic(h5py: Any, file: Any, names: Mapping[str, str], source: str) -> Columns:
    def episode(group: Any, location: str) -> Columns:
        if any(name not in group for name in ("obs", "actions", "rewards", "dones")):
            raise DataError(
                f"{location} has {_listed(group)}; obs, actions, rewards and dones are needed: extract them with "
                "robomimic's dataset_states_to_obs.py"
            )
        columns = _parts(h5py, group["obs"], "obs", location) | _steps(h5py, group, location, terminated="dones")
        return columns | (_parts(h5py, group["next_obs"], "next_obs", location) if "next_obs" in group else {})

    data = file["data"]
    return _joined(((f"data/{name}", data[name]) for name in _sorted(data, ROBOMIMIC_EPISODE)), episode, source)


def _d3rlpy(h5py: Any, file: Any, names: Mapping[str, str], source: str) -> Columns:
    def episode(number: int, location: str) -> Columns:
        keys = [f"{name}_{number}" for name in ("observations", "actions", "rewards", "terminated")]
        obs = {"obs": file[keys[0]][...]} if keys[0] in file else {}
        while (key := f"{keys[0]}_{len(obs)}") in file and "obs" not in obs:  # the parts of a tuple
            obs[f"obs.{len(obs)}"] = file[key][...]
        if not obs:
            raise DataError(f"{location} has no {keys[0]}: the file is damaged")
        _needs(file, keys[1:], location)
        action, reward = (file[key][...] for key in keys[1:3])
        ends = np.arange(len(reward)) == len(reward) - 1
        is_over = bool(file[keys[3]][()])
        return {
            **obs,
            "action": action,
            "reward": reward,
            "terminated": ends & is_over,
            "truncated": ends & (not is_over),
        }

    episodes = ((f"episode {i}", i) for i in range(int(file["num_episodes"][()])))
    return _joined(episodes, episode, source)


def _joined(episodes: Iterable[tuple[str, Any]], read: Callable[[Any, str], Columns], source: str) -> Columns:
    """The steps of all episodes; the last one of an episode without an end was cut off."""
    parts: list[Columns] = []
    for name, group in episodes:
        location = f"{source}: {name}"
        columns = {key: np.asarray(x) for key, x in read(group, location).items()}
        for key in ("terminated", "truncated", "reward"):
            columns[key] = columns.get(key, np.zeros(len(columns["reward"]), bool)).reshape(-1)
        count = len(columns["reward"])
        if wrong := next((key for key, x in columns.items() if len(x) != count), None):
            raise DataError(f"{location}: {wrong} has {len(columns[wrong])} rows, and there are {count} rewards")
        if not count:
            continue
        columns["truncated"] = columns["truncated"].astype(bool)
        columns["truncated"][-1] |= columns["terminated"][-1] == 0
        if parts and (differing := sorted(parts[0].keys() ^ columns.keys())):
            raise DataError(f"{location}: {differing[0]} is in some episodes only")
        if differing := [key for key, x in columns.items() if parts and x.shape[1:] != parts[0][key].shape[1:]]:
            shapes = [list(x[differing[0]].shape[1:]) for x in (columns, parts[0])]
            raise DataError(f"{location}: {differing[0]} has the shape {shapes[0]}, and {shapes[1]} before")
        parts.append(columns)
    if not parts:
        raise DataError(f"{source} has no step; at least 1 is needed")
    return {key: np.concatenate([columns[key] for columns in parts]) for key in parts[0]}


def _steps(h5py: Any, group: Any, location: str, **flags: str) -> Columns:
    """Actions, rewards and, by their names in the file, flags. **Raises:** `DataError` for those with parts."""
    keys = {"action": "actions", "reward": "rewards", **flags}
    if grouped := [key for key in keys.values() if isinstance(group[key], h5py.Group)]:
        parts = _listed(group[grouped[0]])
        raise DataError(f"{location}: {grouped[0]} have the parts {parts}; one array is needed: {_CONVERT}")
    return {name: _parts(h5py, group[key], name, location)[name] for name, key in keys.items()}


def _parts(h5py: Any, node: Any, name: str, source: str) -> Columns:
    """A dataset, or the datasets of a group by dotted names."""
    if isinstance(node, h5py.Group):
        return {key: x for part in node for key, x in _parts(h5py, node[part], f"{name}.{part}", source).items()}
    if h5py.check_string_dtype(node.dtype) is not None:
        if name in SPOKEN:
            return {}
        raise DataError(f"{source}: {name} holds texts; numbers are needed: leave it out, or number the texts")
    if node.dtype.kind not in "biuf":
        raise DataError(f"{source}: {name} is {node.dtype}; numbers are needed")
    return {name: node[...]}


def _needs(group: Any, names: Iterable[str], location: str) -> None:
    if missing := [name for name in names if name not in group]:
        raise DataError(f"{location} has no {', '.join(missing)}; it has {_listed(group)}")


def _sorted(group: Any, pattern: re.Pattern[str]) -> list[str]:
    """The names of a group that fit, by their numbers."""
    fitting = [match for match in map(pattern.fullmatch, group) if match]
    return [match[0] for match in sorted(fitting, key=lambda match: int(match[1]))]


def _listed(group: Any) -> str:
    names = sorted(group)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"
