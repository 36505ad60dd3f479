"""Comparison of runs: final metric, steps to a bar, sample efficiency, speed, and the settings that differ."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.files import json_text
from llmrl_jax.report import figures
from llmrl_jax.report.runs import METRICS, flat
from llmrl_jax.run import curves, metrics as sinks
from llmrl_jax.run.curves import INK


SEED = "run.seed"
"""The setting that may differ between the runs of one line."""

WINDOW = 10
"""Lines over which the metric is averaged before it is compared with the bar, as in published plots."""


@dataclass(frozen=True)
class Run:
    """The settings and metrics of a run, from its folder."""

    folder: Path
    settings: dict[str, Any]
    """Every option that affects its results, by its dotted name."""
    train: list[dict[str, Any]]
    """The lines of `metrics.jsonl` that have the metric; for a metric of episodes, those with an ended episode."""
    evals: list[dict[str, Any]]
    metric: str = "success"
    """The metric to compare; empty: the lines are those of all metrics."""

    def select(self, metric: str) -> Run:
        """The run with the lines of a metric only. **Raises:** `ValueError` for a damaged line of training."""
        both = (self.train, self.evals)
        train, evals = ([line for line in lines if stats.is_number(line.get(metric))] for lines in both)
        for line in train:
            _check_line(line, metric, self.folder / "metrics.jsonl")
        return replace(self, train=train, evals=evals, metric=metric)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def steps(self) -> int:
        return int(self.train[-1]["steps"])

    @property
    def steps_per_second(self) -> float:
        """Over the whole run, without compilation; nan if it took no time."""
        seconds = self.train[-1]["seconds"]
        return self.steps / seconds if seconds else math.nan

    def curve(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, the metric, and the number of episodes it averages, per line; 1 for a metric of updates."""
        of_task = f"{sinks.COUNT}/{self.metric.partition('/')[2]}"
        episodes = of_task if any(of_task in line for line in self.train) else sinks.COUNT
        names = ("steps", self.metric, episodes if sinks.is_of_episodes(self.metric) else "")
        columns = ([line.get(name, 1.0) for line in self.train] for name in names)
        steps, success, count = (np.asarray(column, np.float64) for column in columns)
        return steps, success, count

    def efficiency(self, horizon: float = math.inf) -> float:
        """The mean of the metric over the steps of training (SE in papers), without lines in which no episode ended."""
        lines = [line for line in self.train if line["steps"] <= horizon]
        weights = [line["updates"] for line in lines]
        return float(np.average([line[self.metric] for line in lines], weights=weights)) if sum(weights) else math.nan

    def steps_to(self, bar: float) -> float:
        """The first step at which the mean of the last `WINDOW` lines is at least `bar`; nan if it never is."""
        steps, success, count = self.curve()
        for end in range(WINDOW, len(steps) + 1):
            last = slice(end - WINDOW, end)
            if count[last].sum() and np.average(success[last], weights=count[last]) >= bar:
                return float(steps[end - 1])
        return math.nan

    def final(self) -> stats.Estimate:
        """The metric of an evaluation in the last tenth of the run, with its interval if it has one (else nan);
        without an evaluation, that of the training lines in the last tenth."""
        if self.evals and self.evals[-1]["update"] >= 0.9 * self.train[-1]["update"]:
            last = self.evals[-1]
            return stats.estimate_of(last, self.metric, int(last.get(sinks.COUNT, 0)))
        _, values, count = self.curve()
        tenth = slice(-max(1, len(values) // 10), None)
        return curves.line_interval(values[tenth], count[tenth], self.metric == "success")


OF_A_RUN = "<run>/"
"""Prefix of a path inside the run's own folder."""


def settings_of(config: Any, folder: Path) -> dict[str, Any]:
    """Every option that affects a run's results, by its dotted name; a path inside the run's own folder (such as a
    prior that it made) begins with `OF_A_RUN`. `config` is a configuration, or the values of its file if its class is
    unknown; then the options that every run may change (such as `run.log_every`) are omitted."""

    def shortened(value: Any) -> Any:
        if isinstance(value, str) and f"/{folder.name}/" in f"/{value}":
            return OF_A_RUN + f"/{value}".rpartition(f"/{folder.name}/")[2]
        return value

    if isinstance(config, Mapping):
        settings = {name: value for name, value in flat(config).items() if name == SEED or not _is_of_run(name)}
    else:
        settings = configs.identity(config)
    return {name: shortened(value) for name, value in settings.items()}


def _is_of_run(name: str) -> bool:
    """Return whether an option is one of the run, not of what it computes."""
    return name in ("kind", "version", "preset") or name.startswith("run.")


def read_run(folder: str | Path, config: Any, metric: str = "success") -> Run:
    """Read a run from its folder.

    **Arguments:** `folder`; `config`, the type of its `config.json`, or an argument of `settings_of`; `metric`.
    **Raises:** `FileNotFoundError` if there is no run, `ValueError` if no line of training has the metric.
    """
    run = read_all(folder, config).select(metric)
    if not run.train:
        reason = ": it ended no episode in training" if sinks.is_of_episodes(metric) else ""
        reason = ": only its evaluations have it, and runs are compared by lines of training" if run.evals else reason
        raise ValueError(f"the run {run.folder} has no line of training with {metric}{reason}")
    return run


def read_all(folder: str | Path, config: Any) -> Run:
    """Read a run with all lines of its metrics, possibly none; `Run.select` chooses the metric.

    **Arguments, Raises:** as `read_run`, for a folder without a run."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    if isinstance(config, type):
        config = configs.load_config(config, folder / "config.json")
    lines = sinks.read(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    train, evals = ([line for line in lines if line["kind"] == kind] for kind in ("train", "eval"))
    return Run(folder, settings_of(config, folder), train, evals, metric="")


SEEDS = "seeds"
"""The setting with the number of seeds that one program computed."""


def by_seed(run: Run) -> list[Run]:
    """The runs of each seed of a program with several seeds, as if they had been made alone; the run itself if it has
    one."""
    seeds, first = run.settings.get(SEEDS, 1), run.settings.get(SEED, 0)
    settings = {name: value for name, value in run.settings.items() if name != SEEDS}

    def line_of(line: dict[str, Any], i: int) -> dict[str, Any]:
        results = {name.removesuffix("_runs"): x[i] for name, x in line.items() if name.endswith("_runs")}
        results |= sinks.by_run(line).get(str(i), {})
        bounds = {stats.bound_name(name, end, line) for name in results for end in ("low", "high")}  # over the seeds
        return {name: x for name, x in line.items() if name not in bounds} | results

    def lines_of(lines: list[dict[str, Any]], i: int) -> list[dict[str, Any]]:
        of_run = [line_of(line, i) for line in lines]
        return [line for line in of_run if stats.is_number(line.get(run.metric))] if run.metric else of_run

    if seeds == 1:
        return [replace(run, settings=settings)]
    if not any(f"0/{run.metric}" in line if run.metric else sinks.by_run(line) for line in run.train):
        return [run]  # one seed by its number, or seeds of another kind
    return [
        replace(run, settings={**settings, SEED: first + i}, train=lines_of(run.train, i), evals=lines_of(run.evals, i))
        for i in range(seeds)
    ]


def _check_line(line: Mapping[str, Any], metric: str, path: Path) -> None:
    """Check what a comparison reads in a line of training. **Raises:** `ValueError`, naming it."""
    limits = {"steps": math.inf, "updates": math.inf, "seconds": math.inf}
    limits |= {sinks.COUNT: math.inf} if sinks.COUNT in line else {}
    limits |= {metric: 1.0} if metric == "success" else {}
    for name, high in limits.items():
        if not stats.is_number(line.get(name)) or not 0 <= line[name] <= high:
            actual = f"{name} is {line[name]!r}" if name in line else f"there is no {name}"
            needed = "a number from 0 to 1" if high == 1 else "a number, at least 0,"
            raise ValueError(f"{path}, the line of update {line.get('update')}: {actual}; {needed} is needed")


def shared_metric(folders: Sequence[Path]) -> str:
    """The metric for a comparison: the first of `METRICS`, then of their losses, that the training of all runs reports.

    **Raises:** `ValueError` if there is none."""
    metrics = []
    for folder in folders:
        path = folder / "metrics.jsonl"
        lines = [line for line in sinks.read(path) if line["kind"] == "train"] if path.exists() else []
        metrics.append({name for line in lines for name, value in line.items() if stats.is_number(value)})
    shared = set.intersection(*metrics)
    losses = sinks.sorted_names(name for name in shared if name.endswith("loss"))
    candidates = [name for name in (*METRICS, *losses) if name in shared]
    if not candidates:
        raise ValueError("the runs share no metric to compare them by: name one that all of them have with --metric")
    return candidates[0]


class Named(Protocol):
    """An object with a name and settings."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Named)


def by_settings(runs: Sequence[T]) -> list[list[T]]:
    """The runs in groups that differ only in their seed, in the order of their first runs. No two runs of a group have
    the same seed: a repetition is no further sample.

    A run that started from a file of another of these runs (`runs/FIRST/prior`) is in the group of that run."""
    places = {str(value) for run in runs for value in run.settings.values() if "/" in str(value)}

    def shared(run: T, value: Any) -> Any:
        if not str(value).startswith(OF_A_RUN):
            return value
        tail = f"/{run.name}/{str(value).removeprefix(OF_A_RUN)}"
        return next((location for location in sorted(places) if f"/{location}".endswith(tail)), value)

    groups: dict[tuple[str, int], list[T]] = {}
    repetitions: dict[str, int] = {}
    for run in runs:
        decides = {name: shared(run, value) for name, value in run.settings.items() if name != SEED}
        decisive = json.dumps(decides, sort_keys=True)
        with_seed = json.dumps([decisive, run.settings.get(SEED)])
        repetition = repetitions[with_seed] = repetitions.get(with_seed, -1) + 1
        groups.setdefault((decisive, repetition), []).append(run)
    return list(groups.values())


def label(group: Sequence[Named]) -> str:
    """The name of a group: its run's name, or that of the first of several and their number."""
    name = group[0].name
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more seed{'s' if len(group) > 2 else ''}"


@dataclass(frozen=True)
class Line:
    """The numbers of a group: the metric of a single run with its own interval, that of several with the interval over
    seeds; sample efficiency up to the steps that all compared runs have."""

    label: str
    runs: tuple[Path, ...]
    """Their folders."""
    steps: int
    """Of the shortest run."""
    most_steps: int
    """Of the longest run: each counts at its own end in `final`."""
    final: stats.Estimate
    steps_to_bar: tuple[float, ...]
    """The steps of each run that reached the bar."""
    efficiency: stats.Estimate
    steps_per_second: float

    def reached(self) -> str:
        """The mean of `steps_to_bar`, and how many runs it has if not all."""
        if not self.steps_to_bar:
            return "not reached"
        n, total = len(self.steps_to_bar), len(self.runs)
        return f"{np.mean(self.steps_to_bar):.0f}" + (f" ({n} of {total})" if n < total else "")


def horizon_of(groups: Sequence[Sequence[Run]]) -> int:
    """The steps that all runs have."""
    return min(run.steps for group in groups for run in group)


def lines(groups: Sequence[Sequence[Run]], bar: float | None = 0.8) -> list[Line]:
    """The numbers of each group. `bar`: None leaves `steps_to_bar` empty."""
    metric, horizon = groups[0][0].metric, horizon_of(groups)
    results = []
    for group in groups:
        finals = [run.final() for run in group]
        final = finals[0] if len(finals) == 1 else stats.run_interval(metric, [estimate.mean for estimate in finals])
        to_bar = [] if bar is None else [run.steps_to(bar) for run in group]
        results.append(
            Line(
                label=label(group),
                runs=tuple(run.folder for run in group),
                steps=min(run.steps for run in group),
                most_steps=max(run.steps for run in group),
                final=final,
                steps_to_bar=tuple(steps for steps in to_bar if math.isfinite(steps)),
                efficiency=stats.run_interval(metric, [run.efficiency(horizon) for run in group]),
                steps_per_second=float(np.mean([run.steps_per_second for run in group])),
            )
        )
    return results


def table(groups: Sequence[Sequence[Run]], bar: float | None = 0.8) -> str:
    """A table with one line per group (`lines`). `bar`: None omits its column."""
    to_bar = [] if bar is None else [f"steps to {bar:g}"]
    rows = [["run", "steps", f"final {groups[0][0].metric}", *to_bar, f"SE to {horizon_of(groups)}", "steps/s"]]
    for line in lines(groups, bar):
        reached = [] if bar is None else [line.reached()]
        steps = " to ".join(str(n) for n in dict.fromkeys((line.steps, line.most_steps)))
        cells = [line.label, steps, str(line.final), *reached, str(line.efficiency)]
        rows.append([*cells, f"{line.steps_per_second:.0f}"])
    return figures.text_table(rows)


def differing(groups: Sequence[Sequence[Run]]) -> dict[str, list[str]]:
    """The settings that differ between groups: the value of each group, as JSON; "absent" if it has none."""
    absent = object()
    settings = {}
    for name in sorted({name for group in groups for name in group[0].settings} - {SEED}):
        values = [group[0].settings.get(name, absent) for group in groups]
        cells = ["absent" if value is absent else json.dumps(value) for value in values]
        if len(set(cells)) > 1:
            settings[name] = cells
    return settings


def differences(groups: Sequence[Sequence[Run]]) -> str:
    """`differing`, one setting per line; empty if there are none."""
    rows = [[name, *cells] for name, cells in differing(groups).items()]
    return figures.text_table([["setting", *map(label, groups)], *rows]) if rows else ""


def _mean_curve(group: Sequence[Run]) -> tuple[np.ndarray, list[stats.Estimate]]:
    """Steps, and the mean and 95% interval of the smoothed metric: over seeds, or for one run over its lines."""
    metric, smooth = group[0].metric, []
    for run in group:
        steps, values, count = run.curve()
        smooth.append((steps, curves.line_intervals(values, count, metric == "success", curves.reach(len(steps)))))
    if len(group) == 1:
        steps, estimates = smooth[0]
    else:
        last = min(steps[-1] for steps, _ in smooth)
        steps = np.unique(np.concatenate([steps[steps <= last] for steps, _ in smooth]))
        means = [np.interp(steps, xs, [estimate.mean for estimate in estimates]) for xs, estimates in smooth]
        estimates = curves.over_seeds(metric, means)
    bottom = min(curves.floor(metric, run.curve()[1]) for run in group)
    return steps, [estimate._replace(low=max(estimate.low, bottom)) for estimate in estimates]


MOST_POINTS = 1000
"""Points of a curve that are drawn: more are closer together than the pixels of a figure."""


def plot(axis: Any, groups: Sequence[Sequence[Run]], colors: Sequence[str], labels: Sequence[str]) -> None:
    """Draw the metric over steps, a line for each group, with 95% bands. **Arguments:** `axis`, of matplotlib; `colors`
    and `labels`, of the groups."""
    from matplotlib.ticker import EngFormatter

    means: list[float] = []
    for group, color, text in zip(groups, colors, labels, strict=True):
        steps, estimates = _mean_curve(group)
        points = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).astype(int))
        curves.draw_band(axis, steps[points], [estimates[i] for i in points], color, label=text)
        means += [estimate.mean for estimate in estimates]
    if groups[0][0].metric == "success":
        axis.set_ylim(-0.02, 1.02)
    elif (height := max(means) - min(means)) > 0:  # wide bands, as those of two seeds, leave room for the curves
        bottom, top = axis.get_ylim()
        axis.set_ylim(max(bottom, min(means) - height), min(top, max(means) + height))
    axis.set_xlabel("steps", color=INK)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw(groups: Sequence[Sequence[Run]], path: str | Path, labels: Sequence[str] = ()) -> Path:
    """Draw `plot` as a figure with a legend.

    **Arguments:** `labels`, of the groups; empty: the names of their runs. **Returns:** the path of the figure."""
    figure, axis = figures.new_axis(7.0, 4.2)
    plot(axis, groups, [figures.color(i) for i in range(len(groups))], labels or [label(group) for group in groups])
    axis.set_ylabel(f"{groups[0][0].metric.replace('_', ' ')} in training", color=INK, parse_math=False)
    for text in axis.legend(frameon=False, fontsize=8.5, loc="best").get_texts():
        text.set_parse_math(False)  # a dollar sign in the name of a run is one
    return figures.save(figure, path)


def side_by_side(runs: Sequence[Run], bar: float | None, out: str | Path, json: bool = False) -> str:
    """The table of runs, the settings that differ, and the path of their learning curves. Runs that differ only in
    their seed are one line. `json`: the same as JSON."""
    groups = by_settings([single for run in runs for single in by_seed(run)])
    if json:
        facts: dict[str, Any] = {"metric": groups[0][0].metric, "bar": bar, "efficiency_to": horizon_of(groups)}
        facts |= {"groups": lines(groups, bar), "differing_settings": differing(groups), "figure": draw(groups, out)}
        return json_text(facts)
    settings = differences(groups) or "The settings are the same."
    return f"{table(groups, bar)}\n\n{settings}\n\nIntervals are 95%. The curves are in {draw(groups, out)}"
