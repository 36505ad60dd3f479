"""Prompt templates: fixed text, captions and optional blocks, and their text on the host.

White space at a border between two parts belongs to the part that follows, because the tokenizers of language models
split there (" You" is one piece). A template is therefore flattened into units whose texts begin with the white space
before them; the white space after the last unit is the prompt's `tail`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs_jax.checks import at_least, nearest
from envs_jax.text.phrases import Phrasebook


class PromptError(ValueError):
    """A template that cannot be converted into tokens exactly, or that does not fit."""


@dataclass(frozen=True)
class Limit:
    """At most `at_most` phrases of one caption have an id in `ids`; a bound that the environment guarantees, so that
    the longest prompt is not overestimated."""

    ids: Collection[int]
    at_most: int


@dataclass(frozen=True)
class Literal:
    """Fixed text."""

    text: str


@dataclass(frozen=True)
class Choice:
    """Exactly one phrase: `slots[name]` is its id, an integer `[]`."""

    name: str
    book: Phrasebook
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class Slot:
    """A caption: its phrases, each between `prefix` and `suffix`; `slots[name]` is an integer array of at least `size`
    ids, padded with -1, of which `size` may be in use."""

    name: str
    book: Phrasebook
    size: int
    prefix: str = ""
    suffix: str = ", "
    limits: tuple[Limit, ...] = ()
    """Disjoint sets of phrases that are bounded more tightly than by `size`."""


@dataclass(frozen=True)
class Block:
    """Parts that are present only if `slots[name]`, a bool `[]`, is true."""

    name: str
    parts: tuple[Part, ...]


Part = Literal | Choice | Slot | Block
Slots = Mapping[str, Any]


@dataclass(frozen=True)
class Unit:
    """One position of the flattened template, white space moved: the texts that it may hold."""

    texts: tuple[str, ...]
    """One text for a literal, else one for each phrase of the book."""
    slot: str | None = None
    """The name of the slot or choice; None for a literal."""
    size: int = 1
    """The most phrases that may follow one another."""
    optional: bool = False
    """Whether it may be empty, apart from `blocks`."""
    limits: tuple[Limit, ...] = ()
    blocks: tuple[str, ...] = field(default=())
    """The blocks that must all be present."""


def _trailing(text: str) -> str:
    return text[len(text.rstrip()) :]


class Template:
    """`Literal`, `Choice`, `Slot` and `Block` parts in a row; `render` gives its text on the host."""

    def __init__(self, *parts: Part):
        """**Raises:** `PromptError` if the white space after an optional part depends on whether it is present, or if a
        name is used for two different things."""
        self.parts = parts
        self._kinds: dict[str, tuple[str, int]] = {}
        units, self.tail = self._flatten(parts, "", ())
        self.units = tuple(self._merged(units))
        if not self.units:
            raise PromptError("the prompt has no text")

    @property
    def names(self) -> tuple[str, ...]:
        """The slots that `render` and the compiled prompt need."""
        return tuple(self._kinds)

    def _claim(self, name: str, kind: str, size: int) -> None:
        if self._kinds.setdefault(name, (kind, size)) != (kind, size):
            raise PromptError(f"the name {name!r} stands for a {self._kinds[name][0]} and for a {kind}")

    def _flatten(self, parts: Sequence[Part], pending: str, blocks: tuple[str, ...]) -> tuple[list[Unit], str]:
        units: list[Unit] = []
        for part in parts:
            if isinstance(part, Literal):
                text = pending + part.text
                if text.strip():
                    units.append(Unit((text.rstrip(),), blocks=blocks))
                pending = _trailing(text)
                continue
            if isinstance(part, Block):
                self._claim(part.name, "block", 0)
                inner, after = self._flatten(part.parts, pending, (*blocks, part.name))
                units += inner
            else:
                slot = isinstance(part, Slot)
                size = part.size if isinstance(part, Slot) else 1
                self._claim(part.name, type(part).__name__.lower(), size)
                texts = tuple((pending + part.prefix + p + part.suffix).rstrip() for p in part.book.phrases)
                limits = part.limits if isinstance(part, Slot) else ()
                units.append(Unit(texts, part.name, size, slot, limits, blocks))
                after = _trailing(part.suffix)
                if slot:
                    at_least(f"the size of the slot {part.name!r}", size, 1, error=PromptError)
            if after != pending and not isinstance(part, Choice):
                raise PromptError(
                    f"{part.name!r} may be absent, but the white space before it is {pending!r} and after it "
                    f"{after!r}; move it into the part before, or into the prefix of this one"
                )
            pending = after
        return units, pending

    @staticmethod
    def _merged(units: list[Unit]) -> Iterator[Unit]:
        """Neighbouring literals of the same blocks as one."""
        last: Unit | None = None
        for unit in units:
            if last and last.slot is None and unit.slot is None and last.blocks == unit.blocks:
                last = Unit((last.texts[0] + unit.texts[0],), blocks=unit.blocks)
                continue
            if last:
                yield last
            last = unit
        if last:
            yield last

    def pieces(self, slots: Slots) -> list[tuple[int, int]]:
        """The units that are present, in order, as pairs (index into `units`, phrase id; 0 for a literal); on the host.

        **Raises:** `KeyError` for a missing slot, `ValueError` for an id that the book does not have, or a caption of
        more phrases than the slot holds."""
        for name in self._kinds:
            if name not in slots:
                raise KeyError(
                    f"the prompt needs a slot {name!r}{nearest(name, list(slots))} (it got {', '.join(slots)})"
                )
        pieces: list[tuple[int, int]] = []
        for index, unit in enumerate(self.units):
            if not all(bool(slots[name]) for name in unit.blocks):
                continue
            if unit.slot is None:
                pieces.append((index, 0))
                continue
            ids = [i for i in np.asarray(slots[unit.slot]).reshape(-1).tolist() if i >= 0 or not unit.optional]
            if len(ids) > unit.size:
                raise ValueError(f"the slot {unit.slot!r} holds {unit.size} phrases, not {len(ids)}")
            for i in ids:
                if not 0 <= i < len(unit.texts):
                    raise ValueError(
                        f"the slot {unit.slot!r} has no phrase {i}; ids run from 0 to {len(unit.texts) - 1}"
                    )
            pieces += [(index, i) for i in ids]
        return pieces

    def render(self, slots: Slots, *, tail: bool = True) -> str:
        """The text of the prompt for the slots of one environment, on the host; with or without its trailing white
        space."""
        text = "".join(self.units[index].texts[i] for index, i in self.pieces(slots))
        return text + (self.tail if tail else "")
