"""Places where objects belong: a table of correct and of misplaced (object, room-receptacle) pairs.

The project's own table is common sense, written as rules in `data/preferences.json`. Another file of rules, or the
annotations of Housekeep (`cos_eor/scripts/orm/amt_data`), can replace it.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


AGREEMENT = 0.6
"""Fraction of annotators that decides: 6 of 10."""

SHIPPED = Path(__file__).parent / "data" / "preferences.json"


@dataclass(frozen=True)
class Preferences:
    """Correct and misplaced places of `N` categories of objects among `K` room-receptacles."""

    objects: tuple[str, ...]
    """Names of categories, with underscores."""
    places: tuple[str, ...]
    """Room-receptacles, such as `living_room|sofa`."""
    tidy: np.ndarray
    """float32 `[K, N]`: the mean rank of a correct place, from 1 for the best; 0 where the place is not correct."""
    untidy: np.ndarray
    """float32 `[K, N]`: the mean rank of a place where the object is misplaced; 0 elsewhere."""

    @property
    def correct(self) -> np.ndarray:
        """bool `[K, N]`."""
        return self.tidy > 0

    @property
    def misplaced(self) -> np.ndarray:
        """bool `[K, N]`: the places where an episode may begin with a misplaced object."""
        return self.untidy > 0

    def select(self, places: Sequence[str], missing_ok: Sequence[str] = ()) -> Preferences:
        """The rows of the given places, in their order.

        **Arguments:** `places`; `missing_ok`, those of them that are correct for nothing, whether or not the table has
        them.
        **Raises:** `ValueError`, naming the places that the table lacks.
        """
        index = {name: i for i, name in enumerate(self.places)}
        lacking = [name for name in places if name not in index and name not in missing_ok]
        if lacking:
            raise ValueError(
                f"the preferences have {len(self.places)} room-receptacles, but not {', '.join(lacking)}, "
                "which the apartment has"
            )
        rows = np.array([index[name] if name not in missing_ok else -1 for name in places])
        tidy, untidy = (np.where(rows[:, None] >= 0, table[rows], 0) for table in (self.tidy, self.untidy))
        return Preferences(self.objects, tuple(places), tidy.astype(np.float32), untidy.astype(np.float32))


def from_ranks(ranks: Any, objects: Sequence[str], places: Sequence[str], source: str = "preferences") -> Preferences:
    """Preferences from the ranks of annotators.

    A place is correct if at least 6 of 10 annotators gave it a positive rank, and misplaces the object if at least 6 of
    10 gave a negative one; 0 is an implausible place.

    **Arguments:** `ranks`, integers `[K, N, A]` for `A` annotators; `objects`, `N` names; `places`, `K` names;
    `source`, for messages.
    **Raises:** `ValueError` for arrays of another shape or dtype, and for names that occur twice.
    """
    ranks, objects, places = np.asarray(ranks), [str(x) for x in objects], [str(x) for x in places]
    if ranks.ndim != 3 or ranks.shape[:2] != (len(places), len(objects)) or ranks.shape[2] < 1:
        expected = f"[{len(places)}, {len(objects)}, annotators]"
        raise ValueError(
            f"{source}: ranks have the shape {list(ranks.shape)}; {expected} is needed, for {len(places)} "
            f"room-receptacles and {len(objects)} objects"
        )
    if not np.issubdtype(ranks.dtype, np.integer):
        raise ValueError(f"{source}: ranks are {ranks.dtype}; integers are needed, positive for tidy places")
    _check_names(source, objects, places)
    ranks = ranks.astype(np.int32)
    tables = []
    for sign in (1, -1):
        votes = ranks * sign > 0
        count = votes.sum(-1)
        mean = (np.abs(ranks) * votes).sum(-1) / np.maximum(count, 1)
        tables.append(np.where(count >= AGREEMENT * ranks.shape[2] - 1e-9, mean, 0).astype(np.float32))
    return Preferences(tuple(objects), tuple(places), *tables)


def _check_names(source: str, objects: Sequence[str], places: Sequence[str]) -> None:
    for kind, names in (("object", objects), ("room-receptacle", places)):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise ValueError(f"{source}: the {kind} {twice[0]!r} occurs twice" if twice else f"{source}: no {kind}s")
    for name in places:
        if name.count("|") != 1 or not all(name.split("|")):
            raise ValueError(f"{source}: the room-receptacle {name!r} has not the form room|receptacle")


def from_rules(rules: Mapping[str, Any], source: str = "preferences") -> Preferences:
    """Preferences from rules, see `data/preferences.json` for their form.

    **Raises:** `ValueError` for a missing part, an unknown place, an object of two groups, or a place that is both tidy
    and untidy for a group.
    """
    for part in ("rooms", "anywhere", "groups"):
        if part not in rules:
            raise ValueError(f"{source}: the rules lack the part {part!r} (they have {', '.join(rules)})")
    for name, group in rules["groups"].items():
        for part in ("objects", "tidy"):
            if not group.get(part):
                raise ValueError(f"{source}: the group {name!r} has no {part}")
    places = [f"{room}|{receptacle}" for room, receptacles in rules["rooms"].items() for receptacle in receptacles]
    objects = [name for group in rules["groups"].values() for name in group["objects"]]
    _check_names(source, objects, places)
    tidy, untidy = (np.zeros((len(places), len(objects)), np.float32) for _ in range(2))

    pairs = [name.split("|") for name in places]

    def rows(patterns: Sequence[Any]) -> dict[int, int]:
        """Row -> rank, from 1; a row that several patterns match has the first one's."""
        ranks: dict[int, int] = {}
        for rank, entry in enumerate(patterns, 1):
            for pattern in [entry] if isinstance(entry, str) else entry:
                room, _, receptacle = pattern.partition("|")
                matched = [i for i, (r, kind) in enumerate(pairs) if room in (r, "*") and kind == receptacle]
                if not matched:
                    raise ValueError(f"{source}: no room-receptacle matches {pattern!r}")
                for i in matched:
                    ranks.setdefault(i, rank)
        return ranks

    anywhere, column = rows([list(rules["anywhere"])]), 0
    for name, group in rules["groups"].items():
        columns = slice(column, column + len(group["objects"]))
        column = columns.stop
        right, wrong = rows(group["tidy"]), rows([list(group.get("untidy", []))])
        neither = rows(group.get("acceptable", []))
        for a, b in ((right, wrong), (right, neither), (wrong, neither)):
            if repeated := sorted(places[i] for i in a.keys() & b.keys()):
                raise ValueError(f"{source}: the group {name!r} lists {repeated[0]} twice")
        for i, rank in right.items():
            tidy[i, columns] = rank
        for i in (anywhere.keys() | wrong.keys()) - right.keys() - neither.keys():
            untidy[i, columns] = 1 if i in wrong else 2
    return Preferences(tuple(objects), tuple(places), tidy, untidy)


