"""Checks of user input and their messages; `envs_jax.checks` documents the form of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from envs_jax.checks import above, at_least, between, nearest, needed


__all__ = [
    "COUNT", "EPOCHS", "FROM_0", "STEPS", "WIDTH", "Checked", "Epochs", "FiniteFloat", "Fraction",
    "FractionBelowOne", "In", "Needs", "NonNegativeFloat", "NonNegativeInt", "PositiveFloat", "PositiveInt",
    "PositiveOrInf", "Steps", "Width", "above", "at_least", "between", "bound", "check_fields", "check_seed",
    "in_interval", "nearest", "option", "refuse_unread",
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


@dataclasses.dataclass(frozen=True)
class In:
    """The bound of a configuration field, beside its type: `gamma: Annotated[float, In("[0, 1]")] = 0.99`.

    `Checked` checks it, and the help text of the option shows it. Inside a tuple it bounds every element."""

    interval: str
    """As mathematics writes it: `[0, 1]`, `(0, 1]`, `[1, inf)`; `[0, inf]` includes infinity. NaN lies in none."""
    remedy: str = ""
    """What else the user can do, without a full stop."""

    @property
    def ends(self) -> tuple[float, float, bool, bool]:
        """The lowest and the highest value, and whether each is excluded."""
        return _ends(self.interval)

    @property
    def help(self) -> str:
        """The bound for a help text, "from 0 to 1"; empty where it is no news: finite, at least -1, 0 or 1."""
        low, high, open_low, open_high = self.ends
        if high >= 10**6:
            plain = low in (-1, 0, 1) and not open_low or low == -math.inf
            return "" if plain else f"{'above' if open_low else 'at least'} {low}"
        return needed(low, high, open_low, open_high)


@dataclasses.dataclass(frozen=True)
class Needs:
    """A condition beside the type of a field, without which nothing reads it: `pool_size: Annotated[int,
    Needs("reset", "pool")]` is read where `reset` is "pool". Elsewhere `Checked` refuses values other than the default.
    """

    field: str
    """Another field of the same class."""
    value: Any = None
    """Its value, or a tuple of its values; None: any except an empty one, False or 0."""

    def holds(self, value: Any) -> bool:
        """Return whether the other field has such a value."""
        if self.value is None:
            return bool(value)
        return value in self.value if isinstance(self.value, tuple) else value == self.value


PositiveInt = Annotated[int, In(COUNT)]
NonNegativeInt = Annotated[int, In(FROM_0)]
Steps = Annotated[int, In(STEPS)]
Epochs = Annotated[float, In(EPOCHS)]
Width = Annotated[int, In(WIDTH)]
FiniteFloat = Annotated[float, In("(-inf, inf)")]
NonNegativeFloat = Annotated[float, In("[0, inf)")]
PositiveFloat = Annotated[float, In("(0, inf)")]
PositiveOrInf = Annotated[float, In("(0, inf]")]
Fraction = Annotated[float, In("[0, 1]")]
FractionBelowOne = Annotated[float, In("[0, 1)")]


class Checked:
    """Base class of configurations, which are dataclasses: when one is made, its fields are checked.

    Checked are the bounds (`In`), the values of a `Literal`, which the command line refuses and Python does not, that
    no number is NaN, and that no option is changed that nothing reads (`Needs`). A subclass with a `__post_init__` of
    its own calls this one first.

    **Raises:** `ValueError`, "ppo.gamma is 2.0; from 0 to 1 is needed"."""

    PREFIX: ClassVar[str] = ""
    """Before the names of the fields in messages: the usual name of the part in a whole, and a dot ("ppo.")."""

    def __post_init__(self) -> None:
        check_fields(self, lambda name: f"{self.PREFIX}{name}")


def in_interval(name: str, value: Any, interval: str, *, remedy: str = "") -> None:
    """Check that a number lies in an interval; see `In`.

    **Raises:** `ValueError`, "ppo.gamma is 2.0; from 0 to 1 is needed"."""
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
def _rules(kind: Any) -> tuple[tuple[str, In | None, tuple[Any, ...], bool, bool], ...]:
    """The fields of a dataclass: name, bound, values of a `Literal` and None where there is one (empty: any), whether
    all strings are allowed, and whether values of another type are."""
    hints = get_type_hints(kind, include_extras=True)
    rules = []
    for f in dataclasses.fields(kind):
        parts = list(_parts(hints[f.name]))
        choices = tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))
        optional = (None,) if choices and type(None) in parts else ()
        others = any(get_origin(part) is not Literal and part not in (str, type(None)) for part in parts)
        rules.append((f.name, bound(hints[f.name]), (*choices, *optional), str in parts, others))
    return tuple(rules)


def _parts(hint: Any) -> Iterator[Any]:
    """A type, or the types of a union, without what is annotated."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def bound(hint: Any) -> In | None:
    """The bound in an annotation, also in a union or a tuple; None without one."""
    if get_origin(hint) is Literal:
        return None
    inside = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, In)]
    return next(filter(None, (*inside, *map(bound, get_args(hint)))), None)


