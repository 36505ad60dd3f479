"""List, show, compare and delete runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from llmrl_jax.core.files import byte_text, expanded


def list_all(folder: Annotated[Path, tyro.conf.Positional] = Path("runs"), json: bool = False) -> None:
    """List the runs in a folder and its subfolders: kind, progress and last metric of each.

    States: running (a process writes it now), finished, stopped (by a signal, a time budget, or a process that was
    killed), failed (`show` says why).

    Args:
        folder: The folder that holds the runs.
        json: Print all facts as JSON.
    """
    from llmrl_jax.options.kinds import kind_of
    from llmrl_jax.report import runs

    facts = runs.list_runs(folder, kind_of)
    if json:
        _print_json(facts)
    elif not facts:
        print(f"there is no run in {folder}")
    else:
        print(runs.runs_table(facts))


def show(folder: tyro.conf.Positional[Path], json: bool = False) -> None:
    """Show a run: settings that differ from the defaults, last metrics, summary, checkpoints and their sizes.

    Args:
        folder: The run's folder, `runs/NAME`.
        json: Print all facts as JSON.
    """
    from llmrl_jax.options.kinds import defaults, kind_of
    from llmrl_jax.report import runs

    folder = runs.the_run(folder)
    facts = runs.read_facts(folder, folder.parent, kind_of)
    values = runs.read_values(folder) or {}
    usual = defaults(values)
    changed = runs.changed_settings(values, usual or {})
    checkpoints, summary = runs.checkpoints_of(folder), runs.read_summary(folder)
    if json:
        settings = {name: value for name, (value, _) in changed.items()}
        extra = {"settings": settings, "summary": summary, "checkpoints": checkpoints, "bytes": runs.size_of(folder)}
        _print_json(vars(facts) | extra)
        return
    _print_facts(facts, runs.size_of(folder))
    print(f"\n{'settings that differ from the defaults' if usual else 'settings (of an unknown kind)'}:")
    for name, (value, default) in changed.items():
        print(f"  {name}: {_text(value)}" + ("" if default is runs.ABSENT else f" (default: {_text(default)})"))
    plain = {name: value for name, value in summary.items() if isinstance(value, (str, int, float)) and value != ""}
    for title, line in (("last line of training", facts.train), ("last evaluation", facts.eval), ("summary", plain)):
        if line:
            print(f"\n{title}:")
            print("\n".join(f"  {name}: {_text(value)}" for name, value in line.items() if name != "kind"))
    print("\ncheckpoints:" if checkpoints else "\nno checkpoint")
    for name, size in checkpoints.items():
        print(f"  {name if name == 'frozen' else f'update {name}'}: {byte_text(size)}")


def compare(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    metric: str = "",
    bar: float | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Compare runs: a metric, steps to a bar, sample efficiency, speed, settings that differ; with a figure.

    Runs that differ only in their seed are one line.

    Args:
        folders: Folders of runs, `runs/NAME`.
        metric: Metric of training to compare, named as in `metrics.jsonl`; empty: success, episode_return, reward or a
            loss, the first that all runs have.
        bar: The value for the steps to first reach it, averaged over ten lines of metrics; by default 0.8 for
            success, and none for other metrics.
        out: File for the learning curves, which must not exist; by default `compare.png`, or `compare-2.png` and so on.
            Missing folders above it are created.
        json: Print the results as JSON.
    """
    from llmrl_jax.core.checks import in_interval
    from llmrl_jax.options.kinds import loaded
    from llmrl_jax.report import compare as comparison, figures, runs

    if not folders:
        raise ValueError("there is nothing to compare: name the folders of runs")
    paths = [runs.the_run(folder) for folder in folders]
    runs.distinct(paths)
    metric = metric or comparison.shared_metric(paths)
    if bar is None and metric == "success":
        bar = 0.8
    if bar is not None:
        in_interval("bar", bar, "(0, 1]" if metric == "success" else "(-inf, inf)")
    file = figures.new_file(out, Path("compare.png"))
    settings = [loaded(runs.read_values(path) or {}, path / "config.json") for path in paths]
    read = [comparison.read_run(path, values, metric) for path, values in zip(paths, settings, strict=True)]
    print(comparison.side_by_side(read, bar, file, json))


def rm(folders: tyro.conf.Positional[tuple[Path, ...]], yes: bool = False) -> int:
    """Delete runs with everything in their folders, after confirmation. A run that is being written is refused.

    Args:
        folders: Folders of runs, `runs/NAME`.
        yes: Delete without confirmation.
    """
    from llmrl_jax.report import runs

    if not folders:
        raise ValueError("there is nothing to delete: name the folders of runs")
    from llmrl_jax.options.kinds import is_known

    paths = [runs.the_run(expanded(folder).absolute()) for folder in folders]
    for folder in paths:
        if not is_known(runs.read_values(folder) or {}):
            raise ValueError(f"{folder} has a config.json that no command of llmrl wrote: delete the folder yourself")
        if not yes and not _agreed(folder):
            print(f"{folder} was left as it is")
            continue
        runs.remove(folder)
        print(f"{folder} was deleted")
    return 0


def _agreed(folder: Path) -> bool:
    from llmrl_jax.report import runs

    if not sys.stdin.isatty():
        raise ValueError("runs are deleted only after a question, and stdin is no terminal to ask on: give --yes")
    facts = runs.read_facts(folder, folder.parent)
    inner = len(list(runs.find_folders(folder))) - 1
    nested = f" and {inner} run{'s' if inner > 1 else ''} in it" if inner else ""
    question = f"Delete {folder}{nested} ({facts.state}, {byte_text(runs.size_of(folder))})? [y/N] "
    return input(question).strip().lower() in ("y", "yes")


def _print_facts(facts: Any, size: int) -> None:
    print(f"{facts.name}: {facts.kind or 'of an unknown kind'}, {facts.state}{f' ({facts.why})' if facts.why else ''}")
    rows = {
        "world": facts.world,
        "learner": facts.learner,
        "model": facts.model,
        "update": facts.progress(),
        "steps": facts.steps or "",
        "date": facts.date,
        "size": byte_text(size),
        "folder": facts.folder,
    }
    print("\n".join(f"  {name}: {value}" for name, value in rows.items() if value))


def _print_json(value: Any) -> None:
    from llmrl_jax.core.files import json_values

    print(json.dumps(json_values(value), indent=2))


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


COMMANDS: Mapping[str, Any] = {"list": list_all, "show": show, "compare": compare, "rm": rm}
