"""Shared parts of the figures of several runs: a canvas, axes as in `llmrl_jax.run.curves`, colours."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from llmrl_jax.core.files import check_writable, expanded
from llmrl_jax.run.curves import EVAL, TRAIN, new_axes, save as save


COLORS = (TRAIN, EVAL, "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999")
"""Colours of lines or bars, in order; they repeat after seven."""


def color(i: int) -> str:
    """The colour of the `i`-th line or bar."""
    return COLORS[i % len(COLORS)]


def new_axis(width: float, height: float) -> tuple[Any, Any]:
    """A figure of `width` x `height` inches with one axis, drawn without a window. **Returns:** `(figure, axis)`."""
    figure, (axis,) = new_axes(width, height)
    return figure, axis


def text_table(rows: list[list[str]]) -> str:
    """Rows of cells, the header first, as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def new_file(path: Path | None, usual: Path, suffixes: Collection[str] | None = None) -> Path:
    """The path of a figure or page that does not exist yet, checked before there is anything to draw.

    **Arguments:** `path`, the requested path, with the suffix of `usual` if it has none; None: `usual`, or, if that
    exists, its name with `-2`, `-3`, ...; `suffixes`, those that are possible, with their dots: None, those of
    pictures.
    **Raises:** `FileExistsError` if `path` exists; `ValueError` for another suffix; what `check_writable` raises if
    nothing can be written there, also for `usual`.
    """
    if path is None:
        file, n = usual, 1
        while file.exists():
            n += 1
            file = usual.with_name(f"{usual.stem}-{n}{usual.suffix}")
        check_writable(file, "the default of --out")
        return file
    path, kind = expanded(path), "pictures" if suffixes is None else "pages"
    if not path.name or path.name == "..":
        example = path / ("curves.png" if suffixes is None else usual.name)
        raise ValueError(f"--out is {path}, which is a folder: give the file of the {kind[:-1]}, as in {example}")
    path = path if path.suffix else path.with_suffix(usual.suffix)
    if path.exists():
        raise FileExistsError(f"{path} exists already; give another --out")
    formats = _picture_suffixes() if suffixes is None else suffixes
    if path.suffix.lower() not in formats:
        listed = ", ".join(sorted(suffix[1:] for suffix in formats))
        raise ValueError(f"--out is {path}, but {path.suffix} is no format of {kind}: take one of {listed}")
    check_writable(path, "--out")
    return path


def _picture_suffixes() -> list[str]:
    from matplotlib.backend_bases import FigureCanvasBase

    return [f".{name}" for name in FigureCanvasBase.get_supported_filetypes()]
