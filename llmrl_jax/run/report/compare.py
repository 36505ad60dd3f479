"""Runs side by side: success at the end, steps to a bar, sample efficiency, speed, and the settings that differ."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from llmrl_jax.core import config as configs
from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.report import figures, statistics as stats
from llmrl_jax.run.report.curves import INK


SEED = "run.seed"
"""The setting in which the runs of one line may differ."""

WINDOW = 10
"""Lines of metrics over which success is averaged before it is compared with the bar, as GLAM's own plots do."""


@dataclass(frozen=True)
class Run:
    """What a run's folder says of it."""

    folder: Path
    settings: dict[str, Any]
    """Every option that decides its results, by its dotted name."""
    train: list[dict[str, Any]]
    """The lines of `metrics.jsonl` in which episodes ended, with their `success`."""
    evals: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def steps(self) -> int:
        return int(self.train[-1]["steps"])

    @property
    def steps_per_second(self) -> float:
        """Over the whole run, compilation left out."""
        return self.steps / self.train[-1]["seconds"]

    def curve(self, horizon: float = math.inf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, success, and the episodes that it is the mean of, line by line up to `horizon` steps."""
        lines = [line for line in self.train if line["steps"] <= horizon]
        columns = ([line.get(name, 1.0) for line in lines] for name in ("steps", "success", sinks.COUNT))
        steps, success, count = (np.asarray(column, np.float64) for column in columns)
        return steps, success, count

    def efficiency(self, horizon: float = math.inf) -> float:
        """Mean success over the steps of training (SE in the paper), lines without an ended episode left out."""
        lines = [line for line in self.train if line["steps"] <= horizon]
        weights = [line["updates"] for line in lines]
        return float(np.average([line["success"] for line in lines], weights=weights)) if lines else math.nan

    def steps_to(self, bar: float) -> float:
        """The first step at which the success of the last `WINDOW` lines is at least `bar`; nan where it never is."""
        steps, success, count = self.curve()
        for end in range(WINDOW, len(steps) + 1):
            last = slice(end - WINDOW, end)
            if np.average(success[last], weights=count[last]) >= bar:
                return float(steps[end - 1])
        return math.nan

    def final(self) -> stats.Estimate:
        """Success in an evaluation in the last tenth of the run; without one, over that tenth of training's lines."""
        if self.evals and self.evals[-1]["update"] >= 0.9 * self.train[-1]["update"]:
            last = self.evals[-1]
            low, high = (last.get(f"success_{end}", last["success"]) for end in ("low", "high"))
            return stats.Estimate(last["success"], low, high, int(last.get(sinks.COUNT, 0)))
        _, success, count = self.curve()
        tenth = slice(-max(1, len(success) // 10), None)
        n = int(count[tenth].sum())
        return stats.wilson(min(float((success[tenth] * count[tenth]).sum()), n), n)


OWN = "<run>/"
"""What a place inside a run's own folder begins with."""


def settings_of(config: Any, folder: Path) -> dict[str, Any]:
    """Every option that decides a run's results, by its dotted name; a place inside the run's own folder (a prior that
    it made for itself) is told from there."""

    def told(value: Any) -> Any:
        if isinstance(value, str) and f"/{folder.name}/" in f"/{value}":
            return OWN + f"/{value}".rpartition(f"/{folder.name}/")[2]
        return value

    return {name: told(value) for name, value in configs.identity(config).items()}


def read_run(folder: str | Path, config: Any) -> Run:
    """Read what a run left.

    **Arguments:** `folder`; `config`, the type of its `config.json`.
    **Raises:** `FileNotFoundError` where there is no run, `ValueError` where no episode of it has a success.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    settings = settings_of(configs.load_config(config, folder / "config.json"), folder)
    lines = sinks.read(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    known = [line for line in lines if math.isfinite(line.get("success", math.nan))]
    train, evals = ([line for line in known if line["kind"] == kind] for kind in ("train", "eval"))
    if not train:
        raise ValueError(f"the run {folder} has no line of metrics with a success: it ended no episode in training")
    return Run(folder, settings, train, evals)


class Told(Protocol):
    """Anything that has a name and settings."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Told)


def by_settings(runs: Sequence[T]) -> list[list[T]]:
    """The runs in groups that differ in their seed alone, each where its first run stands.

    Where a run began with what another run among them had made (`runs/FIRST/prior`), it stands with the one that made
    it."""
    places = {str(value) for run in runs for value in run.settings.values() if "/" in str(value)}

    def told(run: T, value: Any) -> Any:
        if not str(value).startswith(OWN):
            return value
        tail = f"/{run.name}/{str(value).removeprefix(OWN)}"
        return next((place for place in sorted(places) if f"/{place}".endswith(tail)), value)

    groups: dict[str, list[T]] = {}
    for run in runs:
        decides = {name: told(run, value) for name, value in run.settings.items() if name != SEED}
        groups.setdefault(json.dumps(decides, sort_keys=True), []).append(run)
    return list(groups.values())


def label(group: Sequence[Told]) -> str:
    """What a group is called: its run's name, or that of the first of several and their number."""
    name = group[0].name
    return name if len(group) == 1 else f"{name} and {len(group) - 1} more seed{'s' if len(group) > 2 else ''}"


def _over(group: Sequence[Run], each: Sequence[float]) -> str:
    found = stats.mean_rate(each)
    return str(found) if len(group) > 1 else f"{found.mean:.3f}"


def _steps_to(group: Sequence[Run], bar: float) -> str:
    reached = [steps for run in group if math.isfinite(steps := run.steps_to(bar))]
    if not reached:
        return "not reached"
    few = f" ({len(reached)} of {len(group)})" if len(reached) < len(group) else ""
    return f"{np.mean(reached):.0f}{few}"


def table(groups: Sequence[Sequence[Run]], bar: float = 0.8) -> str:
    """One line for each group: a single run's success with its own interval, that of several with the interval over
    seeds; sample efficiency up to the steps that all runs have."""
    horizon = min(run.steps for group in groups for run in group)
    rows = [["run", "steps", "final success", f"steps to {bar:g}", f"SE to {horizon}", "steps/s"]]
    for group in groups:
        finals = [run.final() for run in group]
        final = str(finals[0]) if len(group) == 1 else str(stats.mean_rate([found.mean for found in finals]))
        rows.append(
            [
                label(group),
                str(min(run.steps for run in group)),
                final,
                _steps_to(group, bar),
                _over(group, [run.efficiency(horizon) for run in group]),
                f"{np.mean([run.steps_per_second for run in group]):.0f}",
            ]
        )
    return figures.text_table(rows)


def differences(groups: Sequence[Sequence[Run]]) -> str:
    """The settings that are not the same in all groups, one to a line; empty where there are none."""
    absent = object()
    names = sorted({name for group in groups for name in group[0].settings} - {SEED})
    rows = [["setting", *map(label, groups)]]
    for name in names:
        values = [group[0].settings.get(name, absent) for group in groups]
        told = ["absent" if value is absent else json.dumps(value) for value in values]
        if len(set(told)) > 1:
            rows.append([name, *told])
    return figures.text_table(rows) if len(rows) > 1 else ""


def _mean_curve(group: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, and the mean and 95% interval of the smoothed success there: over seeds, for one run over episodes."""
    smooth = []
    for run in group:
        steps, success, count = run.curve()
        half = max(1, len(steps) // 40)
        sums = [
            (float((success[part] * count[part]).sum()), int(count[part].sum()))
            for part in (slice(max(0, i - half), i + half + 1) for i in range(len(steps)))
        ]
        smooth.append((steps, [stats.wilson(min(won, n), n) for won, n in sums]))
    if len(group) == 1:
        steps, found = smooth[0]
    else:
        last = min(steps[-1] for steps, _ in smooth)
        steps = np.unique(np.concatenate([steps[steps <= last] for steps, _ in smooth]))
        means = [np.interp(steps, at, [estimate.mean for estimate in found]) for at, found in smooth]
        found = [stats.mean_rate(column) for column in np.stack(means, axis=1)]
    mean, low, high = (np.array([getattr(estimate, part) for estimate in found]) for part in ("mean", "low", "high"))
    return steps, mean, low, high


def draw(groups: Sequence[Sequence[Run]], path: str | Path) -> Path:
    """Draw success over environment steps, a line for each group, with 95% bands. **Returns:** the picture."""
    from matplotlib.ticker import EngFormatter

    figure, axis = figures.new_axis(7.0, 4.2)
    for i, group in enumerate(groups):
        steps, mean, low, high = _mean_curve(group)
        axis.plot(steps, mean, color=figures.color(i), lw=1.8, label=label(group))
        axis.fill_between(steps, low, high, color=figures.color(i), alpha=0.2, lw=0)
    axis.set_ylim(-0.02, 1.02)
    axis.set_ylabel("success in training", color=INK)
    axis.set_xlabel("environment steps", color=INK)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.legend(frameon=False, fontsize=8.5, loc="best")
    return figures.save(figure, path)
