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
from llmrl_jax.run import curves, metrics as sinks
from llmrl_jax.run.curves import INK


METRICS = ("success", "episode_return", "reward")
"""The default metrics of a comparison: the first that all runs have."""

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
    """The metric to compare."""

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

    def curve(self, horizon: float = math.inf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, the metric, and the number of episodes it averages, per line up to `horizon` steps."""
        lines = [line for line in self.train if line["steps"] <= horizon]
        columns = ([line.get(name, 1.0) for line in lines] for name in ("steps", self.metric, sinks.COUNT))
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
            low, high = (last.get(f"{self.metric}_{end}", math.nan) for end in ("low", "high"))
            return stats.Estimate(last[self.metric], low, high, int(last.get(sinks.COUNT, 0)))
        _, values, count = self.curve()
        tenth = slice(-max(1, len(values) // 10), None)
        return curves.line_interval(values[tenth], count[tenth], self.metric == "success")


def _over_seeds(metric: str, values: Any) -> stats.Estimate:
    return stats.mean_rate(values) if metric == "success" else stats.mean_interval(values)


OWN = "<run>/"
"""Prefix of a path inside the run's own folder."""


def settings_of(config: Any, folder: Path) -> dict[str, Any]:
    """Every option that affects a run's results, by its dotted name; a path inside the run's own folder (such as a
    prior that it made) begins with `OWN`. `config` is a configuration, or the values of its file if its class is
    unknown; then the options that every run may change (such as `run.log_every`) are omitted."""

    def shortened(value: Any) -> Any:
        if isinstance(value, str) and f"/{folder.name}/" in f"/{value}":
            return OWN + f"/{value}".rpartition(f"/{folder.name}/")[2]
        return value

    settings = raw_settings(config) if isinstance(config, Mapping) else configs.identity(config)
    return {name: shortened(value) for name, value in settings.items()}


def raw_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a configuration file by their dotted names, without those of `run` except its seed."""
    settings: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            settings |= raw_settings(value, f"{place}.")
        elif place not in ("kind", "version", "preset") and (not place.startswith("run.") or place == SEED):
            settings[place] = value
    return settings


def read_run(folder: str | Path, config: Any, metric: str = "success") -> Run:
    """Read a run from its folder.

    **Arguments:** `folder`; `config`, the type of its `config.json`, or an argument of `settings_of`; `metric`.
    **Raises:** `FileNotFoundError` if there is no run, `ValueError` if no line of training has the metric.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    if isinstance(config, type):
        config = configs.load_config(config, folder / "config.json")
    lines = sinks.read(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    known = [line for line in lines if _has(line, metric)]
    train, evals = ([line for line in known if line["kind"] == kind] for kind in ("train", "eval"))
    for line in train:
        _check_line(line, metric, folder / "metrics.jsonl")
    if not train:
        what = ": it ended no episode in training" if sinks.is_of_episodes(metric) else ""
        raise ValueError(f"the run {folder} has no line of metrics with a {metric}{what}")
    return Run(folder, settings_of(config, folder), train, evals, metric)


SEEDS = "seeds"
"""The setting with the number of seeds that one program computed."""


def by_seed(run: Run) -> list[Run]:
    """The runs of each seed of a program with several seeds, as if they had been made alone; the run itself if it has
    one."""
    seeds, first = run.settings.get(SEEDS, 1), run.settings.get(SEED, 0)
    settings = {name: value for name, value in run.settings.items() if name != SEEDS}

    def line_of(line: dict[str, Any], i: int) -> dict[str, Any]:
        bounds = {f"{run.metric}_{end}" for end in ("low", "high")}  # which are over the seeds
        own = {name.removesuffix("_runs"): x[i] for name, x in line.items() if name.endswith("_runs")}
        return {name: x for name, x in line.items() if name not in bounds} | own | sinks.by_run(line).get(str(i), {})

    if seeds == 1:
        return [replace(run, settings=settings)]
    if not any(f"0/{run.metric}" in line for line in run.train):  # one seed by its number, or seeds of another kind
        return [run]
    return [
        replace(
            run,
            settings={**settings, SEED: first + i},
            train=[own for own in (line_of(line, i) for line in run.train) if _has(own, run.metric)],
            evals=[own for own in (line_of(line, i) for line in run.evals) if _has(own, run.metric)],
        )
        for i in range(seeds)
    ]


def _has(line: Mapping[str, Any], name: str) -> bool:
    value = line.get(name, math.nan)
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check_line(line: Mapping[str, Any], metric: str, path: Path) -> None:
    """Check what a comparison reads in a line of training. **Raises:** `ValueError`, naming it."""
    limits = {"steps": math.inf, "updates": math.inf, "seconds": math.inf}
    limits |= {sinks.COUNT: math.inf} if sinks.COUNT in line else {}
    limits |= {metric: 1.0} if metric == "success" else {}
    for name, high in limits.items():
        if not _has(line, name) or not 0 <= line[name] <= high:
            given = f"{name} is {line[name]!r}" if name in line else f"there is no {name}"
            needed = "a number from 0 to 1" if high == 1 else "a number, at least 0,"
            raise ValueError(f"{path}, the line of update {line.get('update')}: {given}; {needed} is needed")


def shared_metric(folders: Sequence[Path]) -> str:
    """The metric for a comparison: the first of `METRICS`, then of their losses, that the training of all runs reports.

    **Raises:** `ValueError` if there is none."""
    each = []
    for folder in folders:
        path = folder / "metrics.jsonl"
        lines = [line for line in sinks.read(path) if line["kind"] == "train"] if path.exists() else []
        each.append({name for line in lines for name in line if _has(line, name)})
    shared = set.intersection(*each)
    losses = sorted(name for name in shared if name.endswith("loss"))
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
        if not str(value).startswith(OWN):
            return value
        tail = f"/{run.name}/{str(value).removeprefix(OWN)}"
        return next((place for place in sorted(places) if f"/{place}".endswith(tail)), value)

    groups: dict[tuple[str, int], list[T]] = {}
    repetitions: dict[str, int] = {}
    for run in runs:
        decides = {name: shared(run, value) for name, value in run.settings.items() if name != SEED}
        same = json.dumps(decides, sort_keys=True)
        with_seed = json.dumps([same, run.settings.get(SEED)])
        repetition = repetitions[with_seed] = repetitions.get(with_seed, -1) + 1
        groups.setdefault((same, repetition), []).append(run)
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
    final: stats.Estimate
    steps_to_bar: tuple[float, ...]
    """The steps of each run that reached the bar."""
    efficiency: stats.Estimate
    steps_per_second: float

    def reached(self) -> str:
        """The mean of `steps_to_bar`, and how many runs it has if not all."""
        if not self.steps_to_bar:
            return "not reached"
        n, of = len(self.steps_to_bar), len(self.runs)
        return f"{np.mean(self.steps_to_bar):.0f}" + (f" ({n} of {of})" if n < of else "")


def horizon_of(groups: Sequence[Sequence[Run]]) -> int:
    """The steps that all runs have."""
    return min(run.steps for group in groups for run in group)


def lines(groups: Sequence[Sequence[Run]], bar: float | None = 0.8) -> list[Line]:
    """The numbers of each group. `bar`: None leaves `steps_to_bar` empty."""
    metric, horizon = groups[0][0].metric, horizon_of(groups)
    each = []
    for group in groups:
        finals = [run.final() for run in group]
        to_bar = [] if bar is None else [run.steps_to(bar) for run in group]
        each.append(
            Line(
                label=label(group),
                runs=tuple(run.folder for run in group),
                steps=min(run.steps for run in group),
                final=finals[0] if len(group) == 1 else _over_seeds(metric, [estimate.mean for estimate in finals]),
                steps_to_bar=tuple(steps for steps in to_bar if math.isfinite(steps)),
                efficiency=_over_seeds(metric, [run.efficiency(horizon) for run in group]),
                steps_per_second=float(np.mean([run.steps_per_second for run in group])),
            )
        )
    return each


def table(groups: Sequence[Sequence[Run]], bar: float | None = 0.8) -> str:
    """A table with one line per group (`lines`). `bar`: None omits its column."""
    to_bar = [] if bar is None else [f"steps to {bar:g}"]
    rows = [["run", "steps", f"final {groups[0][0].metric}", *to_bar, f"SE to {horizon_of(groups)}", "steps/s"]]
    for line in lines(groups, bar):
        reached = [] if bar is None else [line.reached()]
        own = [line.label, str(line.steps), str(line.final), *reached, str(line.efficiency)]
        rows.append([*own, f"{line.steps_per_second:.0f}"])
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
        means = [np.interp(steps, at, [estimate.mean for estimate in estimates]) for at, estimates in smooth]
        estimates = [_over_seeds(metric, column) for column in np.stack(means, axis=1)]
    least = min(curves.floor(metric, run.curve()[1]) for run in group)
    return steps, [estimate._replace(low=max(estimate.low, least)) for estimate in estimates]


def draw(groups: Sequence[Sequence[Run]], path: str | Path, labels: Sequence[str] = ()) -> Path:
    """Draw the metric over steps, a line for each group, with 95% bands.

    **Arguments:** `labels`, of the groups; empty: the names of their runs. **Returns:** the path of the figure."""
    from matplotlib.ticker import EngFormatter

    figure, axis = figures.new_axis(7.0, 4.2)
    means: list[float] = []
    for i, group in enumerate(groups):
        steps, estimates = _mean_curve(group)
        curves.draw_band(axis, steps, estimates, figures.color(i), label=labels[i] if labels else label(group))
        means += [estimate.mean for estimate in estimates]
    metric = groups[0][0].metric
    if metric == "success":
        axis.set_ylim(-0.02, 1.02)
    elif (height := max(means) - min(means)) > 0:  # wide bands, as those of two seeds, leave room for the curves
        bottom, top = axis.get_ylim()
        axis.set_ylim(max(bottom, min(means) - height), min(top, max(means) + height))
    axis.set_ylabel(f"{metric.replace('_', ' ')} in training", color=INK)
    axis.set_xlabel("steps", color=INK)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.legend(frameon=False, fontsize=8.5, loc="best")
    return figures.save(figure, path)


def side_by_side(runs: Sequence[Run], bar: float | None, out: str | Path, json: bool = False) -> str:
    """The table of runs, the settings that differ, and the path of their learning curves. Runs that differ only in
    their seed are one line. `json`: the same as JSON."""
    groups = by_settings([one for run in runs for one in by_seed(run)])
    if json:
        facts: dict[str, Any] = {"metric": groups[0][0].metric, "bar": bar, "efficiency_to": horizon_of(groups)}
        facts |= {"groups": lines(groups, bar), "differing_settings": differing(groups), "figure": draw(groups, out)}
        return json_text(facts)
    settings = differences(groups) or "The settings are the same."
    return f"{table(groups, bar)}\n\n{settings}\n\nIntervals are 95%. The curves are in {draw(groups, out)}"
