"""The published layout of collected episodes: a list of dicts in an npy file (bkrl reference, section 2.1).

NumPy writes such a list by pickling it. Reading a pickle can run any code, so that `read_npy` needs to be allowed to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.env import Environment
from llmrl_jax.core.files import digest_of, new_draft
from llmrl_jax.data.transitions import DataError
from llmrl_jax.systems.bkrl.collected import FLAT, Collected
from llmrl_jax.systems.bkrl.worlds import TEXT, world_of


SCALES = np.array([10, 5, 3], np.float32)
"""By which the published images of BabyAI are divided, per plane."""
STEPS = ("action", "timestep", "reward", "terminated", "truncated", "infos")
"""The entries of an episode that have one item per action."""


def episodes_of(data: Collected, env: Environment) -> list[dict[str, Any]]:
    """The published list.

    **Raises:** `ValueError` for a world of Crafter whose observations have no picture.
    """
    world = world_of(env)
    if "image" not in data.obs:
        raise ValueError(
            f"the published layout has pictures, which these observations of {env.id} lack: collect with an --env "
            "without ?image=none"
        )
    found = []
    for i, (start, length) in enumerate(zip(data.starts, data.lengths)):
        seen = slice(start + i, start + i + length + 1)
        steps = slice(start, start + length)
        image = data.obs["image"][seen].astype(np.float32)
        image = image.transpose(0, 3, 1, 2)
        parts: dict[str, Any] = {
            "image": image / SCALES.reshape(1, 3, 1, 1) if world.family == "babyai" else image / np.float32(255),
            "description": _strings(env, TEXT, data.obs[TEXT][seen]),
        }
        if world.family == "babyai":
            parts |= {
                "direction": data.obs["direction"][seen].tolist(),
                "mission": _strings(env, "mission", data.obs["mission"][seen]),
            }
        found.append(
            parts
            | {
                "action": data.action[steps].tolist(),
                "timestep": list(range(int(length))),
                "reward": data.reward[steps].tolist(),
                "terminated": data.terminated[steps].tolist(),
                "truncated": data.truncated[steps].tolist(),
                "infos": [{} for _ in range(int(length))],
            }
        )
    return found


def write_npy(path: Path, data: Collected, env: Environment) -> None:
    """Write episodes in the published layout, atomically."""
    array = np.empty(len(data), object)
    array[:] = episodes_of(data, env)
    with new_draft(path) as draft, draft.open("wb") as file:
        np.save(file, array, allow_pickle=True)


def read_npy(path: Path, env: Environment, *, unpickle: bool) -> Collected:
    """Read a file of the published layout, of BabyAI; missions are left out, as no potential depends on them.

    **Arguments:** `env`, for its phrases; `unpickle`, whether the file may be unpickled, which can run any code in it.
    **Raises:** `ValueError` if it may not, or for another world; `DataError` for a file of another layout.
    """
    if world_of(env).family != "babyai":
        raise ValueError(f"{path} is read for {env.id}, but published files can be read for BabyAI only: use parquet")
    if not unpickle:
        raise ValueError(
            f"{path} is a pickle, which can run any code when it is read: pass --unpickle if you trust its origin"
        )
    try:
        episodes = list(np.load(path, allow_pickle=True))
    except Exception as error:
        raise DataError(f"{path} is no npy file: {error}") from error
    if not episodes:
        raise DataError(f"{path} has no episodes")
    parts = [_episode(f"{path}: episode {i}", episode, env) for i, episode in enumerate(episodes)]
    obs = {name: np.concatenate([part["obs"][name] for part in parts]) for name in parts[0]["obs"]}
    flat = {name: np.concatenate([part[name] for part in parts]) for name in FLAT}
    return Collected(obs=obs, **flat, digest=digest_of(path))


def _episode(where: str, episode: Any, env: Environment) -> dict[str, Any]:
    needed = {"image", "description", "direction", "action", "reward"}
    if not isinstance(episode, dict) or not needed <= set(episode):
        raise DataError(f"{where} is not of the published layout: it needs {', '.join(sorted(needed))}")
    count = len(episode["action"])
    image = np.asarray(episode["image"], np.float32)
    if image.shape != (count + 1, 3, 7, 7) or len(episode["description"]) != count + 1:
        raise DataError(
            f"{where} has {count} actions, images {list(image.shape)} and {len(episode['description'])} descriptions; "
            f"{[count + 1, 3, 7, 7]} and {count + 1} are needed"
        )
    book, size = env.captions[TEXT], env.observation_space(env.default_params).spaces[TEXT].shape[0]  # type: ignore
    captions = np.full((count + 1, size), -1, np.int16)
    for i, text in enumerate(episode["description"]):
        try:
            captions[i] = book.caption(text.split(book.separator) if text else [], size)
        except (KeyError, ValueError) as error:
            raise DataError(f"{where} says {text!r}, which {env.id} does not say: {error}") from error
    last = np.arange(count) == count - 1
    terminated = np.asarray(episode.get("terminated", last), bool) & last
    return {
        "obs": {
            "image": np.rint(image * SCALES.reshape(1, 3, 1, 1)).astype(np.uint8).transpose(0, 2, 3, 1),
            "direction": np.asarray(episode["direction"], np.int32),
            TEXT: captions,
        },
        "action": np.asarray(episode["action"], np.int32),
        "reward": np.asarray(episode["reward"], np.float32),
        "terminated": terminated,
        "truncated": last & ~terminated,
    }


def _strings(env: Environment, part: str, captions: np.ndarray) -> list[str]:
    return [env.captions[part].render(row) for row in captions]
