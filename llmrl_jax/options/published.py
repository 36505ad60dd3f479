"""Options of published programs on our command lines: those that mean the same, and what to write in place of others.

A command has a `Table`, as its attribute `published`. It is read before the command's own options, so that presets,
files and resumed runs see our names only. Two forms are read: `--name value` of argparse, and `name=value` of hydra,
with or without a `+` in front, where a table has `hydra`. Underscores and dashes are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Same:
    """A published option that means the same as ours."""

    flag: str
    """Ours, without dashes; empty: the positional argument."""
    convert: Callable[[str], str] = str
    """Their value -> ours."""


@dataclass(frozen=True)
class Choice:
    """A published option of which some values have an equivalent."""

    values: Mapping[str, tuple[str, ...]]
    """Their value, in lower case -> our arguments; none if ours always does it."""
    remedy: str
    """For any other value: what to write instead."""
    bare: str = ""
    """The value of the flag if it has none, as switches of argparse; empty: it has one."""
    last: bool = False
    """Whether our arguments come after those of all other options, over which they win."""


@dataclass(frozen=True)
class Instead:
    """A published option without an equivalent: what to write instead, or why nothing is needed."""

    remedy: str
    bare: bool = False
    """Whether it is a switch."""


Meaning = str | Same | Choice | Instead
"""A string is `Same` with this flag."""


def switch(flag: str, *, bare: bool = False) -> Choice:
    """A published boolean that is one of ours. **Arguments:** `bare`, whether it is a switch of argparse."""
    part, dot, name = flag.rpartition(".")
    negative = f"{part}{dot}no-{name}"
    values = {"true": (f"--{flag}",), "false": (f"--{negative}",)}
    return Choice(values, f"give --{flag} or --{negative}", "true" if bare else "")


@dataclass(frozen=True)
class Table:
    """The options of published programs, for one command."""

    program: str = ""
    """Whose they are, for messages."""
    options: Mapping[str, Meaning] = field(default_factory=dict)
    """Their name -> its meaning here."""
    hydra: bool = False
    """Whether `name=value` is read as well."""

    def translated(self, args: Sequence[str]) -> list[str]:
        """Arguments with our options only.

        **Raises:** `ValueError` for a published option without an equivalent, with what to write instead.
        """
        return list(_translated(self, args)) if self.options else list(args)


NONE = Table()


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _translated(table: Table, args: Sequence[str]) -> Iterator[str]:
    meanings = {_plain(name): meaning for name, meaning in table.options.items()}
    first: list[str] = []
    others: list[str] = []
    last: list[str] = []
    left = iter(args)
    for arg in left:
        name, equals, value = arg.partition("=")
        is_flag = name.startswith("--")
        meaning = meanings.get(_plain(name.lstrip("-" if is_flag else "+")))
        if meaning is None or not (is_flag or table.hydra and equals):
            others.append(arg)
            continue
        if isinstance(meaning, Instead):
            raise ValueError(f"{name} is an option of {table.program}: {meaning.remedy}")
        if isinstance(meaning, Choice):
            value = value if equals else meaning.bare or next(left, "")
            if value.lower() not in meaning.values:
                raise ValueError(f"{name} {value} is an option of {table.program}: {meaning.remedy}")
            (last if meaning.last else others).extend(meaning.values[value.lower()])
            continue
        same = meaning if isinstance(meaning, Same) else Same(meaning)
        if not equals:
            value = next(left, "")
            if not value:  # a flag without a value: ours is refused for it
                others.append(f"--{same.flag}" if same.flag else arg)
                continue
        if same.flag:
            others.append(f"--{same.flag}={same.convert(value)}")
        else:
            first.append(same.convert(value))
    yield from (*first, *others, *last)


def _marked(text: str) -> str:
    """A remedy with its flags as code, where they are not in code already."""
    return re.sub(r"`[^`]*`|--[a-z][a-z0-9.-]*[a-z0-9]", lambda m: m[0] if m[0][0] == "`" else f"`{m[0]}`", text)


def rows(table: Table) -> Iterator[tuple[str, str]]:
    """Each published option and what is written here, as Markdown."""
    for name, meaning in table.options.items():
        theirs = f"`{name}=`" if table.hydra and "." in name else f"`{name}`"
        if isinstance(meaning, Instead):
            yield theirs, f"refused: {_marked(meaning.remedy)}"
        elif isinstance(meaning, Choice):
            parts = [
                f"{value}: " + (f"`{' '.join(ours)}`" if ours else "always so")
                for value, ours in meaning.values.items()
            ]
            yield theirs, "; ".join([*parts, f"else refused: {_marked(meaning.remedy)}"])
        else:
            flag = meaning.flag if isinstance(meaning, Same) else meaning
            yield theirs, f"`--{flag}`" if flag else "the argument"
