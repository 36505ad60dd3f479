"""The runs of a report, with the commands that made them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llmrl_jax.cli import parsing
from llmrl_jax.core.files import expanded
from llmrl_jax.options import kinds
from llmrl_jax.report import runs
from llmrl_jax.report.page import Source


def sources_of(folders: Sequence[Path]) -> list[Source]:
    """The runs in folders, each of which is a run or holds runs.

    **Raises:** `FileNotFoundError` for a folder without runs; `ValueError` for a run that is named twice, or options
    that its class no longer has."""
    paths: list[Path] = []
    for folder in folders:
        inside = expanded(folder)
        is_run = not inside.is_dir() or runs.read_values(inside) is not None
        paths += [runs.the_run(folder)] if is_run else list(runs.find_folders(inside)) or [runs.the_run(folder)]
    runs.distinct(paths)
    return [_source(path) for path in paths]


def _source(folder: Path) -> Source:
    values = runs.read_values(folder) or {}
    settings = kinds.loaded(values, folder / "config.json")
    return Source(
        folder=folder,
        settings=settings,
        kind=kinds.kind_of(values),
        command=partial(parsing.command_of, values, settings, folder),
        changed=runs.changed_settings(values, kinds.defaults(values) or {}),
    )
