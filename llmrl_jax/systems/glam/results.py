"""Results of post-training tests: tables, bar charts, and the published form of a run's log."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import new_draft
from llmrl_jax.report import compare as runs_compared, figures
from llmrl_jax.run import metrics as sinks
from llmrl_jax.run.curves import INK


Z99 = 2.5758293035489004
"""The 99.5% quantile of the standard normal distribution, for 99% Wilson intervals."""

WAYS = ("sampled", "greedy")


@dataclass
class Tested:
    """A tested agent: a run, a model without RL training, or a baseline."""

    name: str
    kind: str
    """Its column in the paper's table, or a name of our own."""
    folder: Path
    """The folder of its results, under `test/`."""
    facts: dict[str, Any]
    """Values, besides the test, on which its results depend."""
    settings: dict[str, Any]
    """Settings of a run; agents with equal settings except for the seed share a bar."""
    env: str
    """The environment of tests that name none."""
    trained_on: str = ""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The entries of `tests.json`, by test."""


def estimate(group: Sequence[Tested], test: str, way: str, task: str = "") -> stats.Estimate | None:
    """The success rate of a group: a single agent's with its 99% Wilson interval; for several seeds the mean, with
    Student's 99% interval, clipped to [0, 1]. None without results.

    The published `test_results.py` takes the normal quantile, 2.58, also for two seeds, for which Student's is 63.7."""
    prefix = f"{task}/" if task else ""
    records = [agent.records[test][way] for agent in group if way in agent.records[test]]
    records = [values for values in records if f"{prefix}success" in values]
    if not records:
        return None
    # nan, for a task that never occurred, is a string
    rates = [float(values[f"{prefix}success"]) for values in records]
    if len(records) > 1:
        return stats.mean_rate(rates, 0.99)
    low, high, n = (records[0][f"{prefix}{part}"] for part in ("success_low", "success_high", "episodes"))
    return stats.Estimate(rates[0], low, high, int(n))


def _said(interval: stats.Estimate | None) -> str:
    return "-" if interval is None or math.isnan(interval.mean) else str(interval)


def tests_table(group: Sequence[Tested]) -> str:
    """Success of a group in every test, compared with the paper; then by task; then the reasons for skipped tests."""
    first = group[0]
    rows = [["success, 99% intervals", *WAYS, f"paper ({first.kind})"]]
    notes, tasks = [], []
    for name, record in first.records.items():
        if "skipped" in record:
            notes.append(f"{name} was not played: {record['skipped']}")
            rows.append([name, *("not played" for _ in WAYS), "-"])
            continue
        paper = record["paper"].get(first.kind)
        cells = (_said(estimate(group, name, way)) for way in WAYS)
        rows.append([name, *cells, "-" if paper is None else f"{paper:.2f}"])
        tasks += [task for task in record["tasks"] if len(record["tasks"]) > 1 and task not in tasks]
    lines = [figures.text_table(rows)]
    if tasks:
        played = [name for name, record in first.records.items() if len(record.get("tasks", ())) > 1]
        by_task = ([name, *(_said(estimate(group, name, "sampled", task)) for task in tasks)] for name in played)
        lines += ["", figures.text_table([["sampled, by task", *tasks], *by_task])]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def draw_tests(groups: Sequence[Sequence[Tested]], path: str | Path, labels: Sequence[str] = ()) -> Path:
    """Draw the success of sampled actions in every test, one bar per group with its 99% interval; black lines mark the
    paper's values.

    **Arguments:** `labels`, of the groups; empty: their names. **Returns:** the path of the figure."""
    names = list(groups[0][0].records)
    figure, axis = figures.new_axis(max(6.0, 0.5 * len(names) * (1 + len(groups) / 2)), 4.6)
    width = 0.8 / len(groups)
    marks: list[tuple[float, float]] = []
    for i, group in enumerate(groups):
        places = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
        estimates = [estimate(group, name, "sampled") for name in names]
        there = [(x, e) for x, e in zip(places, estimates, strict=True) if e is not None]
        means = np.array([e.mean for _, e in there])
        bars = [means - [e.low for _, e in there], [e.high for _, e in there] - means]
        label = labels[i] if labels else runs_compared.label(group)
        axis.bar([x for x, _ in there], means, width * 0.92, color=figures.color(i), label=label)
        axis.errorbar([x for x, _ in there], means, bars, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
        heights = [(x, group[0].records[n].get("paper", {}).get(group[0].kind)) for x, n in zip(places, names)]
        marks += [(x, height) for x, height in heights if height is not None]
    if marks:
        ends = ([x + side * width / 2 for x, _ in marks] for side in (-1, 1))
        axis.hlines([height for _, height in marks], *ends, "k", label="the same agent in the paper")
    axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
    axis.set_ylim(0, 1.02)
    axis.margins(x=0.01)
    axis.set_ylabel("success", color=INK)
    figure.legend(frameon=False, fontsize=8.5, loc="outside upper center", ncols=len(groups) + 1)
    return figures.save(figure, path)


LOG_COLUMNS = (
    *("update", "episodes", "frames", "FPS", "duration"),
    *(f"return_{of}" for of in ("mean", "std", "min", "max")),
    "success_rate",
    *(f"reshaped_return_{of}" for of in ("mean", "std", "min", "max")),
    *(f"reshaped_return_bonus_{of}" for of in ("mean", "std", "min", "max")),
    *(f"num_frames_{of}" for of in ("mean", "std", "min", "max")),
    *("entropy", "policy_loss", "value_loss", "loss", "grad_norm"),
)
"""The header of the published `log.csv` (glam reference, section 1.3)."""


def write_log(folder: str | Path, reward_scale: float) -> Path:
    """Write `log.csv` in the published columns, from the training lines of a run's `metrics.jsonl`.

    Episodes and frames are cumulative; the duration is in seconds of training. Values that a run does not record stay
    empty: deviations, minima and maxima; means if no episode ended. There is no bonus: 0.

    **Arguments:** `folder`, the run's; `reward_scale`, ratio of the learner's reward to the environment's.
    **Returns:** the file. **Raises:** `FileNotFoundError` if the run has no metrics; `ValueError` if they have no line
    of training.
    """
    source, path = Path(folder) / "metrics.jsonl", Path(folder) / "log.csv"
    if not source.exists():
        raise FileNotFoundError(f"there are no metrics in {folder}: it has no metrics.jsonl")
    own = ("steps", "seconds", "steps_per_second")
    lines = [line for line in sinks.read(source, needs=own) if line["kind"] == "train"]
    if not lines:
        raise ValueError(f"{source} has no line of training yet, so there is nothing to export")
    episodes = 0
    with new_draft(path) as draft, draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS, restval="")
        writer.writeheader()
        for line in lines:
            known = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            episodes += int(np.nan_to_num(known.get(sinks.COUNT, 0)))
            row = {
                "update": line["update"],
                "episodes": episodes,
                "frames": line["steps"],
                "FPS": line["steps_per_second"],
                "duration": line["seconds"],
                "return_mean": known.get("episode_return", math.nan),
                "success_rate": known.get("success", math.nan),
                "reshaped_return_mean": known.get("episode_return", math.nan) * reward_scale,
                "num_frames_mean": known.get("episode_length", math.nan),
                **{name: 0.0 for name in LOG_COLUMNS if name.startswith("reshaped_return_bonus_")},
                **{name: known.get(name, math.nan) for name in LOG_COLUMNS[-5:]},
            }
            writer.writerow({name: "" if math.isnan(value) else value for name, value in row.items()})
    return path
