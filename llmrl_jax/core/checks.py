"""Checks of user input and their messages; `envs_jax.checks` documents the form of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from envs_jax.checks import above, at_least, between, fields_at_least, nearest


__all__ = ["above", "at_least", "between", "fields_at_least", "nearest", "option", "refuse_unread"]


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
    usual = _defaults(config) if usual is None else usual
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


def _defaults(config: Any) -> SimpleNamespace:
    """The defaults of a dataclass's fields, by name; not an instance, whose construction may call this check again."""
    made = {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(config)
    }
    return SimpleNamespace(**made)


def _changed(value: Any, usual: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The fields in which two values differ, by dotted name; a value that is not a dataclass is one field."""
    if dataclasses.is_dataclass(value) and type(value) is type(usual):
        for f in dataclasses.fields(value):
            yield from _changed(getattr(value, f.name), getattr(usual, f.name), f"{name}.{f.name}")
    elif value != usual:
        yield name, value
