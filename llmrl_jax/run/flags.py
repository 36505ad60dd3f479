"""What a command must know of its flags before they are parsed, as its defaults hang on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from llmrl_jax.core import config as configs
from llmrl_jax.run.config import RunConfig


Settings = TypeVar("Settings")


def flag(args: Sequence[str], name: str) -> str | None:
    """The value of a flag on the command line, `--name value` or `--name=value`."""
    for i, arg in enumerate(args):
        if arg == name and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{name}="):
            return arg.partition("=")[2]
    return None


def resumed(kind: type[Settings], args: Sequence[str]) -> Settings | None:
    """The settings of the run that `--run.name NAME --run.resume` goes on with, from its own config.json; None where
    nothing is resumed. `kind` is a dataclass with a `run`.

    Left out is what an earlier start was told for itself: the checkpoint to go back to, and its time budget."""
    name = flag(args, "--run.name")
    if "--run.resume" not in args or not name:
        return None
    saved = Path(flag(args, "--run.out") or RunConfig().out).expanduser() / name / "config.json"
    found = configs.load_config(kind, saved)
    # a run that was not named has its name from its folder
    run = replace(found.run, name=name, resume=True, resume_from=-1, max_seconds=0.0)  # type: ignore[attr-defined]
    return replace(found, run=run)  # type: ignore[type-var]
