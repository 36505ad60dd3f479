"""Completion of commands, options and their values in bash and zsh."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator
from typing import Any, Literal

import tyro

from llmrl_jax.cli.help import Described, describe


SCRIPT = """\
# Completion of llmrl, written by `llmrl completion {shell}`: write it again after an upgrade.
{prelude}_llmrl() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    local command="${{COMP_WORDS[1]}}" worlds={worlds}
    COMPREPLY=()
    case "$COMP_CWORD $command" in
        1\\ *) words={groups} ;;
{commands}
        *)
            case "$command" in
                {nested}) command="$command ${{COMP_WORDS[2]}}" ;;
            esac
            case "$command $before" in
{values}
                *)
                    case "$command $word" in
{options}
                    esac ;;
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _llmrl llmrl
"""
WORLDS = '"$worlds"'
"""The ids of environments, in a script."""
COMMON = ("--help", "--help-all", "--debug")
"""Options of every command."""


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh"]]) -> None:
    """Print a script that completes commands, options and their values: llmrl completion bash.

    Args:
        shell: The shell that reads the script.
    """
    print(script(shell), end="")


def script(shell: str) -> str:
    """The completion script of a shell. It completes file names where it knows nothing else."""
    import envs_jax
    from llmrl_jax.cli.main import groups

    descriptions = dict(commands())
    nested = sorted({name.partition(" ")[0] for name in descriptions if " " in name})
    by_group = {
        group: [name.partition(" ")[2] for name in descriptions if name.startswith(f"{group} ")] for group in nested
    }
    values = [line for name, described in descriptions.items() for line in _values(name, described)]
    return SCRIPT.format(
        shell=shell,
        prelude="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        worlds=_quoted(envs_jax.ids()),
        groups=_quoted([*groups(), "--help", "--version"]),
        commands="\n".join(
            f"        2\\ {group}) words={_quoted([*by_group[group], '--help'])} ;;" for group in nested
        ),
        nested="|".join(nested),
        values="\n".join(f"                {line}" for line in values),
        options="\n".join(
            f'                        "{name} -"*) words={_quoted([*_names(described), *COMMON])} ;;'
            for name, described in descriptions.items()
        ),
    )


def commands() -> Iterator[tuple[str, Described]]:
    """Every command by its full name, such as "glam train" or "serve". Imports no jax."""
    from llmrl_jax.cli.main import groups
    from llmrl_jax.cli.standins import standins

    functions: dict[str, Any] = {}
    with standins() as end:
        for name, group in groups().items():
            module = importlib.import_module(group.module)
            if hasattr(module, "COMMAND"):
                functions[name] = module.COMMAND
            for command, function in getattr(module, "COMMANDS", {}).items():
                prepare = getattr(function, "prepare", None)
                functions[f"{name} {command}"] = function if prepare is None else prepare([])
        end()
        for name, function in functions.items():
            yield name, describe(function)


def _names(described: Described) -> list[str]:
    return [name for option in described.options for name in option.names]


def _values(command: str, described: Described) -> Iterator[str]:
    """The branches for the values of a command's options, and of its first argument: choices and environments' ids."""
    for option in described.options:
        if option.choices or option.names == ("--env",):
            patterns = "|".join(f'"{command} {name}"' for name in option.names)
            yield f"{patterns}) words={_quoted(option.choices) if option.choices else WORLDS} ;;"
    for argument in described.arguments[:1]:
        if argument.choices or argument.value == "ID":
            words = _quoted(argument.choices) if argument.choices else WORLDS
            yield f'"{command} {command.split()[-1]}") words={words} ;;'


def _quoted(words: Any) -> str:
    return shlex.quote(" ".join(map(str, words)))


COMMAND = completion
