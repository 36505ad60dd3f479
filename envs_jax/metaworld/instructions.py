"""The instructions of each of KALM's levels: a text and its task."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.checks import nearest
from envs_jax.metaworld import wordings
from envs_jax.metaworld.tasks import TASKS
from envs_jax.text import Phrasebook


NAMES = tuple(TASKS)
"""Goal `i` is task `NAMES[i]`."""
TRAINED, EASIER, HARDER = NAMES[:10], NAMES[10:18], NAMES[18:]
LEVELS = {
    "real": (TRAINED, wordings.REAL),
    "rephrase": (TRAINED, wordings.REPHRASE),
    "easy": (EASIER, wordings.EASY),
    "hard": (HARDER, wordings.HARD),
}
"""The tasks of each level, and their frames."""


@dataclass(frozen=True)
class Instruction:
    """One way to ask for one task."""

    text: str
    task: str
    configuration: int
    """The number of the task within its level."""
    wording: int
    """The number of the wording among those of its task."""


@dataclass(frozen=True, eq=False)
class Level:
    """The instructions of a level; instruction `i` is phrase `i` of `book`."""

    name: str
    tasks: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    book: Phrasebook
    goals: np.ndarray
    """int32 `[I, 1]`: the task of each instruction, an index of `NAMES`."""
    configurations: np.ndarray
    """int32 `[I]`: the number of the task of each instruction within the level."""

    def draw(self, key: jax.Array) -> jax.Array:
        """The number of a random instruction, int32 `[]`: all tasks and all of their wordings are equally likely."""
        return jax.random.randint(key, (), 0, len(self.instructions), jnp.int32)


def check_level(name: str) -> None:
    """**Raises:** `ValueError` for an unknown level."""
    if name not in LEVELS:
        raise ValueError(f"unknown level {name!r}{nearest(name, list(LEVELS))} (levels are {', '.join(LEVELS)})")


@functools.cache
def level(name: str) -> Level:
    """A level's instructions: all pairs of task and wording.

    **Arguments:** `name`, one of `LEVELS`.
    **Raises:** `ValueError` for another name.
    """
    check_level(name)
    tasks, frames = LEVELS[name]
    entries = tuple(
        Instruction(frame.format(**wordings.PHRASES[task]._asdict()), task, number, wording)
        for number, task in enumerate(tasks)
        for wording, frame in enumerate(frames)
    )
    return Level(
        name=name,
        tasks=tasks,
        instructions=entries,
        book=Phrasebook([instruction.text for instruction in entries], name=f"metaworld.{name}"),
        goals=np.array([[NAMES.index(instruction.task)] for instruction in entries], np.int32),
        configurations=np.array([instruction.configuration for instruction in entries], np.int32),
    )
