"""Names of options in messages, spelled as flags of the command line.

A check names a field as Python does: "ppo.num_envs is 0; at least 1 is needed". On the command line the same field is
`--ppo.num-envs`, or `--num-actions` where `world.num_actions` has no prefix. The commands therefore rewrite the names
in the errors that they print.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tyro

from llmrl_jax.core.checks import option


SPELLED = (ValueError, KeyError, TypeError, OSError, RuntimeError)
"""Errors whose messages are rewritten."""
_BEFORE, _AFTER = r"(?<![\w.\-/'\"`@=?&])", r"(?![\w/'\"`(=]|[.\-]\w)"
"""Where a name stands alone: not in a path, a quotation, an id's option or a longer name."""


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a command's options in messages."""

    anywhere: Mapping[str, str]
    """Name -> flag, for names that are no words of English: with a dot or an underscore."""
    first: Mapping[str, str]
    """Name -> flag, for names that are rewritten at the beginning of a message only, before "is" or a number."""

    def spell(self, message: str) -> str:
        """The message with its names as flags."""
        if self.first:
            known = "|".join(map(re.escape, sorted(self.first, key=len, reverse=True)))
            message = re.sub(rf"^({known})(?= is | are | has | \d)", lambda m: self.first[m[1]], message)
        if self.anywhere:
            known = "|".join(map(re.escape, sorted(self.anywhere, key=len, reverse=True)))
            message = re.sub(f"{_BEFORE}({known}){_AFTER}", lambda m: self.anywhere[m[1]], message)
        return message


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields, evaluated, with what tyro reads in them."""
    return typing.get_type_hints(kind, include_extras=True)


def shown(hint: Any, name: str) -> str:
    """The name of a field or parameter on the command line; empty if it is hidden, with `tyro.conf.arg(name="")`."""
    names = [m.name for m in getattr(hint, "__metadata__", ()) if getattr(m, "name", None) is not None]
    return names[0] if names else name


def dotted(path: str, name: str) -> str:
    """Two names with a dot between them, either of which may be empty."""
    return f"{path}.{name}".strip(".")


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _options(kind: Any, path: str, flag: str) -> Iterator[tuple[str, str]]:
    """The options of a dataclass: the dotted name of each and its flag, without dashes in front."""
    hints = hints_of(kind)
    for f in dataclasses.fields(kind):
        place, name = dotted(path, f.name), dotted(flag, shown(hints[f.name], f.name))
        inner = _bare(hints[f.name])
        if dataclasses.is_dataclass(inner):
            yield from _options(inner, place, name)
        else:
            yield place, name


def names_of(kind: type, path: str = "", flag: str = "") -> Names:
    """The names of the options of one part of a configuration, as the checks of that part use them.

    **Arguments:** `kind`, a dataclass; `path`, the dotted name of the part; `flag`, its prefix on the command line.
    """
    return _names(list(_options(kind, path, flag)), own=len(path) + 1 if path else 0)


def names_of_command(function: Callable[..., Any]) -> Names:
    """The names of the options of a command, from its signature."""
    options: list[tuple[str, str]] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hint = parameter.annotation
        if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            continue
        name, inner = shown(hint, parameter.name), _bare(hint)
        if dataclasses.is_dataclass(inner):
            options += _options(inner, parameter.name if name else "", name)
        else:
            options.append((parameter.name, name))
    return _names(options)


def _names(options: list[tuple[str, str]], own: int | None = None) -> Names:
    """**Arguments:** `options`, dotted name and flag of each; `own`, the length of the prefix that the checks of a part
    leave out of the names of its fields; None: of a whole command, whose messages may be about anything."""
    anywhere: dict[str, str] = {}
    first: dict[str, str] = {}
    last: dict[str, set[str]] = {}
    for path, seen in options:
        flag = option(seen)
        for name in (path, seen, *([path[own:]] if own else [])):
            (anywhere if re.search("[._]", name) else first)[name] = flag
        last.setdefault(path.rpartition(".")[2], set()).add(flag)
    for name, flags in last.items():
        if len(flags) == 1 and name not in anywhere:
            first.setdefault(name, *flags)
    return Names(anywhere, first)


@contextlib.contextmanager
def spelled(names: Callable[[], Names]) -> Iterator[None]:
    """Rewrite the message of an error that leaves the block. **Arguments:** `names`, called only then."""
    try:
        yield
    except SPELLED as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (names().spell(error.args[0]),)
        raise
