"""From the config.json of a run to the command that made it, and to its class."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs


@functools.cache
def _commands() -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Every kind of runs, with the function from the values of a run to the settings that it began with
    (`llmrl_jax.run.flags.command`). Imports the commands of all groups."""
    from llmrl_jax.cli.main import groups

    kinds = {}
    for group in groups().values():
        module = importlib.import_module(group.module)
        commands = [*getattr(module, "COMMANDS", {}).values(), getattr(module, "COMMAND", None)]
        for begin in (getattr(command, "begin", None) for command in commands):
            if begin is not None and (kind := getattr(begin({}), "KIND", "")):
                kinds[kind] = begin
    return kinds


def kind_of(values: Mapping[str, Any]) -> str:
    """The kind of a run: what its config.json says, or, of a run from before it did, the kind that has all its options
    and few others. Empty where there is none."""
    if isinstance(values.get("kind"), str):
        return values["kind"]
    fitting = []
    options = {name: value for name, value in values.items() if name != "preset"}  # it may be another command's
    for kind, begin in _commands().items():
        try:
            settings = type(begin(options))
        except (ValueError, KeyError):  # these options are of another kind
            continue
        names = {f.name for f in dataclasses.fields(settings) if f.name != "run"}
        given = set(configs.upgraded(settings, options)) - {"run"}
        if given and given <= names:
            fitting.append((len(names - given), kind))
    return min(fitting, default=(0, ""))[1]


def loaded(values: Mapping[str, Any], source: str | Path) -> Any:
    """The settings of a run, of their own class; where that is not known, the values themselves.

    **Arguments:** `values`, those of its config.json; `source`, that file.
    **Raises:** `ValueError` for options that their class does not have any more, naming the first.
    """
    begin = _commands().get(kind_of(values))
    return values if begin is None else configs.load_config(type(begin(values)), source)


def defaults(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The defaults of the kind of a run, as the values of a configuration file, without options that have none; None
    where its kind is not known."""
    import tyro

    begin = _commands().get(kind_of(values))
    if begin is None:
        return None
    usual = begin(values)
    given = {f.name: getattr(usual, f.name) for f in dataclasses.fields(usual)}
    return {name: configs.to_json(value) for name, value in given.items() if value is not tyro.MISSING}
