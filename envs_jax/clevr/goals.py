"""Goals as integers: what each level asks for.

A goal is int32 `[10]`: its kind, then up to three triples `(ball, side, reference)`; unused entries are -1.

| kind | meaning | triples |
|---|---|---|
| `RELATIONS` | each ball on its side of its reference, as "red behind blue" | one to three |
| `LINE` | the balls from left to right in the order of their colours | none |
| `GATHER` | all balls near the green one | none |
| `PUSH` | one ball moved one step towards a side | one, without a reference |
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from envs_jax.clevr.constants import AXES, BALLS, HIGH, LOW, RADIUS, SIDES


RELATIONS, LINE, GATHER, PUSH = range(4)
WIDTH = 10
"""Length of a goal."""
MAX_RELATIONS = 3
"""The largest number of relations in a goal."""
COMBINATIONS = 80
"""Goals of two relations at level hard, and of three."""

Triple = tuple[int, int, int]


def goal(kind: int, triples: Iterable[Triple] = ()) -> np.ndarray:
    """A goal from its parts: int32 `[10]`."""
    code = np.full(WIDTH, -1, np.int32)
    flat = [kind, *itertools.chain(*triples)]
    code[: len(flat)] = flat
    return code


NUMBERS = {RELATIONS: (1, MAX_RELATIONS), LINE: (0, 0), GATHER: (0, 0), PUSH: (1, 1)}
"""The fewest and the most triples of each kind."""


def check_goal(code: Any) -> None:
    """**Raises** `ValueError` for integers `[10]` that are no goal: of another kind, with other triples than the kind
    has, with a number out of range, or with a ball that is its own reference."""
    row = np.asarray(code)
    kind, triples = int(row[0]), row[1:].reshape(MAX_RELATIONS, 3)
    prefix = f"goal is {row.tolist()}"
    if kind not in NUMBERS:
        raise ValueError(f"{prefix}, of the kind {kind}; a kind from {RELATIONS} to {PUSH} is needed")
    used = (triples != -1).any(axis=1)
    count, (low, high) = int(used.sum()), NUMBERS[kind]
    if not low <= count <= high or not used[:count].all():
        needed = f"{low} to {high}" if low < high else str(high)
        raise ValueError(
            f"{prefix}, with {count} triples; a goal of the kind {kind} needs {needed}, and -1 in all places after them"
        )
    names, references = ("ball", "place", "reference"), range(BALLS) if kind == RELATIONS else range(-1, 0)
    for triple in triples[:count].tolist():
        for name, value, valid in zip(names, triple, (range(BALLS), range(len(SIDES)), references)):
            if value not in valid:
                needed = f"from {valid[0]} to {valid[-1]}" if len(valid) > 1 else str(valid[0])
                raise ValueError(f"{prefix}, with the {name} {value}; {needed} is needed")
        if triple[0] == triple[2]:
            raise ValueError(f"{prefix}, in which ball {triple[0]} is its own reference; another ball is needed")


def triples_of(code: Any) -> list[Triple]:
    """The triples of a goal, on the host."""
    rows = np.asarray(code)[1:].reshape(MAX_RELATIONS, 3)
    return [(int(a), int(b), int(c)) for a, b, c in rows if a >= 0]


RELATION_TRIPLES: tuple[Triple, ...] = tuple(
    (ball, side, reference)
    for side in range(len(SIDES))
    for ball in range(BALLS)
    for reference in range(BALLS)
    if ball != reference
)
"""The 80 relations of levels real and rephrase, by side."""


NOMINAL = 0.33
"""A distance at which a relation holds with room to spare, in metres."""


def attainable(triples: Iterable[Triple]) -> bool:
    """Return whether several relations fit the table together.

    No ball is moved twice, references make no circle, and if every ball lies exactly at its place, 0.33 m from its
    reference, no two overlap and all fit between the walls.
    """
    relations = list(triples)
    moved = [ball for ball, _, _ in relations]
    if len(set(moved)) < len(moved):
        return False
    positions = {ball: np.zeros(2) for ball in {reference for *_, reference in relations} - set(moved)}
    roots = len(positions)
    waiting = relations
    while waiting:
        ready = [t for t in waiting if t[2] in positions]
        if not ready:
            return False  # a circle
        for ball, side, reference in ready:
            positions[ball] = positions[reference] + NOMINAL * AXES[side]
        waiting = [t for t in waiting if t not in ready]
    if roots > 1:  # separate groups may lie anywhere: they are compared within themselves
        groups = _groups(relations)
        return all(attainable(group) for group in groups)
    spots = np.stack(list(positions.values()))
    distances = np.linalg.norm(spots[:, None] - spots[None], axis=-1)[np.triu_indices(len(spots), 1)]
    room = (HIGH - LOW) - 2 * RADIUS
    return bool(distances.min() >= 2 * RADIUS and np.all(np.ptp(spots, axis=0) <= room))


def _groups(relations: list[Triple]) -> list[list[Triple]]:
    """Relations that share balls, directly or through others, together."""
    groups: list[list[Triple]] = []
    for relation in relations:
        touching = [g for g in groups if any({relation[0], relation[2]} & {t[0], t[2]} for t in g)]
        groups = [g for g in groups if g not in touching] + [[relation, *itertools.chain(*touching)]]
    return groups


@functools.cache
def combinations(count: int) -> tuple[tuple[Triple, ...], ...]:
    """The 80 goals of `count` relations at level hard, attainable and all different.

    Candidates are the digits, in base 80, of the multiples of the golden ratio modulo 1: they spread evenly over all
    lists of relations, and are the same everywhere.
    """
    unique: dict[frozenset[Triple], tuple[Triple, ...]] = {}
    size = len(RELATION_TRIPLES)
    for n in itertools.count(1):
        number = n * 2654435769 % 2**32 * size**count >> 32
        triples = tuple(RELATION_TRIPLES[number // size**i % size] for i in range(count))
        if attainable(triples):
            unique.setdefault(frozenset(triples), triples)
        if len(unique) == COMBINATIONS:
            return tuple(unique.values())
    raise AssertionError("the count has no end")


PUBLISHED_TYPES = (2, 3)
"""Types 0 and 1 of a published hard goal are two and three relations; 2 is the line, 3 the gathering."""


def from_published(codes: Any, level: str) -> np.ndarray:
    """Goals in the code of KALM's files, as goals of this environment.

    **Arguments:** `codes`, `[..., 6]`, a number per ball (1 for the ball to move, 2 for the reference) and a place; at
    level hard `[..., 6 + 6 k]`, the type in the sixth number and a code for each of two or three relations after it;
    `level`, a name of `instructions.LEVELS`.
    **Returns:** int32 `[..., 10]`.
    **Raises:** `ValueError` for a wrong width, or numbers that are no goal.
    """
    codes = np.asarray(codes)
    if codes.ndim == 0 or codes.shape[-1] < 6 or codes.shape[-1] % 6:
        raise ValueError(f"codes have the shape {list(codes.shape)}; the last axis has 6 numbers, or 6 + 6 k at hard")
    rows = [_from_published(row, level) for row in codes.reshape(-1, codes.shape[-1])]
    return np.array(rows, np.int32).reshape(*codes.shape[:-1], WIDTH)


def _from_published(code: np.ndarray, level: str) -> np.ndarray:
    if level != "hard":
        return goal(PUSH if level == "easy" else RELATIONS, [_triple(code[:6], level)])
    kind = int(code[5])
    if kind in PUBLISHED_TYPES:
        return goal(LINE if kind == PUBLISHED_TYPES[0] else GATHER)
    count = kind + 2
    if kind not in (0, 1) or len(code) < 6 * (count + 1):
        raise ValueError(
            f"the code {code.tolist()} is no goal of level hard: its sixth number is 0 to 3, followed by 6 numbers for "
            "each of two (0) or three (1) relations"
        )
    return goal(RELATIONS, [_triple(part, level) for part in code[6:].reshape(-1, 6)[:count]])


def _triple(code: np.ndarray, level: str) -> Triple:
    moved, references = np.flatnonzero(code[:BALLS] == 1), np.flatnonzero(code[:BALLS] == 2)
    expected = 0 if level == "easy" else 1
    if len(moved) != 1 or len(references) != expected or code[BALLS] not in range(len(SIDES)):
        raise ValueError(
            f"the code {code.tolist()} is no goal of level {level}: one ball with the number 1, {expected} with 2, "
            f"and a place from 0 to {len(SIDES) - 1} at the end are needed"
        )
    return int(moved[0]), int(code[BALLS]), int(references[0]) if expected else -1


def to_published(goals: Any) -> np.ndarray:
    """Goals of this environment in the code of KALM's files; the inverse of `from_published`.

    **Arguments:** `goals`, int32 `[..., 10]`.
    **Returns:** float32 `[..., 6]` if all are single relations or pushes, else `[..., 24]`.
    **Raises:** `ValueError` for integers that are no goal, and for a single relation or a push beside goals of level
    hard, whose code has none.
    """
    codes = np.asarray(goals)
    rows = codes.reshape(-1, WIDTH)
    for row in rows:
        check_goal(row)
    single = all(row[0] in (RELATIONS, PUSH) and row[4] < 0 for row in rows)
    published = np.zeros((len(rows), 6 if single else 24), np.float32)
    for code, row in zip(published, rows):
        parts = triples_of(row)
        if not single:
            if row[0] == PUSH or row[0] == RELATIONS and len(parts) < 2:
                raise ValueError(
                    f"goals have {row.tolist()}, a single relation or a push, beside goals of level hard, whose code "
                    "has neither: translate them apart"
                )
            code[5] = {RELATIONS: len(parts) - 2, LINE: PUBLISHED_TYPES[0], GATHER: PUBLISHED_TYPES[1]}[int(row[0])]
        for i, (ball, side, reference) in enumerate(parts):
            part = code if single else code[6 * (i + 1) : 6 * (i + 2)]
            part[ball], part[BALLS] = 1, side
            if reference >= 0:
                part[reference] = 2
    return published.reshape(*codes.shape[:-1], -1)
