"""Checks of user input and their messages; `envs_jax.checks` documents the form of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from envs_jax.checks import above, at_least, between, fields_at_least, nearest


__all__ = [
    "COUNT", "EPOCHS", "FROM_0", "STEPS", "WIDTH", "above", "at_least", "between", "check_choices", "check_seed",
    "fields_at_least", "fields_in", "in_interval", "nearest", "option", "refuse_nan", "refuse_unread",
]  # fmt: skip

MAX_SEED = 2**32 - 1
"""The largest seed: `jax.random.key` keeps the lowest 32 bits, so -1 would be this one, and 2^32 would be 0."""


def check_seed(name: str, seed: int) -> None:
    """Check that a seed is from 0 to `MAX_SEED`. **Arguments:** `name`, as the user spells the option.

    **Raises:** `ValueError` otherwise, since another seed would give the same random numbers."""
    between(name, seed, 0, MAX_SEED)


COUNT = "[1, 2147483647]"
"""Interval of what is counted in int32: rows, steps, updates."""
FROM_0 = "[0, 2147483647]"
"""Interval of what is counted in int32 and may be none."""
STEPS = "[1, 1000000000000]"
"""Interval of environment steps in all, which become a number of updates."""
EPOCHS = "(0, 1000000]"
"""Interval of passes over data."""
WIDTH = "[1, 1048576]"
"""Interval of a layer's width: above it, the size of a matrix overflows, and the compiler ends the process."""

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


@lru_cache
def _ends(interval: str) -> tuple[float, float, bool, bool]:
    """The ends of an interval, and whether each is excluded."""
    match = _INTERVAL.fullmatch(interval)
    assert match, f"{interval!r} is no interval, such as [0, 1)"
    low, high = (int(end) if end.lstrip("-").isdecimal() else float(end) for end in (match[2], match[3]))
    return low, high, match[1] == "(", match[4] == ")"


def fields_in(config: Any, interval: str, *names: str, prefix: str = "", remedy: str = "") -> None:
    """Check that attributes of one object lie in an interval; NaN lies in none.

    **Arguments:** `interval`, as mathematics writes it: `[0, 1]`, `(0, 1]`, `[1, inf)`; `[0, inf]` includes infinity;
    `prefix`, before the name of each in the message; `remedy`, what else the user can do, without a full stop.
    **Raises:** `ValueError`, "ppo.gamma is 2.0; from 0 to 1 is needed".
    """
    for name in names:
        in_interval(prefix + name, getattr(config, name), interval, remedy=remedy)


def in_interval(name: str, value: Any, interval: str, *, remedy: str = "") -> None:
    """Check that a number lies in an interval; see `fields_in`."""
    low, high, open_low, open_high = _ends(interval)
    if high == math.inf and not open_high and value == high:
        return
    try:
        one_sided = high == math.inf or high >= 2**20 and not low <= value  # a bound for safety is no news there
    except TypeError:
        raise ValueError(f"{name} is {value!r}; a number is needed") from None
    if one_sided:
        (above if open_low else at_least)(name, value, low, remedy=remedy)
    else:
        between(name, value, low, high, above=open_low, below=open_high, remedy=remedy)


@lru_cache
def _literals(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The values of each field of a class whose annotation is a `Literal`, or one of several types that are."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
        if literals:
            others = [None] if type(None) in get_args(hint) else []
            found[name] = (*(value for part in literals for value in get_args(part)), *others)
    return found


def check_choices(config: Any, prefix: str = "", but: tuple[str, ...] = ()) -> None:
    """Check the fields of a dataclass that are annotated as a `Literal`: the command line refuses other values, Python
    does not.

    **Arguments:** `prefix`, before the name of each in the message; `but`, fields that are checked elsewhere.
    **Raises:** `ValueError`, "ppo.schedule is 'lin'; one of constant, linear is needed".
    """
    kind: Any = type(config)
    for name, choices in _literals(kind).items():
        value = getattr(config, name)
        if name not in but and value not in choices:
            known = ", ".join(str(choice) if choice != "" else "''" for choice in choices)
            raise ValueError(f"{prefix}{name} is {value!r}; one of {known} is needed")


def refuse_nan(config: Any, prefix: str = "") -> None:
    """Refuse NaN in any field of a dataclass, its parts included: no option has a use for it.

    **Arguments:** `prefix`, before the name of the field in the message, including a dot.
    **Raises:** `ValueError`, "ppo.gamma is nan; a number is needed".
    """
    for f in dataclasses.fields(config):
        value = getattr(config, f.name, None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            refuse_nan(value, f"{prefix}{f.name}.")
        elif any(isinstance(x, float) and math.isnan(x) for x in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{prefix}{f.name} is {value}; a number is needed")


def option(name: str) -> str:
    """The command-line flag of a configuration field: `--ppo.num-envs` for `ppo.num_envs`."""
    return "--" + name.replace("_", "-")


def refuse_unread(
    config: Any, unread: Iterable[str], who: str, *, usual: Any = None, remedy: str = "", prefix: str = ""
) -> None:
    """Refuse options that were changed although nothing reads them.

    **Arguments:** `config`, a dataclass; `unread`, the dotted names of its fields that `who` does not read (a nested
    configuration means all of its fields); `who`, such as "the agent random"; `usual`, the unchanged values (None: the
    defaults of the class); `remedy`, what else the user can do, without a full stop; `prefix`, the prefix of the names
    on the command line, including a dot.
    **Raises:** `ValueError`, "--warmup is 3, but the method ars does not read it; leave it out", with every such option
    and its value.
    """
    unread = tuple(unread)
    usual = _defaults(config, {name.partition(".")[0] for name in unread}) if usual is None else usual
    changed = [
        (name, value)
        for field in unread
        for name, value in _changed(attrgetter(field)(config), attrgetter(field)(usual), field)
    ]
    if changed:
        listed = ", ".join(f"{option(prefix + name)} is {value}" for name, value in changed)
        them = "it" if len(changed) == 1 else "them"
        more = f" ({remedy})" if remedy else ""
        raise ValueError(f"{listed}, but {who} does not read {them}; leave {them} out{more}")


def _defaults(config: Any, names: Collection[str]) -> SimpleNamespace:
    """The defaults of some fields of a dataclass; not an instance, whose construction may call this check again."""
    made = {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(config)
        if f.name in names
    }
    return SimpleNamespace(**made)


def _changed(value: Any, usual: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The fields in which two values differ, by dotted name; a value that is not a dataclass is one field."""
    if dataclasses.is_dataclass(value) and type(value) is type(usual):
        for f in dataclasses.fields(value):
            yield from _changed(getattr(value, f.name), getattr(usual, f.name), f"{name}.{f.name}")
    elif value != usual:
        yield name, value
