"""The runs under a folder: kind, progress and last metrics of each. Imports no jax."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import expanded
from llmrl_jax.core.statistics import is_number
from llmrl_jax.report.figures import text_table
from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.folder import FINISHED, STOPPED, held, holder, read_status, saved_updates


RUNNING = "running"
PRUNED = ("checkpoints", "frozen", "model", "adapter", "prior", "tensorboard", "wandb")
"""Folders inside a run that hold no further runs."""
WORLDS, LEARNERS, MODELS = ("env", "tasks", "task", "data"), ("algo", "agent", "method"), ("model",)
"""Options with a run's environment, learner and model; the first that a configuration has is used."""
METRICS = ("success", "episode_return", "reward")
"""The main metrics. A list shows the first in the last evaluation, else in the last line of training; runs are
compared by the first that all have."""

ABSENT = object()
"""Stands for a missing value."""

KindOf = Callable[[Mapping[str, Any]], str]
"""From the values of a config.json to the kind of the run; empty if unknown."""


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run, from its folder."""

    name: str
    """Its folder, relative to the one that was searched."""
    folder: str
    kind: str
    """The command that created it, such as `lm sft`; empty if unknown."""
    world: str
    learner: str
    """The algorithm or the agent."""
    model: str
    state: str
    """`running`, `finished`, `stopped` or `failed`."""
    why: str
    """The process that runs it, or why it stopped or failed."""
    update: int
    updates: int | None
    """Updates of the whole run; None if unknown."""
    steps: int
    date: str
    """Time when its metrics, else its settings, were written: `YYYY-MM-DD HH:MM`, or the date in its summary."""
    train: dict[str, Any]
    """The last line of training."""
    eval: dict[str, Any]
    """The last evaluation."""

    def headline(self) -> str:
        """The main metric, of the last evaluation if it has one."""
        for line, prefix in ((self.eval, "eval "), (self.train, "")):
            losses = [name for name in line if name.endswith("loss")]
            for name in (*METRICS, *losses):
                value = line.get(name)
                if is_number(value):
                    return f"{prefix}{name} {value:.4g}"
        return ""

    def progress(self) -> str:
        """Updates done and in total."""
        return f"{self.update}/{self.updates}" if self.updates else str(self.update or "")


def read_values(folder: Path) -> dict[str, Any] | None:
    """The values of a run's config.json; None if the folder holds no run (or a language model)."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and "model_type" not in values else None


def find_folders(root: str | Path) -> Iterator[Path]:
    """The folders of all runs in `root`, including `root`, and in their subfolders, by name."""
    for folder, names, files in os.walk(root):
        is_run = "config.json" in files and read_values(Path(folder)) is not None
        names[:] = sorted(n for n in names if not n.startswith(".") and not (is_run and n in PRUNED))
        if is_run:
            yield Path(folder)


def the_run(folder: str | Path) -> Path:
    """The folder of a run. **Raises:** `FileNotFoundError` if it holds no run, naming the nearest."""
    folder = expanded(folder)
    if not folder.is_dir() or read_values(folder) is None:
        root = folder.parent
        names = [path.name for path in root.iterdir() if read_values(path) is not None] if root.is_dir() else []
        raise FileNotFoundError(f"there is no run in {folder}{nearest(folder.name, names)}")
    return folder


def distinct(folders: Sequence[Path]) -> None:
    """Check that no two paths lead to the same folder. **Raises:** `ValueError`, naming both."""
    folders_by_path: dict[Path, Path] = {}
    for folder in folders:
        path = expanded(folder).resolve()
        if path in folders_by_path:
            pair = f"{folder} is given twice"
            if folders_by_path[path] != folder:
                pair = f"{folders_by_path[path]} and {folder} are the same run"
            raise ValueError(f"{pair}: name each run once, since every run counts as one seed")
        folders_by_path[path] = folder


def read_facts(folder: Path, root: Path, kind_of: KindOf = lambda values: "") -> RunFacts:
    """Read the facts of a run from its folder.

    **Arguments:** `folder`; `root`, which names are relative to; `kind_of`, for runs whose config.json does not name
    their kind.
    """
    values = read_values(folder) or {}
    kind = values.get("kind")
    lines = _lines(folder)
    status = read_status(folder)
    state, why = _state(folder)
    train = lines.get("train", {})
    reached = max([*(line["update"] for line in lines.values()), 0])
    name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
    return RunFacts(
        name=name,
        folder=str(folder),
        kind=kind if isinstance(kind, str) else kind_of(values),
        world=_first_value(values, WORLDS),
        learner=_first_value(values, LEARNERS),
        model=_first_value(values, MODELS),
        state=state,
        why=why,
        update=max(reached, status.update if status else 0),
        updates=status.updates if status else None,
        steps=_count(train.get("steps")),
        date=_date(folder),
        train=train,
        eval=lines.get("eval", {}),
    )


