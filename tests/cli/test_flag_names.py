"""Every flag that a message, a help text or a docstring names is one that some command has."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import llmrl_jax
from llmrl_jax.cli.main import groups
from llmrl_jax.core.checks import option
from llmrl_jax.options.settings import names_of, names_of_command
from llmrl_jax.parallel.hosts import HostsConfig
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE
from llmrl_jax.run.slurm import SlurmConfig


ANYWHERE = {"--help", "--help-all", "--debug", "--version", "--hosts.help", "--slurm.help"}
"""Flags of no command in particular."""
OTHERS = {
    *("--no-deps", "--gpus-per-task", "--ntasks-per-node", "--cpus-per-task", "--field.option", "--merge"),
    *("--no-optional-locks", "--error-unmatch", "--abbrev", "--format", "--porcelain"),
}
"""Flags of pip, SLURM, llama.cpp and git, and an example."""
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9](?![\w\0-]|\.(?:[*\0]|$))")


def flags() -> set[str]:
    """The flags of all commands, also in their negative form."""
    known = set(ANYWHERE)
    for group in groups().values():
        module = importlib.import_module(group.module)
        for command in getattr(module, "COMMANDS", {"": getattr(module, "COMMAND", None)}).values():
            prepare = getattr(command, "prepare", None)
            lines = [[]] if prepare is None else [["--algo", algo] for algo in [*ALGORITHMS, *OFFLINE]]
            for line in lines:
                names = names_of_command(command if prepare is None else prepare(line))
                known |= {*names.anywhere.values(), *names.first.values()}
    for prefix, kind in (("hosts", HostsConfig), ("slurm", SlurmConfig)):
        known |= set(names_of(kind, prefix, prefix).anywhere.values())
    return known | {re.sub(r"([.]|^--)([^.]+)$", r"\1no-\2", flag) for flag in known}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module, with the values that an f-string inserts as zero bytes."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):  # an f-string before its parts
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def test_flags_that_are_named_exist():
    known, missing = flags(), []
    assert {"--run.resume", "--ppo.num-envs", "--dqn.n-step", "--checkpoint", "--glam.x"} - known == {"--glam.x"}
    paths = [path for path in Path(llmrl_jax.__file__).parent.rglob("*.py") if "--" in path.read_text()]
    for path in sorted(paths):
        for line, text in texts(path):
            missing += [f"{path.name}:{line}: {flag}" for flag in FLAG.findall(text) if flag not in known | OTHERS]
    assert not missing, "\n".join(missing)
    assert option("run.out") in known
