"""The learning curve of a run as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import new_draft
from llmrl_jax.run import metrics as sinks


INK, TRAIN, EVAL = "#333333", "#4477aa", "#cc6677"


def new_axes(width: float, height: float, count: int = 1) -> tuple[Any, list[Any]]:
    """A figure of `width` x `height` inches with `count` axes in a row, drawn without a window.

    **Returns:** `(figure, axes)`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for axis in axes:
        axis.grid(axis="y", color="#dddddd", lw=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#999999")
        axis.tick_params(colors=INK, labelsize=9)
    return figure, axes


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure atomically, as PNG if the path has no suffix; its folder is created if it is new.

    **Returns:** the file."""
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    with new_draft(path) as draft:
        figure.savefig(draft, format=path.suffix[1:].lower())
    return path


FEWEST = 20
"""Curves of fewer lines are not smoothed."""


def reach(lines: int) -> int:
    """The number of neighbours on each side that a point of a curve is averaged with, for a curve of so many lines."""
    return 0 if lines < FEWEST else max(2, lines // 40)


def line_interval(values: np.ndarray, counts: np.ndarray, success: bool) -> stats.Estimate:
    """The mean and 95% interval of consecutive lines: Wilson's over their episodes for success, else Student's over the
    lines. **Arguments:** `values` `[n]`; `counts` `[n]`, the episodes of each line."""
    if not success:
        return stats.mean_interval(values)
    n = int(counts.sum())
    return stats.wilson(min(float(np.nansum(values * counts)), n), n)


def line_intervals(values: np.ndarray, counts: np.ndarray, success: bool, half: int) -> list[stats.Estimate]:
    """`line_interval` of each line together with its neighbours up to `half` lines away. A line without neighbours has
    an interval only for success."""
    parts = [slice(max(0, i - half), i + half + 1) for i in range(len(values))]
    return [line_interval(values[part], counts[part], success) for part in parts]


def over_seeds(name: str, means: Sequence[ArrayLike]) -> list[stats.Estimate]:
    """The mean of a metric at each point, with Student's interval over seeds. **Arguments:** `means`, `[n]` of each
    seed."""
    columns = np.stack([np.asarray(x, float) for x in means], axis=1)
    return [stats.run_interval(name, column) for column in columns]


def floor(metric: str, values: np.ndarray) -> float:
    """The lower limit of a metric's intervals: 0 for losses and lengths if no value is negative, else none."""
    bounded = metric.endswith(("loss", "length")) and bool((values >= 0).all())
    return 0.0 if bounded else -np.inf


def draw_band(axis: Any, steps: np.ndarray, estimates: Sequence[stats.Estimate], color: str, **line: Any) -> None:
    """Draw means as a line over their intervals; `line`, options of the line."""
    mean, low, high = np.asarray([estimate[:3] for estimate in estimates], np.float64).T
    axis.plot(steps, mean, color=color, lw=1.8, **line)
    axis.fill_between(steps, low, high, color=color, alpha=0.2, lw=0)


def _column(lines: Sequence[Mapping[str, Any]], name: str, default: float = np.nan) -> np.ndarray:
    return np.array([line.get(name, default) for line in lines], float)


def _panel(axis: Any, name: str, train: list[dict], evals: list[dict]) -> None:
    points = [line for line in train if stats.is_number(line.get(name))]
    success = name == "success"
    if points:
        steps, values = np.array([line["steps"] for line in points]), _column(points, name)
        counted, half, bottom = success and sinks.COUNT in points[0], reach(len(points)), floor(name, values)

        def intervals(prefix: str) -> list[stats.Estimate]:
            counts = _column(points, prefix + sinks.COUNT, 1.0)
            return line_intervals(_column(points, prefix + name), counts, counted, half)

        caption = f"training, mean of {2 * half + 1} points" if half else "training"
        if seeds := [seed for seed, line in sinks.by_run(points[0]).items() if name in line]:
            estimates = over_seeds(name, [[point.mean for point in intervals(f"{seed}/")] for seed in seeds])
            caption += f", 95% interval over {len(seeds)} seeds"
        else:
            estimates = intervals("")
            caption += ", 95% interval" if half or counted else ""
        estimates = [estimate._replace(low=max(estimate.low, bottom)) for estimate in estimates]
        axis.plot(steps, values, ".", ms=3 if half else 7, color=TRAIN, alpha=0.5 if half else 1.0, mew=0)
        draw_band(axis, steps, estimates, TRAIN, label=caption)
    with_value = [line for line in evals if stats.is_number(line.get(name))]
    if with_value:
        steps = np.array([line["steps"] for line in with_value])
        values, low, high = (_column(with_value, column) for column in (name, f"{name}_low", f"{name}_high"))
        bars = np.nan_to_num([np.maximum(values - low, 0), np.maximum(high - values, 0)])
        axis.errorbar(steps, values, bars, fmt="o-", ms=4, lw=1.2, capsize=2.5, color=EVAL, label="evaluation")
    axis.set_ylabel(name.replace("_", " "), color=INK)
    if success:
        axis.set_ylim(-0.02, 1.02)
    axis.legend(frameon=False, fontsize=8.5, loc="best")


def learning_curve(
    folder: str | Path,
    names: Sequence[str] = ("success", "episode_return"),
    title: str = "",
    unit: str = "environment steps",
) -> Path | None:
    """Draw `learning_curve.png` from `metrics.jsonl`: metrics over the steps of a run, with 95% intervals.

    Training lines are averaged with their neighbours if there are at least `FEWEST`. Their interval is Student's over
    seeds if there are several, else Wilson's for success if episodes are counted, and Student's over lines otherwise;
    evaluations have theirs in `<name>_low` and `<name>_high`.

    **Arguments:** `folder`, the run's; `names`, the metrics to draw; those the run lacks are omitted, and if it lacks
    all, its losses are drawn; `title`, empty: the folder's name; `unit`, the unit of the run's steps.
    **Returns:** the figure's path, or None if there is nothing to draw.
    """
    folder = Path(folder)
    lines = [line for line in sinks.read(folder / "metrics.jsonl") if "steps" in line]
    train, evals = ([x for x in lines if x["kind"] == kind] for kind in ("train", "eval"))
    metric_names = {name for x in lines for name, value in x.items() if isinstance(value, float) and np.isfinite(value)}
    of_seeds = {f"{seed}/{name}" for x in lines for seed, line in sinks.by_run(x).items() for name in line}
    losses = sinks.sorted_names(name for name in metric_names - of_seeds if name.endswith("loss"))
    drawn = [name for name in names if name in metric_names] or losses[:3]
    if not drawn:
        return None
    from matplotlib.ticker import EngFormatter

    figure, axes = new_axes(5.2 * len(drawn), 3.6, len(drawn))
    for axis, name in zip(axes, drawn):
        _panel(axis, name, train, evals)
        axis.set_xlabel(unit, color=INK)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(title or folder.name, fontsize=11, color=INK)
    return save(figure, folder / "learning_curve.png")