@functools.cache
def shipped() -> Preferences:
    """The project's own table."""
    return from_rules(json.loads(SHIPPED.read_text()), SHIPPED.name)


PARTS = ("ranks", "objects", "room_receptacles")
"""The arrays of an annotation file."""


def load(path: str | Path) -> Preferences:
    """Preferences from a file.

    **Arguments:** `path`: `.json` rules like the project's own, or an `.npz` file with `ranks` `[K, N, A]`, `objects`
    `[N]` and `room_receptacles` `[K]`, as `envs_jax.housekeep.convert_annotations` makes it of `data.npy`.
    **Raises:** `FileNotFoundError`; `ValueError` for another kind of file, a missing array or a wrong shape. Pickles
    are never read here.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"preferences: there is no file {str(path)!r}")
    if path.suffix == ".json":
        try:
            rules = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path.name} is not JSON: {error}") from None
        if not isinstance(rules, dict):
            raise ValueError(f"{path.name} holds a {type(rules).__name__}; an object of rules is needed")
        return from_rules(rules, path.name)
    if path.suffix == ".npy":
        raise ValueError(
            f"{path.name} is a pickle, which can run code when it is read; convert it once with "
            "envs_jax.housekeep.convert_annotations(SOURCE, TARGET.npz, allow_pickle=True), and give the .npz file"
        )
    if path.suffix != ".npz":
        raise ValueError(f"preferences are a .json or an .npz file, not {path.name}")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path.name} is no .npz file: it is not a zip archive")
    try:
        with np.load(path, allow_pickle=False) as file:
            lacking = [part for part in PARTS if part not in file]
            if lacking:
                raise ValueError(f"{path.name} lacks the array {lacking[0]!r} (it has {', '.join(file) or 'none'})")
            ranks, objects, places = (file[part] for part in PARTS)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None
    for part, names in zip(PARTS[1:], (objects, places)):
        if names.ndim != 1 or names.dtype.kind != "U":
            raise ValueError(f"{path.name}: {part} are {names.dtype} {list(names.shape)}; a list of strings is needed")
    return from_ranks(ranks, objects.tolist(), places.tolist(), path.name)
