"""Write a report on runs as one HTML page: `llmrl report runs/FIRST runs/SECOND`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tyro


def report(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    metrics: tuple[str, ...] = (),
    title: str = "",
    out: Path | None = None,
) -> None:
    """Write a report on runs as one HTML page: results, curves, settings, episodes, and where each run comes from.

    The page needs no other file and no network. Runs that differ only in their seed are one line, with Student's 95%
    intervals over the seeds. Animations in the folders of runs are part of it.

    Args:
        folders: Folders of runs, `runs/NAME`, or folders that hold runs.
        metrics: Metrics to draw, named as in `metrics.jsonl`; by default success, returns, rewards and the first
            losses.
        title: Title of the page; empty: the names of the runs.
        out: File of the page, which must not exist; by default `report.html`, or `report-2.html` and so on. Missing
            folders above it are created.
    """
    from llmrl_jax import __version__
    from llmrl_jax.core.files import write_whole
    from llmrl_jax.report import figures, page

    if not folders:
        raise ValueError("there is nothing to report: name the folders of runs")
    file = figures.new_file(out, Path("report.html"), (".html", ".htm"))
    sources = sources_of(folders)
    content = page.page(sources, metrics, title, version=__version__).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content)
    print(f"The report on {len(sources)} run{'s' if len(sources) > 1 else ''} is in {file} ({len(content) >> 10} KiB)")


def sources_of(folders: Sequence[Path]) -> list[Any]:
    """The runs in folders, each of which is a run or holds runs.

    **Raises:** `FileNotFoundError` for a folder without runs; `ValueError` for a run that is named twice, or options
    that its class no longer has."""
    from llmrl_jax.core.files import expanded
    from llmrl_jax.report import runs

    paths: list[Path] = []
    for folder in folders:
        inside = expanded(folder)
        is_run = not inside.is_dir() or runs.read_values(inside) is not None
        paths += [runs.the_run(folder)] if is_run else list(runs.find_folders(inside)) or [runs.the_run(folder)]
    runs.distinct(paths)
    return [_source(path) for path in paths]


def _source(folder: Path) -> Any:
    from llmrl_jax.cli import parsing
    from llmrl_jax.options import kinds
    from llmrl_jax.report import runs
    from llmrl_jax.report.page import Source

    values = runs.read_values(folder) or {}
    settings = kinds.loaded(values, folder / "config.json")
    return Source(
        folder=folder,
        settings=settings,
        kind=kinds.kind_of(values),
        command=partial(parsing.command_of, values, settings, folder),
        changed=runs.changed_settings(values, kinds.defaults(values) or {}),
    )


COMMAND = report
