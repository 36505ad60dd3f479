"""The collectives of a compiled program, read from its text."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")
_LINE = re.compile(rf"= (?P<results>.*?) (?P<kind>{'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b(?P<dtype>pred|[subf][a-z0-9]+)\[(?P<shape>[\d,]*)\]")


class Collective(NamedTuple):
    """One array that a program sends between devices."""

    kind: str
    dtype: str
    shape: tuple[int, ...]


def collectives(compiled: Any) -> list[Collective]:
    """Every array that results from a collective of the program, once for each place where it stands in the text."""
    arrays = []
    for line in compiled.as_text().splitlines():
        if found := _LINE.search(line):
            for one in _ARRAY.finditer(found["results"]):
                shape = tuple(int(n) for n in one["shape"].split(",") if n)
                arrays.append(Collective(found["kind"], one["dtype"], shape))
    return arrays


def activations(compiled: Any, rows: int, width: int) -> list[Collective]:
    """Collectives of floating-point arrays with `width` or more numbers for each of `rows` rows (or a multiple): the
    activations of the whole batch, which no device needs."""

    def of_rows(one: Collective) -> bool:
        wide = any(not n % rows and _size(one.shape) // n >= width for n in one.shape if n)
        return one.dtype.startswith(("f", "bf")) and wide

    return [one for one in collectives(compiled) if of_rows(one)]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
