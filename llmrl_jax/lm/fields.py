"""Kinds and ranges of the fields of a model's `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


def integers(values: Mapping[str, Any], *names: str, least: int = 1, most: int = 1 << 24) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor an integer from `least` to `most`."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name} is {value!r}; an integer is needed")
        if int(value) < least:
            raise ValueError(f"{name} is {value}; at least {least} is needed")
        if int(value) > most:
            raise ValueError(f"{name} is {value}; at most {most} is supported")


def numbers(values: Mapping[str, Any], *names: str, above: float = -math.inf, included: bool = False) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor a finite number above `above`, or equal to it
    if `included`."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} is {value!r}; a number is needed")
        if not (above < value < math.inf or included and value == above):  # type: ignore[operator]
            bound = f"of at least {above:g}" if included else f"above {above:g}"
            raise ValueError(f"{name} is {value}; a finite number {bound} is needed")


def booleans(values: Mapping[str, Any], *names: str) -> None:
    """**Raises** `ValueError` for a named value that is neither None nor a boolean."""
    for name in names:
        if not isinstance(values.get(name), bool | None):
            raise ValueError(f"{name} is {values[name]!r}; true or false is needed")
