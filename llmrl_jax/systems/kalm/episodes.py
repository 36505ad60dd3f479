"""Episodes on disk: those of `llmrl kalm collect` and `imagine`, with their world and level, and published files."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

from llmrl_jax.core.files import write_whole
from llmrl_jax.data.masked import read_published
from llmrl_jax.data.parquet import read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_trajectories, to_transitions
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, REAL, STATE, World, level_of, world_of
from llmrl_jax.workflows.offline_training import check_world


EPISODES = "episodes.parquet"
ABOUT = "data.json"


def write(folder: Path, world: World, level: str, data: Transitions | Trajectories, *, imagined: bool = False) -> None:
    """Write the episodes of a level to a run's folder."""
    write_parquet(folder / EPISODES, data)
    about = {"world": world.name, "level": level, **({"imagined": True} if imagined else {})}
    write_whole(folder / ABOUT, json.dumps(about) + "\n")


def about_of(folder: Path, maker: str) -> tuple[World, str, bool]:
    """The world and the level of a folder's episodes, and whether they are imagined.

    **Arguments:** `maker`, the command that should have made it, for messages.
    **Raises:** `FileNotFoundError`; `DataError` for a `data.json` of another form.
    """
    file = folder / ABOUT
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {ABOUT}: give that of {maker}")
    try:
        about = json.loads(file.read_text())
        return world_of(about["world"]), level_of(about["level"]), bool(about.get("imagined", False))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file} is damaged, or of something else than {maker}: {error}") from error


def check_steps(world: World, data: Transitions) -> None:
    """**Raises** `DataError` for observations or actions that are not the world's: other parts, shapes, numbers."""
    env = world.make(REAL)
    params = env.default_params
    check_world(data, env.observation_space(params), world.name)
    actions_of(data, env.action_space(params), world.name)


def read(folder: str | Path, world: str = "", *, imagined: bool = False) -> tuple[World, str, Trajectories]:
    """The world, the level and the episodes of a run.

    **Arguments:** `world`, the one that is needed; empty: any. `imagined`, whether imagined episodes are needed, and
    not recorded ones.
    **Raises:** `FileNotFoundError`, `DataError` for a folder of something else, of another world, or whose observations
    or actions are not the world's.
    """
    folder, maker = Path(folder), f"`llmrl kalm {'imagine' if imagined else 'collect'}`"
    its_world, level, is_imagined = about_of(folder, maker)
    if is_imagined != imagined:
        kind, other = ("imagined", "recorded") if imagined else ("recorded", "imagined")
        raise DataError(f"{folder} has {other} episodes, and {kind} ones are needed here: give the folder of {maker}")
    if world and its_world.name != world:
        raise DataError(f"{folder} has episodes of {its_world.name!r}, and {world!r} is needed")
    data = read_parquet(folder / EPISODES).data
    check_steps(its_world, data)
    return its_world, level, to_trajectories(data)


def convert_published(file: str | Path, world: World, level: str, seed: int) -> Transitions:
    """The episodes of a file (kalm reference, section 1.5), with observations as the world's.

    Their goals are kept. Their words are not: an episode gets one of our sentences for its goal, drawn by the seed,
    since grounding and agents know sentences by their numbers.

    **Arguments:** `level`, of all episodes of the file.
    **Raises:** what `read_published` raises; `DataError` for a file without goals, for goals that the level does not
    have, and for observations or actions that are not the world's.
    """
    source = read_published(file)
    env = world.make(level)
    size = env.observation_space(env.default_params).spaces[STATE].shape[0]  # type: ignore[attr-defined]
    width = source.data.obs.shape[-1]
    if width != size:
        raise DataError(
            f"{file} has observations of {width} numbers, and a state of {world.name} has {size}"
            + (": with sentence vectors, `llmrl rl train --data` learns from them" if width > size else "")
        )
    goals = world.published(source.about, level)
    rng = np.random.default_rng(seed)
    sentences = np.empty(len(goals), np.int32)
    for goal in np.unique(goals, axis=0):
        numbers = np.flatnonzero((world.instructions.goals == goal).all(axis=1))
        numbers = numbers[np.isin(numbers, world.instructions.of(level))]
        same = (goals == goal).all(axis=1)
        if not len(numbers):
            raise DataError(f"{file}: the goal of episode {same.argmax()} is none of level {level}: give its --level")
        sentences[same] = rng.choice(numbers, same.sum())

    def observation(states: jax.Array) -> dict[str, np.ndarray]:
        rows = states.shape[:2]
        return {
            STATE: np.asarray(states),
            GOAL: np.broadcast_to(goals[:, None], (*rows, goals.shape[1])),
            INSTRUCTION: np.broadcast_to(sentences[:, None], rows),
        }

    data = source.data.replace(obs=observation(source.data.obs), next_obs=observation(source.data.next_obs))
    steps = to_transitions(data)
    check_steps(world, steps)
    return steps
