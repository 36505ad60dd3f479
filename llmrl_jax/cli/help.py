"""Help texts: the frequent options of a command with their descriptions, and the names of the others; or all of them.

tyro reads options, types, defaults and descriptions from signatures; this module chooses, orders and wraps them. A
command names its frequent options in `options.command.command(..., frequent=...)`. Without them all are described.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmrl_jax.options.command import parser_of


WIDEST, NARROWEST = 120, 50
"""Limits of the width of a text, in columns."""
COLUMN = 30
"""Columns of names before their descriptions."""


@dataclass(frozen=True)
class Option:
    """An option or an argument of a command."""

    names: tuple[str, ...]
    """Its flags, such as `--run.seed`; empty for an argument."""
    value: str
    """Its values, such as `INT`; empty for a switch."""
    text: str
    """Its description and its default."""
    choices: tuple[str, ...] = ()
    is_path: bool = False

    @property
    def call(self) -> str:
        """The option as typed: `--run.seed INT`."""
        return " ".join(filter(None, [", ".join(self.names), self.value]))


@dataclass(frozen=True)
class Section:
    """Options with the same prefix."""

    prefix: str
    """`run` for `--run.seed`; empty for options without one."""
    description: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Described:
    """A command's arguments and options."""

    description: str
    arguments: tuple[Option, ...]
    sections: tuple[Section, ...]

    @property
    def options(self) -> Iterator[Option]:
        """The options of all sections."""
        for section in self.sections:
            yield from section.options


def describe(function: Callable[..., Any]) -> Described:
    """The options of a command. **Arguments:** `function`, as for `llmrl_jax.options.command.parse`."""
    parser = parser_of(function)
    arguments: list[Option] = []
    sections: list[Section] = []
    for group in parser._action_groups:
        options: list[Option] = []
        for action in group._group_actions:
            if "--help" in action.option_strings:
                continue
            names, value = (
                tuple(action.option_strings),
                (action.metavar or "").replace("{None}|", "").replace("{[", "[").replace("]}", "]"),
            )
            text = " ".join((action.help or "").split())
            text = text.replace("(default: '')", "(default: empty)").replace("(default: )", "(default: none)")
            choices = tuple(str(choice) for choice in action.choices or ())
            option = Option(names, value, text, choices, is_path="PATH" in value)
            if not names:
                option = replace(option, value=action.dest.upper() + (" ..." if action.nargs in ("*", "+") else ""))
            (options if names else arguments).append(option)
        if options:
            prefix = options[0].names[0].removeprefix("--").rpartition(".")[0]
            sections.append(Section(prefix, " ".join((group.description or "").split()), tuple(options)))
    return Described(parser.description or "", tuple(arguments), tuple(sections))


def width() -> int:
    """Columns of a text: those of the terminal, within limits."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((100, 24)).columns))


def wrapped(text: str) -> str:
    """Paragraphs, broken by width."""
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(part, width(), break_on_hyphens=False) for part in parts if part)


def row(name: str, text: str, column: int = COLUMN) -> str:
    """A name and its description beside it, or below it if the name is long."""
    lines = textwrap.wrap(text, width() - column, break_on_hyphens=False, break_long_words=False) or [""]
    first = f"  {name}"
    if len(first) > column - 2:
        lines.insert(0, "")
    indented = [f"{first:<{column}}{lines[0]}".rstrip(), *(" " * column + line for line in lines[1:])]
    return "\n".join(indented)


def help_text(function: Callable[..., Any], prog: str, *, everything: bool = False) -> str:
    """The help text of a command.

    **Arguments:** `function`; `prog`, its name; `everything`, whether to describe the options that are not frequent.
    """
    described = describe(function)
    by_name = {name.removeprefix("--"): option for option in described.options for name in option.names}
    frequent = [by_name[name] for name in getattr(function, "frequent", ()) if name in by_name]
    remaining = [
        Section(section.prefix, section.description, tuple(o for o in section.options if o not in frequent))
        for section in described.sections
    ]
    remaining = [section for section in remaining if section.options]
    usage = " ".join(["usage:", prog, *(argument.value for argument in described.arguments), "[options]"])
    parts = [usage, wrapped(described.description)]
    if described.arguments:
        parts.append("\n".join(["arguments:", *(row(a.value, a.text) for a in described.arguments)]))
    if frequent:
        parts.append("\n".join(["frequent options:", *(row(o.call, o.text) for o in frequent)]))
    if everything or not frequent:
        parts += [_described(section) for section in remaining]
    elif remaining:
        parts.append("\n".join(["other options, which --help-all describes:", *map(_named, remaining)]))
    hint = "-h, --help shows this text" + (", --help-all also describes the other options" if frequent else "")
    return "\n\n".join(filter(None, [*parts, f"{hint}."])) + "\n"


def _described(section: Section) -> str:
    title = f"--{section.prefix}.*" if section.prefix else "options"
    heading = wrapped(f"{title}: {section.description}" if section.description else f"{title}:")
    return "\n".join([heading, *(row(option.call, option.text) for option in section.options)])


def _named(section: Section) -> str:
    """The names of a section's options, without descriptions."""
    prefix = f"--{section.prefix}." if section.prefix else "--"
    names = " ".join(f"{prefix}{option.names[0].removeprefix(prefix)}" for option in section.options)
    if not section.prefix:
        return textwrap.fill(names, width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    description = section.description.partition(". ")[0].rstrip(".")
    return "\n".join(
        [
            textwrap.fill(f"  --{section.prefix}.*  {description}", width(), subsequent_indent="    "),
            textwrap.fill(
                names.replace(prefix, "."),
                width(),
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            ),
        ]
    )


def usage(prog: str, kind: str, rows: dict[str, str], description: str) -> str:
    """The help text of a group of commands, or of all groups.

    **Arguments:** `kind`, "command" or "group"; `rows`, the name of each and its description.
    """
    column = max(map(len, rows), default=0) + 4
    lines = [f"usage: {prog} <{kind}> ...", "", "\n".join(map(wrapped, description.split("\n"))), "", f"{kind}s:"]
    lines += [row(name, text, column) for name, text in rows.items()]
    lines += ["", f"`{prog} <{kind}> --help` says more about each.", ""]
    return "\n".join(lines)
