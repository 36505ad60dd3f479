"""HDF5 files of other libraries: D4RL's flat columns, Minari's and robomimic's groups of episodes, d3rlpy's buffers.

Padded episodes with masks, which are in hdf5 too, are those of `llmrl_jax.data.masked`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.extras import require
from llmrl_jax.core.checks import nearest
from llmrl_jax.data.columns import EPISODE, FIELDS, Columns, Loaded, completed, from_columns, renamed
from llmrl_jax.data.masked import read_masked
from llmrl_jax.data.transitions import DataError


MINARI, ROBOMIMIC = re.compile(r"episode_([0-9]+)"), re.compile(r"demo_([0-9]+)")
CONVERT = "read it with its own library and save observations, actions, rewards, terminals and timeouts with np.savez"
"""The remedy for a layout that is not read."""


def read_hdf5(path: Path, names: Mapping[str, str]) -> Loaded:
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
    h5py = require("an hdf5 file", "data", "h5py")
    if not path.is_file():
        here = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise FileNotFoundError(f"there are no data at {path}{nearest(path.name, here)}")
    try:
        with h5py.File(path, "r") as file:
            if _is_masked(h5py, file):
                return Loaded(read_masked(path), {})
            columns, present = _layout(h5py, file)(h5py, file, names, str(path)), list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as hdf5: {error}") from error
    return from_columns(completed(columns, str(path)), str(path), present=present)


def _is_masked(h5py: Any, file: Any) -> bool:
    """Whether these are padded episodes, `[episodes, steps, ...]`."""
    masks = file.get("masks", file.get("action_masks"))
    if isinstance(masks, h5py.Dataset):
        return masks.ndim > 1
    obs, reward = file.get("observations"), file.get("rewards")
    both = isinstance(obs, h5py.Dataset) and isinstance(reward, h5py.Dataset)
    return both and obs.ndim == 3 and reward.shape[:2] == obs.shape[:2]


Layout = Callable[[Any, Any, Mapping[str, str], str], Columns]


def _layout(h5py: Any, file: Any) -> Layout:
    if any(MINARI.fullmatch(name) for name in file):
        return _minari
    if isinstance(file.get("data"), h5py.Group) and any(ROBOMIMIC.fullmatch(name) for name in file["data"]):
        return _robomimic
    return _d3rlpy if "num_episodes" in file and "columns" in file else _columns


def _columns(h5py: Any, file: Any, names: Mapping[str, str], where: str) -> Columns:
    found: Columns = {}
    heads = {name.partition(".")[0] for name in (*FIELDS, EPISODE, *names.values())}
    for name in file:
        if name in heads or name in ("episode_terminals", "length"):
            found |= _parts(h5py, file[name], name, where)
    ends = found.pop("episode_terminals", None)
    found = renamed(found, names)
    if not found:
        raise DataError(f"{where} has none of the columns of recorded steps; it has {_listed(file)}: {CONVERT}")
    if ends is not None and "truncated" not in found and "terminated" in found:
        ends, terminated = np.asarray(ends), found["terminated"]
        if ends.shape == terminated.shape:
            found["truncated"] = (ends != 0) & (terminated == 0)
    return found


def _minari(h5py: Any, file: Any, names: Mapping[str, str], where: str) -> Columns:
    def episode(group: Any, here: str) -> Columns:
        _needs(group, ("observations", "actions", "rewards", "terminations", "truncations"), here)
        obs = _parts(h5py, group["observations"], "obs", here)
        steps = _steps(h5py, group, here, terminated="terminations", truncated="truncations")
        count = len(steps["reward"])
        if wrong := next((name for name, x in obs.items() if len(x) != count + 1), None):
            raise DataError(
                f"{here}: {wrong} has {len(obs[wrong])} rows, and there are {count} steps; one more is needed"
            )
        after = {"next_" + name: x[1:] for name, x in obs.items()}
        return {**{name: x[:-1] for name, x in obs.items()}, **after, **steps}

    return _joined(((name, file[name]) for name in _sorted(file, MINARI)), episode, where)


def _robomimic(h5py: Any, file: Any, names: Mapping[str, str], where: str) -> Columns:
    def episode(group: Any, here: str) -> Columns:
        if "obs" not in group or "rewards" not in group or "dones" not in group:
            raise DataError(
                f"{here} has {_listed(group)}; obs, actions, rewards and dones are needed: extract them with "
                "robomimic's dataset_states_to_obs.py"
            )
        made = _parts(h5py, group["obs"], "obs", here) | _steps(h5py, group, here, terminated="dones")
        return made | (_parts(h5py, group["next_obs"], "next_obs", here) if "next_obs" in group else {})

    data = file["data"]
    return _joined(((f"data/{name}", data[name]) for name in _sorted(data, ROBOMIMIC)), episode, where)


def _d3rlpy(h5py: Any, file: Any, names: Mapping[str, str], where: str) -> Columns:
    def episode(number: int, here: str) -> Columns:
        keys = [f"{name}_{number}" for name in ("observations", "actions", "rewards", "terminated")]
        obs = {"obs": file[keys[0]][...]} if keys[0] in file else {}
        while (key := f"{keys[0]}_{len(obs)}") in file and "obs" not in obs:  # the parts of a tuple
            obs[f"obs.{len(obs)}"] = file[key][...]
        if not obs:
            raise DataError(f"{here} has no {keys[0]}: the file is damaged")
        _needs(file, keys[1:], here)
        action, reward = (file[key][...] for key in keys[1:3])
        ends = np.arange(len(reward)) == len(reward) - 1
        over = bool(file[keys[3]][()])
        return {**obs, "action": action, "reward": reward, "terminated": ends & over, "truncated": ends & (not over)}

    episodes = ((f"episode {i}", i) for i in range(int(file["num_episodes"][()])))
    return _joined(episodes, episode, where)


def _joined(episodes: Iterable[tuple[str, Any]], read: Callable[[Any, str], Columns], where: str) -> Columns:
    """The steps of all episodes; the last one of an episode without an end was cut off."""
    made: list[Columns] = []
    for name, group in episodes:
        here = f"{where}: {name}"
        columns = {key: np.asarray(x) for key, x in read(group, here).items()}
        for key in ("terminated", "truncated", "reward"):
            columns[key] = columns.get(key, np.zeros(len(columns["reward"]), bool)).reshape(-1)
        count = len(columns["reward"])
        if wrong := next((key for key, x in columns.items() if len(x) != count), None):
            raise DataError(f"{here}: {wrong} has {len(columns[wrong])} rows, and there are {count} rewards")
        if not count:
            continue
        columns["truncated"] = columns["truncated"].astype(bool)
        columns["truncated"][-1] |= columns["terminated"][-1] == 0
        if made and (odd := sorted(made[0].keys() ^ columns.keys())):
            raise DataError(f"{here}: {odd[0]} is in some episodes only")
        if odd := [key for key, x in columns.items() if made and x.shape[1:] != made[0][key].shape[1:]]:
            shapes = [list(x[odd[0]].shape[1:]) for x in (columns, made[0])]
            raise DataError(f"{here}: {odd[0]} has the shape {shapes[0]}, and {shapes[1]} before")
        made.append(columns)
    if not made:
        raise DataError(f"{where} has no step; at least 1 is needed")
    return {key: np.concatenate([columns[key] for columns in made]) for key in made[0]}


def _steps(h5py: Any, group: Any, here: str, **flags: str) -> Columns:
    """Actions, rewards and, by their names in the file, flags. **Raises:** `DataError` for those with parts."""
    keys = {"action": "actions", "reward": "rewards", **flags}
    if grouped := [key for key in keys.values() if isinstance(group[key], h5py.Group)]:
        parts = _listed(group[grouped[0]])
        raise DataError(f"{here}: {grouped[0]} have the parts {parts}; one array is needed: {CONVERT}")
    return {name: _parts(h5py, group[key], name, here)[name] for name, key in keys.items()}


def _parts(h5py: Any, node: Any, name: str, where: str) -> Columns:
    """A dataset, or the datasets of a group by dotted names."""
    if isinstance(node, h5py.Group):
        return {key: x for part in node for key, x in _parts(h5py, node[part], f"{name}.{part}", where).items()}
    if h5py.check_string_dtype(node.dtype) is not None:
        if name.partition(".")[0] in ("text", "goal"):
            return {name: np.asarray(node.asstr()[...], str)}
        raise DataError(f"{where}: {name} holds texts; numbers are needed: leave it out, or number the texts")
    if node.dtype.kind not in "biuf":
        raise DataError(f"{where}: {name} is {node.dtype}; numbers are needed")
    return {name: node[...]}


def _needs(group: Any, names: Iterable[str], here: str) -> None:
    if missing := [name for name in names if name not in group]:
        raise DataError(f"{here} has no {', '.join(missing)}; it has {_listed(group)}")


def _sorted(group: Any, pattern: re.Pattern[str]) -> list[str]:
    """The names of a group that fit, by their numbers."""
    fitting = [match for match in map(pattern.fullmatch, group) if match]
    return [match[0] for match in sorted(fitting, key=lambda match: int(match[1]))]


def _listed(group: Any) -> str:
    names = sorted(group)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"
