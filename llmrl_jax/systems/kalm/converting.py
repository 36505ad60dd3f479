"""Published episodes as those of `llmrl kalm collect`: `--from FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from llmrl_jax.data.masked import read_published
from llmrl_jax.data.transitions import DataError, Transitions, to_transitions
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, STATE, World


def taken_over(file: str | Path, world: World, level: str, seed: int) -> Transitions:
    """The episodes of a file (kalm reference, section 1.5), with observations as the world's.

    Their goals are kept. Their words are not: an episode gets one of our sentences for its goal, drawn by the seed,
    since grounding and agents know sentences by their numbers.

    **Arguments:** `level`, of all episodes of the file.
    **Raises:** what `read_published` raises; `DataError` for a file without goals, for goals that the level does not
    have, and for states of another width than the world's.
    """
    read = read_published(file)
    env = world.make(level)
    width = env.observation_space(env.default_params).spaces[STATE].shape[0]  # type: ignore[attr-defined]
    found = read.data.obs.shape[-1]
    if found != width:
        raise DataError(
            f"{file} has observations of {found} numbers, and a state of {world.name} has {width}"
            + (": with sentence vectors, `llmrl rl train --data` learns from them" if found > width else "")
        )
    goals = world.published(read.about, level)
    rng = np.random.default_rng(seed)
    said = np.empty(len(goals), np.int32)
    for goal in np.unique(goals, axis=0):
        numbers = np.flatnonzero((world.instructions.goals == goal).all(axis=1))
        numbers = numbers[np.isin(numbers, world.instructions.of(level))]
        same = (goals == goal).all(axis=1)
        if not len(numbers):
            raise DataError(f"{file}: the goal of episode {same.argmax()} is none of level {level}: give its --level")
        said[same] = rng.choice(numbers, same.sum())

    def observation(states: jax.Array) -> dict[str, np.ndarray]:
        rows = states.shape[:2]
        return {
            STATE: np.asarray(states),
            GOAL: np.broadcast_to(goals[:, None], (*rows, goals.shape[1])),
            INSTRUCTION: np.broadcast_to(said[:, None], rows),
        }

    data = read.data.replace(obs=observation(read.data.obs), next_obs=observation(read.data.next_obs))
    return to_transitions(data)


def clevr_goals(about: Mapping[str, np.ndarray], level: str) -> np.ndarray:
    """CLEVR-Robot's goals of episodes, int32 `[N, 10]`, from `goals` in the published code."""
    from envs_jax.clevr import from_published

    if "goals" not in about:
        raise DataError("the file has no 'goals', which say what its episodes are about")
    codes = about["goals"]
    try:
        return from_published(codes[:, 0] if codes.ndim == 3 else codes, level)
    except (ValueError, TypeError) as error:
        raise DataError(f"goals of the file are not those of level {level}: {error}") from error


def metaworld_goals(about: Mapping[str, np.ndarray], level: str) -> np.ndarray:
    """Meta-World's tasks of episodes, int32 `[N, 1]`, from `env_names`, as "reach-v2" or "rep-reach-v2"."""
    from envs_jax.metaworld.instructions import NAMES

    if "env_names" not in about or about["env_names"].dtype.kind != "U":
        raise DataError("the file has no 'env_names', which say what its episodes are about")
    names = [name.removeprefix("rep-").rsplit("-v", 1)[0] for name in about["env_names"].reshape(-1).tolist()]
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise DataError(f"env_names has {unknown[0]!r}, which is none of KALM's tasks ({', '.join(NAMES)})")
    return np.array([[NAMES.index(name)] for name in names], np.int32)
