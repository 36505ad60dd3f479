"""The finite list of instructions of each level: a text, its goal, and how episodes draw one."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.checks import nearest
from envs_jax.clevr import goals, wordings
from envs_jax.clevr.constants import BALLS, COLORS, SIDES
from envs_jax.clevr.goals import RELATION_TRIPLES, Triple
from envs_jax.text import Phrasebook


LEVELS = ("real", "rephrase", "easy", "hard")


@dataclass(frozen=True)
class Instruction:
    """One way to say one goal."""

    text: str
    goal: np.ndarray
    """int32 `[10]`, see `goals`."""
    configuration: int
    """The number of the goal within its level."""
    wording: int
    """The number of the wording among those of its goal."""


@dataclass(frozen=True, eq=False)
class Level:
    """The instructions of a level; instruction `i` is phrase `i` of `book`."""

    name: str
    instructions: tuple[Instruction, ...]
    book: Phrasebook
    goals: np.ndarray
    """int32 `[I, 10]`: the goal of each instruction."""
    configurations: np.ndarray
    """int32 `[I]`: the number of the goal of each instruction within the level."""
    starts: np.ndarray
    """int32 `[K]`: the first instruction of each kind of goal; the level's kinds are equally likely."""
    sizes: np.ndarray
    """int32 `[K]`: the number of instructions of each kind, all equally likely."""

    def numbers_of(self, goal: np.ndarray) -> np.ndarray:
        """The instructions of a goal, on the host: int `[W]`, one per wording; none for a goal of another level."""
        return np.flatnonzero((self.goals == np.asarray(goal)).all(axis=-1))

    def draw(self, key: jax.Array) -> jax.Array:
        """The number of a random instruction: int32 `[]`."""
        kind_key, key = jax.random.split(key)
        kind = jax.random.randint(kind_key, (), 0, len(self.starts), jnp.int32)
        start, size = jnp.asarray(self.starts)[kind], jnp.asarray(self.sizes)[kind]
        return start + jax.random.randint(key, (), 0, size, jnp.int32)


def _fill(template: str, triple: Triple, variant: int | None = None) -> str:
    """A template filled in for a triple; `variant` chooses the phrase of the side."""
    ball, side, reference = triple
    names = {"A": COLORS[ball], "a": wordings.NOUN.format(COLORS[ball])}
    if reference >= 0:
        names |= {"B": COLORS[reference], "b": wordings.NOUN.format(COLORS[reference])}
    phrase = "" if variant is None else wordings.SIDE_PHRASES[side][variant]
    return template.format(**names, where=phrase, way=wordings.DIRECTION_PHRASES[side])


def _real() -> Iterator[tuple[np.ndarray, list[str]]]:
    for triple in RELATION_TRIPLES:
        texts = [_fill(frame, triple, i) for frame in wordings.REAL for i in range(3)]
        yield goals.goal(goals.RELATIONS, [triple]), texts


def _rephrase() -> Iterator[tuple[np.ndarray, list[str]]]:
    for triple in RELATION_TRIPLES:
        texts = [_fill(frame, triple) for frame in wordings.REPHRASE[triple[1]]]
        yield goals.goal(goals.RELATIONS, [triple]), texts


def _easy() -> Iterator[tuple[np.ndarray, list[str]]]:
    for side, ball in itertools.product(range(len(SIDES)), range(BALLS)):
        triple = (ball, side, -1)
        yield goals.goal(goals.PUSH, [triple]), [_fill(frame, triple) for frame in wordings.EASY]


def _hard() -> Iterator[tuple[np.ndarray, list[str]]]:
    for count in (2, 3):
        for triples in goals.combinations(count):
            description = " and ".join(_fill(wordings.PART, triple, 0) for triple in triples)
            yield goals.goal(goals.RELATIONS, triples), [frame.format(description) for frame in wordings.HARD]
    yield goals.goal(goals.LINE), list(wordings.LINE)
    yield goals.goal(goals.GATHER), list(wordings.GATHER)


def keywords(text: str) -> Triple | tuple[int | None, int | None, int | None]:
    """The ball, the side and the reference that a sentence of level real names, or any text: the first colour, the
    phrase of a side, the second colour; None for what it lacks."""
    colors = [COLORS.index(word) for word in re.findall(rf"\b({'|'.join(COLORS)})\b", text)]
    sides = (i for i, phrases in enumerate(wordings.SIDE_PHRASES) for phrase in phrases if phrase in text)
    ball, reference, *_ = [*colors, None, None]
    return ball, next(sides, None), reference


def _kind(goal: np.ndarray) -> tuple[int, int]:
    """The first choice of an episode: the kind of a goal, and its number of relations."""
    return int(goal[0]), len(goals.triples_of(goal))


def check_level(name: str) -> None:
    """**Raises:** `ValueError` for an unknown level."""
    if name not in LEVELS:
        raise ValueError(f"unknown level {name!r}{nearest(name, list(LEVELS))} (levels are {', '.join(LEVELS)})")


@functools.cache
def level(name: str) -> Level:
    """A level's instructions: all pairs of goal and wording.

    **Arguments:** `name`, one of `LEVELS`.
    **Raises:** `ValueError` for another name.
    """
    check_level(name)
    makers = {"real": _real, "rephrase": _rephrase, "easy": _easy, "hard": _hard}
    entries = [
        Instruction(text, goal, number, wording)
        for number, (goal, texts) in enumerate(makers[name]())
        for wording, text in enumerate(texts)
    ]
    kinds = [_kind(instruction.goal) for instruction in entries]
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    return Level(
        name=name,
        instructions=tuple(entries),
        book=Phrasebook([instruction.text for instruction in entries], name=f"clevr.{name}"),
        goals=np.stack([instruction.goal for instruction in entries]),
        configurations=np.array([instruction.configuration for instruction in entries], np.int32),
        starts=np.array(starts, np.int32),
        sizes=np.diff([*starts, len(entries)]).astype(np.int32),
    )
