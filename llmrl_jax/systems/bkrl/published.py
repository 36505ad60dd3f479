"""The published layout of collected episodes: a list of dicts in an npy file (bkrl reference, section 2.1).

NumPy writes such a list by pickling it. `llmrl_jax.data.npy` reads it, and runs nothing that is in it.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from envs_jax.env import Environment
from llmrl_jax.core.files import digest_of, new_draft
from llmrl_jax.data.npy import array_of, items_of, read_objects
from llmrl_jax.data.transitions import DataError
from llmrl_jax.systems.bkrl.collected import FLAT, Collected
from llmrl_jax.systems.bkrl.worlds import TEXT, world_of


SCALES = np.array([10, 5, 3], np.float32)
"""By which the published images of BabyAI are divided, per plane."""
STEPS = ("action", "timestep", "reward", "terminated", "truncated", "infos")
"""The entries of an episode that have one item per action."""


def check_pictures(parts: Container[str], env: Environment) -> None:
    """**Raises** `ValueError` for observations without a picture, which the published layout needs."""
    if "image" not in parts:
        raise ValueError(
            f"the published layout (--npy) has pictures, which these observations of {env.id} lack: collect with an "
            "--env without ?image=none"
        )


def episodes_of(data: Collected, env: Environment) -> list[dict[str, Any]]:
    """The published list. **Raises:** as `check_pictures`."""
    world = world_of(env)
    check_pictures(data.obs, env)
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


def read_npy(path: Path, env: Environment) -> Collected:
    """Read a file of the published layout, of BabyAI; missions are left out, as no potential depends on them.

    **Arguments:** `env`, for its phrases and actions.
    **Raises:** `ValueError` for another world; `DataError` for a file of another layout, or with values that this world
    does not have.
    """
    if world_of(env).family != "babyai":
        raise ValueError(f"{path} is read for {env.id}, but published files can be read for BabyAI only: use parquet")
    episodes = read_objects(path)
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
    steps = items_of(episode["action"])
    if not steps:
        raise DataError(f"{where} has no list of actions")
    count = len(steps)
    action = _numbers(where, "action", steps, count, (0, len(env.action_names) - 1), whole=True)
    last = np.arange(count) == count - 1
    given = episode.get("terminated", last.tolist())
    terminated = _numbers(where, "terminated", given, count, (0, 1), whole=True).astype(bool)
    if terminated[:-1].any():
        raise DataError(f"{where} is terminated at step {int(terminated.argmax())} of {count}, and goes on")
    return {
        "obs": {
            "image": _image(where, episode["image"], count + 1),
            "direction": _numbers(where, "direction", episode["direction"], count + 1, (0, 3), whole=True),
            TEXT: _captions(where, episode["description"], count + 1, env),
        },
        "action": action,
        "reward": _numbers(where, "reward", episode["reward"], count, (-1e9, 1e9)).astype(np.float32),
        "terminated": terminated,
        "truncated": last & ~terminated,
    }


def _numbers(
    where: str, name: str, given: Any, count: int, span: tuple[float, float], *, whole: bool = False
) -> np.ndarray:
    """Numbers of an entry: int32 if they are whole. **Arguments:** `span`, the lowest and the highest."""
    items = items_of(given)
    if items is None or len(items) != count:
        said = "no list" if items is None else f"{len(items)} items"
        raise DataError(
            f"{where} has {said} as {name!r}; {count} numbers are needed, for {count} steps or observations"
        )
    for item in items:
        if not isinstance(item, int if whole else int | float) or not span[0] <= item <= span[1] or item != item:
            what = f"whole numbers from {span[0]} to {span[1]}" if whole else "numbers of at most 1e9"
            raise DataError(f"{where} has {str(item)[:40]!r} in {name!r}; {what} are needed")
    return np.array(items, np.int32 if whole else np.float64)


def _image(where: str, given: Any, count: int) -> np.ndarray:
    image = array_of(given, (count, 3, 7, 7))
    if image is None:
        raise DataError(f"{where} has no images of the shape {[count, 3, 7, 7]}: one for each observation is needed")
    codes = image * SCALES.reshape(1, 3, 1, 1)
    whole = np.rint(codes)
    if not (np.abs(codes - whole) < 1e-3).all() or image.min() < 0 or image.max() > 1:
        low, high = float(image.min()), float(image.max())
        raise DataError(
            f"{where} has images from {low:g} to {high:g} that are no codes divided by {SCALES.astype(int).tolist()}"
        )
    return whole.astype(np.uint8).transpose(0, 2, 3, 1)


def _captions(where: str, given: Any, count: int, env: Environment) -> np.ndarray:
    texts = items_of(given)
    if texts is None or len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where} has no {count} texts as 'description': one for each observation is needed")
    book, size = env.captions[TEXT], env.observation_space(env.default_params).spaces[TEXT].shape[0]  # type: ignore
    captions = np.full((count, size), -1, np.int16)
    for i, text in enumerate(texts):
        try:
            captions[i] = book.caption(text.split(book.separator) if text else [], size)
        except (KeyError, ValueError) as error:
            raise DataError(f"{where} says {text[:200]!r}, which {env.id} does not say: {error}") from error
    return captions


def _strings(env: Environment, part: str, captions: np.ndarray) -> list[str]:
    return [env.captions[part].render(row) for row in captions]
