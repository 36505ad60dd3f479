"""Range checks of user input, and their messages.

Every message has the same form: the name as the user spells it, the value, the requirement, and an optional remedy in
brackets.

    at_least("num_envs", 0, 1)                  num_envs is 0; at least 1 is needed
    at_least("LoRA rank", 0, 1, remedy="leave LoRA out to turn it off")
                                                LoRA rank is 0; at least 1 is needed (leave LoRA out to turn it off)
    above("learning_rate", 0.0, 0)              learning_rate is 0.0; above 0 is needed
    between("final_fraction", 1.5, 0, 1)        final_fraction is 1.5; from 0 to 1 is needed
    between("held_out", 1.0, 0, 1, below=True)  held_out is 1.0; from 0 to below 1 is needed
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any


def nearest(name: str, names: list[str], n: int = 3) -> str:
    """A clause that suggests the names of which a wrong one may be a typing error or the beginning; empty when it is
    neither: a name that only resembles another leads its reader astray."""
    lower = {candidate.lower(): candidate for candidate in names}
    similar = difflib.get_close_matches(name.lower(), list(lower), n=10, cutoff=0.5)
    close = [lower[c] for c in similar if _is_misspelled(name.lower(), c)][:n]
    return f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def _is_misspelled(name: str, right: str) -> bool:
    """Return whether one edit for every four characters, at most 3, makes `right` of `name`, or its beginning."""
    limit = min(3, max(1, max(len(name), len(right)) // 4))
    full, start = _edits(name, right)
    return full <= limit or len(name) >= 3 and start <= min(limit, max(0, len(name) // 4 - 1))


def _edits(name: str, right: str) -> tuple[int, int]:
    """The fewest insertions, deletions, substitutions and exchanges of neighbours that make `right` of `name`, and the
    fewest that make any beginning of `right` (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(name, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(right, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == right[j - 2] and name[i - 2] == b:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1], min(row)


def at_least(name: str, value: Any, low: float, *, remedy: str = "", error: type[Exception] = ValueError) -> None:
    """Check that a number is finite and `low` or more.

    **Arguments:** `name`, as the user spells the option; `value`, an integer or a float; `low`; `remedy`, what else the
    user can do, without a full stop; `error`, the exception to raise.
    **Raises:** `error`, "NAME is VALUE; at least LOW is needed"; NaN and infinities are refused too.
    """
    _check(_compared(name, value, lambda: low <= value, error), name, value, f"at least {low}", remedy, error)


def above(name: str, value: Any, low: float, *, remedy: str = "", error: type[Exception] = ValueError) -> None:
    """Check that a number is finite and more than `low`; see `at_least`."""
    _check(_compared(name, value, lambda: low < value, error), name, value, f"above {low}", remedy, error)


def between(
    name: str,
    value: Any,
    low: float,
    high: float,
    *,
    above: bool = False,
    below: bool = False,
    remedy: str = "",
    error: type[Exception] = ValueError,
) -> None:
    """Check that a number lies from `low` to `high`, both included unless `above` excludes `low`, or `below` `high`;
    see `at_least`."""
    compare = lambda: (low < value if above else low <= value) and (value < high if below else value <= high)  # noqa: E731
    inside = _compared(name, value, compare, error)  # a function by `def` would be decorated at every call, in tests
    _check(inside, name, value, needed(low, high, above, below), remedy, error)


def needed(low: float, high: float, above: bool, below: bool) -> str:
    """An interval in words, "from 0 to 1"; see `between`."""
    start = f"above {low} and " if above else f"from {low} to "
    return start + (f"below {high}" if below else f"at most {high}" if above else f"{high}")


def _compared(name: str, value: Any, compare: Callable[[], bool], error: type[Exception]) -> bool:
    """The result of a comparison. **Raises:** `error` for a value that is no number, such as an option of an id."""
    try:
        return compare()
    except TypeError:
        raise error(f"{name} is {value!r}; a number is needed") from None


def _check(right: bool, name: str, value: Any, requirement: str, remedy: str, error: type[Exception]) -> None:
    if right and math.isinf(value):
        requirement = "a finite number"
    elif right:
        return
    raise error(f"{name} is {value}; {requirement} is needed{f' ({remedy})' if remedy else ''}")