def _leaves(value: Any) -> Iterator[Any]:
    """A value, or the elements of a tuple or list, at any depth."""
    if isinstance(value, (tuple, list)):
        for element in value:
            yield from _leaves(element)
    else:
        yield value


def check_fields(config: Any, spell: Callable[[str], str]) -> None:
    """Check the fields of a dataclass as `Checked` does; its parts, which are dataclasses, check themselves.

    **Arguments:** `spell`, from a field to its name in the message: `ppo.gamma`, or `--ppo.gamma`.
    **Raises:** `ValueError`."""
    kind: Any = type(config)
    for name, limits, choices, strings, others in _rules(kind):
        value = getattr(config, name)
        is_allowed = value in choices or (strings if isinstance(value, str) else others)
        if choices and not is_allowed:
            listed = ", ".join(str(choice) if choice != "" else "''" for choice in choices)
            raise ValueError(f"{spell(name)} is {value!r}; one of {listed} is needed")
        for element in _leaves(value):
            if isinstance(element, float) and math.isnan(element):
                raise ValueError(f"{spell(name)} is {value}; a number is needed")
            if limits and element is not None and not (strings and isinstance(element, str)) and value not in choices:
                in_interval(spell(name), element, limits.interval, remedy=limits.remedy)
    for need, names in _needs(kind).items():
        value = getattr(config, need.field)
        if not need.holds(value):
            setting = f"a run without {spell(need.field)}" if need.value is None else f"{spell(need.field)} {value}"
            refuse_unread(
                config, names, setting, spell=spell, remedy="or give the default, where a preset sets another"
            )


@lru_cache
def _needs(kind: Any) -> dict[Needs, list[str]]:
    """The fields of a dataclass by what they need."""
    needs: dict[Needs, list[str]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for need in getattr(hint, "__metadata__", ()):
            if isinstance(need, Needs):
                needs.setdefault(need, []).append(name)
    return needs


def option(name: str) -> str:
    """The command-line flag of a configuration field: `--ppo.num-envs` for `ppo.num_envs`."""
    return "--" + name.replace("_", "-")


def refuse_unread(
    config: Any,
    unread: Iterable[str],
    who: str,
    *,
    usual: Any = None,
    remedy: str = "",
    spell: Callable[[str], str] | None = None,
) -> None:
    """Refuse options that were changed although nothing reads them.

    **Arguments:** `config`, a dataclass; `unread`, the dotted names of its fields that `who` does not read (a nested
    configuration means all of its fields); `who`, such as "the agent random"; `usual`, the unchanged values (None: the
    defaults of the class), or a tuple of such, any of which may be left as it is; `remedy`, what else the user can do,
    without a full stop; `spell`, from a field to its name in the message (None: its flag, with the class's `PREFIX`).
    **Raises:** `ValueError`, "--warmup is 3, but the method ars does not read it; leave it out", with every such option
    and its value.
    """
    unread = tuple(unread)
    spell = spell or (lambda name: option(f"{getattr(config, 'PREFIX', '')}{name}"))
    usual = _defaults(config, {name.partition(".")[0] for name in unread}) if usual is None else usual
    changed, *others = (
        dict(
            pair
            for field in unread
            for pair in _changed(attrgetter(field)(config), attrgetter(field)(unchanged), field)
        )
        for unchanged in (usual if isinstance(usual, tuple) else (usual,))
    )
    changed = {name: value for name, value in changed.items() if all(name in other for other in others)}
    if changed:
        listed = ", ".join(f"{spell(name)} is {value}" for name, value in changed.items())
        them = "it" if len(changed) == 1 else "them"
        hint = f" ({remedy})" if remedy else ""
        raise ValueError(f"{listed}, but {who} does not read {them}; leave {them} out{hint}")


def _defaults(config: Any, names: Collection[str]) -> SimpleNamespace:
    """The defaults of some fields of a dataclass; not an instance, whose construction may call this check again."""
    defaults = {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(config)
        if f.name in names
    }
    return SimpleNamespace(**defaults)


def _changed(value: Any, usual: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The fields in which two values differ, by dotted name; a value that is not a dataclass is one field."""
    if dataclasses.is_dataclass(value) and type(value) is type(usual):
        for f in dataclasses.fields(value):
            yield from _changed(getattr(value, f.name), getattr(usual, f.name), f"{name}.{f.name}")
    elif value != usual:
        yield name, value
