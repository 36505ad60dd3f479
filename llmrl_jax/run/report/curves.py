"""The learning curve of a run as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.report import statistics as stats


INK, TRAIN, EVAL = "#333333", "#4477aa", "#cc6677"


def _band(values: np.ndarray, weights: np.ndarray, success: bool, half: int):
    """Mean and 95% interval of each value together with its neighbours up to `half` lines away."""
    rows = []
    for i in range(len(values)):
        part = slice(max(0, i - half), i + half + 1)
        x, w = values[part], weights[part]
        keep = np.isfinite(x) & (w > 0)
        if success:
            n = int(w[keep].sum())
            rows.append(stats.wilson(min(float((x[keep] * w[keep]).sum()), n), n)[:3])
        else:
            rows.append(stats.mean_interval(x[keep])[:3])
    return np.asarray(rows, np.float64).reshape(-1, 3).T


def _panel(axis: Any, name: str, train: list[dict], evals: list[dict]) -> None:
    points = [line for line in train if np.isfinite(line.get(name, np.nan))]
    success = name == "success"
    if points:
        steps = np.array([line["steps"] for line in points])
        values = np.array([line[name] for line in points], float)
        weights = np.array([line.get(sinks.COUNT, 1.0) for line in points], float)
        bounded = success and sinks.COUNT in points[0]
        mean, low, high = _band(values, weights, bounded, half=max(1, len(values) // 40))
        axis.plot(steps, values, ".", ms=2.5, color=TRAIN, alpha=0.35, mew=0)
        axis.plot(steps, mean, color=TRAIN, lw=1.8, label="training, 95% interval")
        axis.fill_between(steps, low, high, color=TRAIN, alpha=0.2, lw=0)
    shown = [line for line in evals if np.isfinite(line.get(name, np.nan))]
    if shown:
        steps = np.array([line["steps"] for line in shown])
        values = np.array([line[name] for line in shown], float)
        low = np.array([line.get(f"{name}_low", line[name]) for line in shown], float)
        high = np.array([line.get(f"{name}_high", line[name]) for line in shown], float)
        bars = [np.maximum(values - low, 0), np.maximum(high - values, 0)]
        axis.errorbar(steps, values, bars, fmt="o-", ms=4, lw=1.2, capsize=2.5, color=EVAL, label="evaluation")
    axis.set_ylabel(name.replace("_", " "), color=INK)
    if success:
        axis.set_ylim(-0.02, 1.02)
    axis.grid(axis="y", color="#dddddd", lw=0.7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#999999")
    axis.tick_params(colors=INK, labelsize=9)
    axis.legend(frameon=False, fontsize=8.5, loc="best")


def learning_curve(
    folder: str | Path,
    names: Sequence[str] = ("success", "episode_return"),
    title: str = "",
    unit: str = "environment steps",
) -> Path | None:
    """Draw `learning_curve.png` from `metrics.jsonl`: metrics over the steps of a run, with 95% intervals.

    Training lines are averaged with their neighbours (Wilson's interval for success if episodes are counted,
    else the normal one); evaluations have their interval in `<name>_low` and `<name>_high`.

    **Arguments:** `folder`, the run's; `names`, the metrics to draw; those the run lacks are omitted, and if it lacks
    all, its losses are drawn; `title`, empty: the folder's name; `unit`, the unit of the run's steps.
    **Returns:** the figure's path, or None if there is nothing to draw.
    """
    folder = Path(folder)
    lines = sinks.read(folder / "metrics.jsonl")
    train, evals = ([x for x in lines if x["kind"] == kind] for kind in ("train", "eval"))
    known = {name for x in lines for name, value in x.items() if isinstance(value, float) and np.isfinite(value)}
    drawn = [name for name in names if name in known] or sorted(n for n in known if n.endswith("loss"))[:3]
    if not drawn:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(5.2 * len(drawn), 3.6), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(drawn))), drawn):
        _panel(axis, name, train, evals)
        axis.set_xlabel(unit, color=INK)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(title or folder.name, fontsize=11, color=INK)
    path = folder / "learning_curve.png"
    figure.savefig(path)
    return path
