"""Figures of searches: learning curves, and the evaluated parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.report import figures
from llmrl_jax.run.curves import INK


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rounds of a search in which policies were evaluated."""
    if not path.exists():
        return []
    return [line for line in map(json.loads, path.read_text().splitlines()) if line.get("values")]


MOST_NAMES = 6
"""The largest number of searches in a panel that its legend names."""


def draw_curves(path: Path, logs: Mapping[str, Path], tasks: Sequence[Any]) -> Path | None:
    """Plot mean returns over the number of episodes: for every search a line of the best so far and points of the best
    of each round; one panel per task.

    **Arguments:** `path`, of the figure; `logs`, of the searches, by name; `tasks`, theirs, in the same order.
    **Returns:** the path of the figure, or None if nothing was evaluated.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels: dict[str, tuple[Any, dict[str, list[dict[str, Any]]]]] = {}
    for (name, log), task in zip(logs.items(), tasks, strict=True):
        if lines := read_log(log):
            panels.setdefault(task.name, (task, {}))[1][name] = lines
    if not panels:
        return None
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows + 0.3), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(rows, columns)).reshape(-1)
    for axis, (task, searches) in zip(axes, panels.values()):
        for i, (name, lines) in enumerate(searches.items()):
            episodes, color = [line["episodes"] for line in lines], figures.color(i)
            axis.plot(episodes, [max(line["values"]) for line in lines], ".", ms=4, color=color, alpha=0.4, mew=0)
            axis.plot(episodes, [line["best"] for line in lines], color=color, lw=1.6, label=name)
        if task.bound is not None:
            axis.axhline(task.bound, color="#999999", lw=0.8, ls="--")
        if 1 < len(searches) <= MOST_NAMES:
            axis.legend(frameon=False, fontsize=7, loc="best")
        axis.set_title(task.title, fontsize=9.5, color=INK)
        axis.set_xlabel("episodes", fontsize=8.5, color=INK)
        axis.set_ylabel("mean return", fontsize=8.5, color=INK)
        axis.grid(axis="y", color="#dddddd", lw=0.7)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=8)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    marks = [
        Line2D([], [], color=INK, lw=1.6, label="best so far, a line per search"),
        Line2D([], [], color=INK, ls="", marker=".", alpha=0.6, label="best of a round"),
    ]
    if any(task.bound is not None for task, _ in panels.values()):
        marks.append(Line2D([], [], color="#999999", lw=0.8, ls="--", label="largest possible mean"))
    figure.legend(handles=marks, frameon=False, fontsize=8, loc="outside lower center", ncols=len(marks))
    return figures.save(figure, path)


def draw_parameters(folder: Path, log: Path, title: str) -> Path | None:
    """`parameters.png`: all policies of a search, projected on the first two principal components, coloured by mean
    return (the lowest tenth in one colour, since it would otherwise dominate the scale), the best one ringed.

    **Returns:** the path of the figure, or None if fewer than three policies were evaluated.
    """
    lines = read_log(log)
    params = np.array([p for line in lines for p in line["params"]], np.float64)
    values = np.array([v for line in lines for v in line["values"]], np.float64)
    if len(values) < 3:
        return None
    centred = params - params.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    if flat.shape[1] < 2:
        flat = np.concatenate([flat, np.zeros_like(flat)], axis=1)
    shares = sizes**2 / max(float((sizes**2).sum()), 1e-12)
    figure, axis = figures.new_axis(5.0, 4.0)
    drawn = axis.scatter(flat[:, 0], flat[:, 1], c=values, s=16, cmap="viridis", lw=0, vmin=np.percentile(values, 10))
    best = int(np.flatnonzero(values == lines[-1]["best"])[0])  # not one of a shorter, luckier evaluation
    axis.scatter(*flat[best], s=90, facecolors="none", edgecolors="#cc6677", lw=1.6)
    figure.colorbar(drawn, ax=axis, label="mean return", extend="min")
    for name, share, put in zip(("first", "second"), shares, (axis.set_xlabel, axis.set_ylabel)):
        put(f"{name} component ({100 * share:.0f}% of the variance)", fontsize=8.5, color=INK)
    axis.set_title(f"{title}: {len(values)} policies, the best at {values[best]:.2f}", fontsize=9.5, color=INK)
    return figures.save(figure, folder / "parameters.png")
