"""What tracing a program may use: steps, and the sizes of arrays, containers and numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from llmrl_jax.advice.sandbox.limits import Limits
from llmrl_jax.advice.sandbox.tables import DTYPES, VALUE_TYPES


NUMBERS = (bool, int, float)
"""Python's numbers, which programs may hold."""


class Refused(Exception):
    """A guard's refusal, at the line of the program where it was raised."""


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def shape(x: Any) -> str:
    return str(tuple(x.shape))


def is_dtype(x: Any) -> bool:
    return isinstance(x, np.dtype) or any(x is each for each in (*DTYPES.values(), *VALUE_TYPES.values()))


class Budget:
    """What one tracing has used."""

    def __init__(self, limits: Limits):
        self.limits, self.steps, self.depth = limits, 0, 0

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > self.limits.steps:
            raise Refused(
                f"it takes more than {self.limits.steps:,} steps: use operations on whole arrays instead of loops"
            )

    def kept(self, x: Any) -> Any:
        """A result within its bounds."""
        self.spend()
        if is_array(x):
            if x.size > self.limits.elements:
                raise Refused(
                    f"an array of shape {shape(x)} has {x.size:,} elements; at most {self.limits.elements:,} may be"
                )
            if x.ndim > self.limits.dimensions:
                raise Refused(f"an array has {x.ndim} dimensions; at most {self.limits.dimensions} are allowed")
        elif isinstance(x, int) and abs(x) > 2**63:
            raise Refused("a number becomes larger than 2^63")
        elif isinstance(x, tuple | list | dict):
            return self.made(x)
        return x

    def size(self, x: Any, level: int = 0) -> int:
        """Elements of a container, with those of its parts; a part that occurs twice counts twice."""
        if not isinstance(x, tuple | list | dict | range):
            return 1
        if level > 6:
            raise Refused("tuples, lists and dicts are nested more than 6 levels deep")
        total = 1
        for part in x.values() if isinstance(x, dict) else x:
            total += self.size(part, level + 1)
            if total > self.limits.sequence:
                raise Refused(f"a tuple, list or dict has more than {self.limits.sequence:,} elements")
        return total

    def made(self, x: Any) -> Any:
        """A container that the program has written."""
        self.spend(self.size(x))
        return x

    def known(self, x: Any, what: str = "a value") -> Any:
        """Refuse what is no number, array, type or container of such."""
        if isinstance(x, tuple | list):
            for part in x:
                self.known(part, what)
        elif isinstance(x, slice):
            self.known((x.start, x.stop, x.step), what)
        elif not (x is None or x is ... or isinstance(x, (*NUMBERS, jax.Array, np.ndarray, np.generic)) or is_dtype(x)):
            kind = "a dict" if isinstance(x, dict) else "a range" if isinstance(x, range) else "a value of this kind"
            raise Refused(f"{kind} cannot be used here; arrays, numbers, tuples and lists can")
        return x

    def length(self, number: int) -> None:
        if number > self.limits.sequence:
            raise Refused(f"a tuple, list or dict has more than {self.limits.sequence:,} elements")
