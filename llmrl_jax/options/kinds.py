"""From the config.json of a run to the command that created it, and to its configuration class."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs


PACKAGE = Path(__file__).parent.parent


def command_modules() -> dict[str, str]:
    """Group of commands -> its module: those of `llmrl_jax/cli/commands/`, and `commands.py` or `commands/` of every
    system. Found by listing folders; nothing is imported."""
    paths = {path.stem: path for path in (PACKAGE / "cli" / "commands").glob("*.py") if path.stem != "__init__"}
    for folder in (PACKAGE / "systems").iterdir():
        for path in (folder / "commands.py", folder / "commands" / "__init__.py"):
            if path.is_file():
                paths[folder.name] = path
    parts = {name: path.relative_to(PACKAGE.parent).with_suffix("").parts for name, path in sorted(paths.items())}
    return {name: ".".join(part for part in split if part != "__init__") for name, split in parts.items()}


@functools.cache
def _commands() -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Kind of run -> function from the values of a run to its initial settings (`options.command.command`). Imports the
    commands of all groups, by their names: they are in packages above this one."""
    kinds = {}
    for name in command_modules().values():
        module = importlib.import_module(name)
        commands = [*getattr(module, "COMMANDS", {}).values(), getattr(module, "COMMAND", None)]
        for begin in (getattr(command, "begin", None) for command in commands):
            if begin is not None and (kind := getattr(begin({}), "KIND", "")):
                kinds[kind] = begin
    return kinds


def kind_of(values: Mapping[str, Any]) -> str:
    """The kind of a run: that in its config.json, or, if an older run has none there, the kind that has all its options
    and the fewest others. Empty if there is none."""
    if isinstance(values.get("kind"), str):
        return values["kind"]
    fitting = []
    options = {name: value for name, value in values.items() if name != "preset"}  # it may be another command's
    for kind, begin in _commands().items():
        try:
            settings = type(begin(options))
        except (ValueError, KeyError):  # options of another kind
            continue
        names = {f.name for f in dataclasses.fields(settings) if f.name != "run"}
        saved = set(configs.upgraded(settings, options)) - {"run"}
        if saved and saved <= names:
            fitting.append((len(names - saved), kind))
    return min(fitting, default=(0, ""))[1]


def is_known(values: Mapping[str, Any]) -> bool:
    """Return whether the values are those of a run of one of our commands."""
    return kind_of(values) in _commands()


def with_attribute(name: str) -> list[str]:
    """The kinds of runs whose settings have an attribute, sorted."""
    return sorted(kind for kind, begin in _commands().items() if hasattr(begin({}), name))


def loaded(values: Mapping[str, Any], source: str | Path) -> Any:
    """The settings of a run as an instance of their class; if that is unknown, the values.

    **Arguments:** `values`, those of its config.json; `source`, that file.
    **Raises:** `ValueError` for options that the class no longer has, naming the first.
    """
    begin = _commands().get(kind_of(values))
    return values if begin is None else configs.load_config(type(begin(values)), source)


def begun(values: Mapping[str, Any], kind: str = "") -> Any:
    """The initial settings of a run with these values, before any option is applied; required options are missing.

    **Arguments:** `kind`, empty: that of the values. **Raises:** `KeyError` for an unknown kind."""
    return _commands()[kind or kind_of(values)](values)


def defaults(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The defaults of a run's kind, as the values of a configuration file, without required options; None if the kind
    is unknown."""
    import tyro

    begin = _commands().get(kind_of(values))
    if begin is None:
        return None
    usual = begin(values)
    fields = {f.name: getattr(usual, f.name) for f in dataclasses.fields(usual)}
    return {name: configs.to_json(value) for name, value in fields.items() if value is not tyro.MISSING}
