"""Episodes padded to one length, with masks: the files of KALM and ImagineBench (kalm reference, section 1.5).

`observations` `[N, T, d]`, `actions` `[N, T]` or `[N, T, a]`, `rewards` and `masks` `[N, T]` or `[N, T, 1]`; also
`next_observations` and `terminals`, if they are there, and what is said of episodes: `instructions`, `goals`,
`env_names`. `.h5` and `.hdf5` hold them as arrays, `.npy` as a pickled dict, which `llmrl_jax.data.npy` reads without
running anything, `.parquet` as rows (`llmrl_jax.data.imagine_bench`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.extras import require
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import new_draft
from llmrl_jax.data import imagine_bench
from llmrl_jax.data.npy import numbers_of, read_objects, texts_of
from llmrl_jax.data.transitions import DataError, Trajectories


REQUIRED = ("observations", "actions", "rewards", "masks")
OPTIONAL = ("next_observations", "terminals", "action_masks")
ABOUT = ("instructions", "goals", "env_names")
"""What is said of episodes: texts `[N]` or `[N, W]`, numbers `[N, ...]`, texts `[N]`."""
HDF5 = (".h5", ".hdf5")
PARQUET = ".parquet"


@dataclass(frozen=True)
class Published:
    """The contents of a file."""

    data: Trajectories
    about: Mapping[str, np.ndarray]
    """The entries of `ABOUT` that are there, with an element for each episode."""


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
    return from_masked(_read(path, (*REQUIRED, *OPTIONAL)), str(path))


def read_published(path: str | Path) -> Published:
    """Read a file of this form with what it says of its episodes. **Raises:** see `read_masked`; also `DataError` where
    what it says has not an element for each episode."""
    path = Path(path).expanduser()
    found = _read(path, (*REQUIRED, *OPTIONAL, *ABOUT))
    data, about = from_masked(found, str(path)), {name: found[name] for name in ABOUT if name in found}
    for name, value in about.items():
        if len(value) != len(data):
            raise DataError(f"{path}: {name} are of {len(value)} episodes, and there are {len(data)}")
    return Published(data, about)


def from_masked(found: Mapping[str, np.ndarray], where: str) -> Trajectories:
    """Arrays of this form as episodes; see `read_masked`. **Arguments:** `where`, their name in messages."""
    found = dict(found)
    if "masks" not in found and "action_masks" in found:
        found["masks"] = found["action_masks"]
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise DataError(f"{where} has no {missing[0]!r} (it has {', '.join(sorted(found)) or 'nothing'})")
    obs = np.asarray(found["observations"])
    if obs.ndim != 3 or not obs.size:
        raise DataError(f"{where}: observations are {list(obs.shape)}; [episodes, steps, size] is needed")
    steps = {np.shape(found[name])[1:2] for name in ("actions", "rewards", "masks")}
    reached = obs[:, 1:] if steps == {(obs.shape[1] - 1,)} else None  # a row more: what the last action led to
    obs = obs if reached is None else obs[:, :-1]
    rows = obs.shape[:2]
    mask = _flat(found["masks"], rows, f"{where}: masks").astype(bool)
    length = mask.sum(1)
    ragged = np.flatnonzero((length == 0) | (mask != (np.arange(rows[1]) < length[:, None])).any(1))
    if len(ragged):
        raise DataError(f"{where}: the mask of episode {ragged[0]} is not ones and then zeros, from the first step on")
    last = np.arange(rows[1]) == length[:, None] - 1
    after = np.concatenate([obs[:, 1:], obs[:, -1:]], axis=1)
    if "next_observations" in found:
        given = np.asarray(found["next_observations"])
        if given.shape != obs.shape:
            raise DataError(f"{where}: next_observations are {list(given.shape)}, observations {list(obs.shape)}")
        after = np.where(last[..., None] & ~given.any(-1, keepdims=True), obs, given)
    elif reached is not None:
        after = np.where((last & (length < rows[1])[:, None])[..., None], obs, reached)
    else:
        after = np.where(last[..., None], obs, after)
    if "terminals" in found:
        ended = _flat(found["terminals"], rows, f"{where}: terminals").astype(bool) & mask
        early = np.argwhere(ended & ~last)
        if len(early):
            raise DataError(
                f"{where}: episode {early[0][0]} is terminal at step {early[0][1]}, and goes on after it: cut it there"
            )
    else:
        ended = last & (length < rows[1])[:, None]
    action = np.asarray(found["actions"])
    if action.shape[:2] != rows or action.ndim not in (2, 3):
        raise DataError(f"{where}: actions are {list(action.shape)}; {list(rows)} with at most one axis more is needed")
    if action.dtype.kind in "iub":
        action = action[..., 0] if action.ndim == 3 and action.shape[2] == 1 else action
        if action.ndim == 3:
            raise DataError(f"{where}: actions are whole numbers {list(action.shape)}; one for each step is needed")
    parts = {
        "obs": obs.astype(np.float32),
        "action": action.astype(np.int32 if action.dtype.kind in "iub" else np.float32),
        "reward": _flat(found["rewards"], rows, f"{where}: rewards").astype(np.float32),
        "next_obs": after.astype(np.float32),
        "terminated": ended,
        "truncated": last & ~ended,
    }
    for name, x in parts.items():
        shaped = mask.reshape(rows + (1,) * (x.ndim - 2))
        parts[name] = np.where(shaped, x, np.zeros((), x.dtype))
        bad = np.argwhere(~np.isfinite(parts[name]))
        if len(bad):
            raise DataError(f"{where}: {name} of episode {bad[0][0]}, step {bad[0][1]} is not finite")
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
    found = to_masked(data) if isinstance(data, Trajectories) else {name: np.asarray(x) for name, x in data.items()}
    if odd := [name for name, x in found.items() if x.dtype.kind not in "biufU"]:
        raise DataError(f"{odd[0]} is no array of numbers or of texts, as all in such a file are: leave it out")
    if path.suffix in HDF5:
        h5py = _h5py()
        with new_draft(path) as draft, h5py.File(draft, "w") as file:
            for name, x in found.items():
                file[name] = x.astype(h5py.string_dtype()) if x.dtype.kind == "U" else x
        return
    if path.suffix == PARQUET:
        imagine_bench.write_rows(path, found)
        return
    if path.suffix != ".npy":
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}; .npy, .h5, .hdf5 or .parquet is written")
    with new_draft(path) as draft, draft.open("wb") as file:
        np.save(file, np.array(found, object), allow_pickle=True)


def _flat(value: Any, rows: tuple[int, ...], where: str) -> np.ndarray:
    """Numbers `[N, T]`, also where they are `[N, T, 1]`."""
    value = np.asarray(value)
    value = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    if value.shape != rows or value.dtype.kind not in "biuf":
        raise DataError(f"{where} are {value.dtype}{list(value.shape)}; numbers {list(rows)} are needed")
    return value


def _read(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Those of the arrays that a file has; others are not looked at, whatever they are."""
    if not path.is_file():
        here = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there are no data at {path}{nearest(path.name, here)}")
    read = _hdf5 if path.suffix in HDF5 else imagine_bench.read_rows if path.suffix == PARQUET else _npy
    return read(path, names)


def _npy(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    objects = read_objects(path)
    if len(objects) != 1 or not isinstance(objects[0], dict):
        raise DataError(f"{path} has no dict of arrays")
    found = {}
    for name, value in objects[0].items():
        if name not in names:
            continue
        read = numbers_of(value)
        if read is None and name in ABOUT:
            read = texts_of(value)
        if read is None:
            kind = "numbers or texts" if name in ABOUT else "numbers"
            raise DataError(f"{path}: {name} is no array of {kind} of one shape")
        found[name] = read
    return found


def _hdf5(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    h5py = _h5py()
    found = {}
    try:
        with h5py.File(path, "r") as file:
            for name in names:
                if name in file:
                    texts = h5py.check_string_dtype(file[name].dtype) is not None
                    found[name] = np.asarray(file[name].asstr()[...], str) if texts else np.asarray(file[name])
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as hdf5: {error}") from error
    return found


def _h5py() -> Any:
    return require("an hdf5 file", "data", "h5py")
