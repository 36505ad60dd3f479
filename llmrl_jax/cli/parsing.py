"""Command lines as data: from options to arguments, from those to checked settings, and from a run to its command."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from llmrl_jax.cli.main import groups
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import nearest
from llmrl_jax.options import kinds
from llmrl_jax.options.command import parse
from llmrl_jax.options.settings import names_of_command, options_of
from llmrl_jax.run.config import BaseRunConfig


OF_A_FOLDER = ("run.name", "run.out", "run.resume")
"""Options that say where a run is, not what it is."""


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options as arguments of a command line.

    **Arguments:** `options`, flag without dashes -> number, string, switch, list of such, or None."""
    args: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            prefix, dot, last = flag.rpartition(".")
            args.append(f"--{flag}" if value else f"--{prefix}{dot}no-{last}")
        elif isinstance(value, (list, tuple)):
            args += [f"--{flag}", *map(str, value)]
        else:
            args.append(f"--{flag}={value}")  # a value may begin with a dash
    return args


@dataclasses.dataclass(frozen=True)
class RunCommand:
    """A command that makes a run, and so has settings with a `run`."""

    name: str
    """Its full name, `rl train`."""
    prepare: Callable[[Sequence[str]], Callable[..., Any]]

    def flags(self, args: Sequence[str]) -> set[str]:
        """The flags, without dashes, of the command for these arguments: they may depend on some, as on `--algo`.

        **Raises:** what the command's defaults raise, such as `KeyError` for an unknown algorithm."""
        names = names_of_command(self.prepare(args))
        return {flag.removeprefix("--") for flag in (*names.anywhere.values(), *names.first.values())}

    def settings(self, args: Sequence[str]) -> Any:
        """The checked settings that the command receives for these arguments. Nothing is run.

        **Raises:** `ValueError` with the message of the parser, and what the checks raise."""
        command = self.prepare(args)

        @functools.wraps(command)
        def parsed(**values: Any) -> Any:
            return values["settings"]

        output = io.StringIO()
        try:
            with contextlib.redirect_stderr(output):
                return parse(parsed, f"llmrl {self.name}", list(args))
        except SystemExit:
            raise ValueError(_first_message(output.getvalue())) from None


def _first_message(frame: str) -> str:
    """The message of the parser, which draws it in a frame above its help."""
    inner = [line.strip("│ ") for line in frame.splitlines() if line.startswith("│")]
    end = next((i for i, line in enumerate(inner) if line.startswith("──")), len(inner))
    return " ".join(inner[:end]) or frame.strip() or "the options cannot be parsed"


def run_command(name: str) -> RunCommand:
    """The command of this full name. **Raises:** `ValueError` if there is none that makes a run, naming the nearest."""
    group, _, command = name.strip().partition(" ")
    by_name = groups()
    if group not in by_name:
        raise ValueError(f"there is no command {name!r}{nearest(group, list(by_name))}; `rl train` is one")
    commands = getattr(importlib.import_module(by_name[group].module), "COMMANDS", {})
    suitable = [key for key, function in commands.items() if hasattr(function, "prepare") and _makes_run(function)]
    if command not in suitable:
        listed = ", ".join(f"{group} {key}" for key in suitable) or "none of this group"
        raise ValueError(f"{name!r} is no command that makes a run{nearest(command, suitable)} (possible: {listed})")
    return RunCommand(f"{group} {command}", commands[command].prepare)


def _makes_run(command: Any) -> bool:
    return isinstance(getattr(command.begin({}), "run", None), BaseRunConfig)


def command_of(values: Mapping[str, Any], config: Any, folder: Path) -> str:
    """A command line that makes a run with the same settings, but for its folder.

    The options that differ from the defaults, if the command's parser reads the settings from them; else the run's
    configuration file.

    **Arguments:** `values`, those of its config.json; `config`, its settings; `folder`, the run's. **Returns:** the
    line, as a shell reads it; empty for runs of an unknown command."""
    kind = kinds.kind_of(values)
    if not kind or not dataclasses.is_dataclass(config):
        return ""
    file = shlex.join(["llmrl", *kind.split(), "--config", str(folder / "config.json")])
    try:
        command = run_command(kind)
        current, usual = (by_flag(settings) for settings in (config, kinds.begun(values)))
        chosen = {name: x for name, x in current.items() if name not in usual or usual[name] != x}
        start = by_flag(kinds.begun({}, kind))  # `--algo` decides the class of the settings, whose default it is
        chosen |= {n: x for n, x in current.items() if isinstance(x, str) and n in start and start[n] != x}
        args = arguments({name: x for name, x in chosen.items() if name not in OF_A_FOLDER})
        if configs.identity(command.settings(args)) == configs.identity(config):
            return shlex.join(["llmrl", *kind.split(), *args])
    except (ValueError, KeyError, TypeError, OSError):  # a prior or data that are gone, options of an earlier version
        pass
    return file


def by_flag(config: Any) -> dict[str, Any]:
    """The options of settings by their flags, as JSON values."""
    values: dict[str, Any] = {}
    for path, flag in flags_of(type(config)):
        value = functools.reduce(getattr, path.split("."), config)
        if value is not tyro.MISSING:  # a required option, among defaults
            values[flag] = configs.to_json(value)
    return values


def flags_of(kind: type) -> Iterator[tuple[str, str]]:
    """The options of settings: the dotted name of each and its flag, without dashes in front."""
    for path, flag in options_of(kind):
        yield path, flag.replace("_", "-")