def _count(value: Any) -> int:
    """A number of a line as an integer; 0 if the line has none."""
    return int(value) if is_number(value) else 0


def _lines(folder: Path) -> dict[str, dict[str, Any]]:
    """The last line of each kind of a run's log; none of a log that this user cannot read."""
    try:
        return sinks.newest(folder / "metrics.jsonl")
    except OSError:
        return {}


def _state(folder: Path) -> tuple[str, str]:
    """The state of a run, and its reason."""
    if process := holder(folder):
        return RUNNING, process
    if status := read_status(folder):
        return (status.ended, status.why) if status.ended else (STOPPED, "its process was killed, or an error ended it")
    summary = read_summary(folder)
    if not summary:
        return STOPPED, ""
    stopped = summary.get("stopped")
    return (STOPPED, str(stopped)) if stopped else (FINISHED, "")


def read_summary(folder: Path) -> dict[str, Any]:
    """The contents of `summary.json`, which a run's command writes at its end; empty if there is none."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _first_value(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The first given option of `names`, at the top level or in a part of a configuration."""
    places = [values, *(v for name, v in values.items() if isinstance(v, Mapping) and name != "run")]
    for name in names:
        for part in places:
            value = part.get(name)
            if isinstance(value, list) and value:
                value = value[0] if len(value) == 1 else f"{value[0]} and {len(value) - 1} more"
            if isinstance(value, str) and value:
                return value
    return ""


def _date(folder: Path) -> str:
    date = read_summary(folder).get("date")
    if isinstance(date, str):  # the files of a copied run have other times
        return date
    files = [folder / name for name in ("metrics.jsonl", "config.json")]
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(max(f.stat().st_mtime for f in files if f.exists())))


def list_runs(root: str | Path, kind_of: KindOf = lambda values: "") -> list[RunFacts]:
    """The runs in a folder and its subfolders. **Raises:** `FileNotFoundError` if there is no such folder."""
    root = expanded(root)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}: name the one that holds the runs")
    return [read_facts(folder, root, kind_of) for folder in find_folders(root)]


def runs_table(runs: list[RunFacts]) -> str:
    """A table with a line for each run."""
    rows = [["run", "kind", "world", "learner", "model", "state", "update", "steps", "last metric", "date"]]
    for run in runs:
        cells = [run.name, run.kind or "?", *map(_short, (run.world, run.learner, run.model))]
        rows.append([*cells, run.state, run.progress(), str(run.steps or ""), run.headline(), run.date])
    return text_table(rows)


def _short(text: str, width: int = 32) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


# --- one run ----------------------------------------------------------------------------------------------------------


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder and its subfolders."""
    return sum(os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(folder) for name in names)


def checkpoints_of(folder: Path) -> dict[str, int]:
    """The update of each checkpoint, and `frozen` -> bytes."""
    sizes = {str(update): size_of(folder / "checkpoints" / str(update)) for update in saved_updates(folder)}
    if (folder / "frozen").is_dir():
        sizes["frozen"] = size_of(folder / "frozen")
    return sizes


def changed_settings(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options of a configuration that differ from those of another, by dotted name: this one's value, and the
    other's (`ABSENT` if it has no such option). Options of the run's identity (name, folder,
    resume, kind, version, preset) are omitted."""
    ignored = ("kind", "version", "preset", "run.name", "run.out", "run.resume")
    current, defaults = flat(values), flat(usual)
    names = [
        name for name in current if name not in ignored and (name not in defaults or current[name] != defaults[name])
    ]
    return {name: (current[name], defaults.get(name, ABSENT)) for name in names}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    by_name: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            by_name |= flat(value, f"{prefix}{name}.")
        else:
            by_name[f"{prefix}{name}"] = value
    return by_name


# --- deleting ---------------------------------------------------------------------------------------------------------


def remove(folder: Path) -> None:
    """Delete a run with everything in its folder.

    The folder is first renamed to a hidden name, so that an interrupted deletion leaves no partial run.

    **Raises:** `FileNotFoundError` if there is none; `BlockingIOError` if it, or a run inside it, is being written;
    `ValueError` for a symbolic link.
    """
    folder = the_run(folder)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link to {folder.resolve()}: name that folder")
    for inner in find_folders(folder):
        if process := holder(inner):
            raise BlockingIOError(f"{inner} is being written by {process}; wait until that has ended")
    with held(folder):
        hidden = folder.with_name(f".{folder.name}.deleted-{os.getpid()}")
        folder.rename(hidden)
    shutil.rmtree(hidden)
