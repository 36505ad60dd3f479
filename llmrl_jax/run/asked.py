"""What decides the defaults of an unparsed command line: the file of `--config`, and the run to resume."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs
from llmrl_jax.run.config import BaseRunConfig, find_run, resume_value
from llmrl_jax.run.settings import read_values


Reader = Callable[[dict[str, Any], Path], dict[str, Any]]
"""`(values, path) -> values`: the options in a file of another format."""


def flag(args: Sequence[str], name: str) -> str | None:
    """The value of a flag on the command line, `--name value` or `--name=value`: empty for a flag without a value, None
    if the flag is absent. The last occurrence counts."""
    last = None
    for i, arg in enumerate(args):
        given, equals, value = arg.partition("=")
        if given.replace("_", "-") == name.replace("_", "-"):
            following = args[i + 1] if i + 1 < len(args) and not args[i + 1].startswith("--") else ""
            last = value if equals else following
    return last


@dataclasses.dataclass(frozen=True)
class Asked:
    """The parts of an unparsed command line on which defaults depend."""

    args: Sequence[str]
    path: Path
    """The file of `--config`."""
    file: dict[str, Any]
    """Its values."""
    folder: str
    """The run to resume; empty: none."""
    saved: dict[str, Any]
    """The values of its config.json."""

    def get(self, name: str) -> str | None:
        """The value of an option: the flag, else that of the file, else that of the resumed run."""
        value = flag(self.args, f"--{name}")
        for values in (self.file, self.saved):
            value = value if value is not None else _find(values, name)
        return value


def _find(values: Mapping[str, Any], name: str) -> str | None:
    """An option in a file's values: at the top level, or in a part whose options have no prefix."""
    for place in (values, *(v for v in values.values() if isinstance(v, Mapping))):
        if name in place and not isinstance(place[name], Mapping):
            return str(place[name])
    return None


def read_asked(config: type, args: Sequence[str], read: Reader | None) -> Asked:
    """Read what a command line names. **Arguments:** `config`, the class of the settings; `args`; `read`, a reader of
    files in other formats.

    **Raises:** what `read_values`, `find_run` and `unstamped` raise."""
    kind = getattr(config, "KIND", "")
    path, file = Path(), {}
    named = flag(args, "--config")
    if named == "":
        raise ValueError("--config names no file; give a path, or leave it out")
    if named:
        path, values = read_values(named)
        file = configs.unstamped(values, kind, path)
        if read is not None:
            file = read(file, path)
        if _is_of_a_run(path, values):  # a new run with another's settings
            file = dict(configs.upgraded(config, file))
            own = ("name", "resume", "resume_from", "accept_gaps")  # what is about that run only
            file |= {"run": {n: v for n, v in file["run"].items() if n not in own}} if "run" in file else {}
    try:
        folder, saved = _resumed_folder(args, file), {}
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if "run" in file else str(error)) from None
    if folder:
        source = find_run(folder)
        values = configs.read_json(source)
        saved = configs.unstamped(values, kind, source, run=folder) if isinstance(values, dict) else {}
        saved.pop("preset", None)  # runs before version 1 hold the preset's values beside its name
    return Asked(args, path, file, folder, saved)


def _is_of_a_run(path: Path, values: Mapping[str, Any]) -> bool:
    """Whether a file is the config.json that a run wrote, or a copy of it: it lies beside the run's other files, or has
    every option of `run` and its kind or, as earlier versions wrote it, the name of its folder or none. A user may
    write a file of that name too."""
    run = values.get("run", {})
    if path.name != "config.json" or not isinstance(run, Mapping):
        return False
    beside = any((path.parent / name).exists() for name in ("metrics.jsonl", "status.json", "summary.json"))
    every = all(f.name in run for f in dataclasses.fields(BaseRunConfig))
    return beside or every and ("kind" in values or run["name"] in ("", path.resolve().parent.name))


def _resumed_folder(args: Sequence[str], file: Mapping[str, Any]) -> str:
    """The folder of the run to resume, from the flags or the file; empty: none. **Raises:** `ValueError` for values in
    the file of other types."""
    said = file.get("run")
    given = dict(said) if isinstance(said, Mapping) else {}
    given |= {name: value for name in ("name", "out") if (value := flag(args, f"--run.{name}"))}
    if (resume := flag(args, "--run.resume")) is not None:
        given["resume"] = resume_value(resume) if resume else given.get("resume") or True
    if not given.get("resume"):
        return ""
    for name, kind in (("name", str), ("out", str), ("resume", bool | str)):
        if name in given:
            configs.from_json(kind, given[name], f"run.{name}")
    run = BaseRunConfig(given.get("name", ""), given.get("out", "runs"), resume=given["resume"])
    return os.path.join(run.out, run.name)
