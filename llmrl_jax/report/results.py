"""The numbers that runs ended with, from `eval-UPDATE.json` and `summary.json`, alone and over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.core.statistics import Estimate, bound_name, is_bound, is_number, run_interval
from llmrl_jax.report.runs import read_summary
from llmrl_jax.run.folder import evaluations


@dataclass(frozen=True)
class Result:
    """A number among the results of a run."""

    values: tuple[float, ...]
    """One value per seed of the run, or one that is not of a seed, such as that of random actions."""
    low: float = math.nan
    """The interval that the run states for it, over its episodes; nan: none. For several seeds it is not used."""
    high: float = math.nan


@dataclass(frozen=True)
class Evaluation:
    """The newest evaluation of a run on held-out episodes."""

    path: Path
    update: int
    """The update of its checkpoint."""
    facts: Mapping[str, Any]
    """The environment, the seed of the episodes and their number, as far as the file has them."""
    results: Mapping[str, Result]


FACTS = ("update", "seed", "episodes")
"""Numbers in the file of an evaluation that say how it was made."""
CONDITIONS = ("versions", "machine")
"""Parts of a summary that are no results."""
AGENT = "agent"
"""The part of an evaluation with the agent's own results, which need no prefix."""


def read_evaluation(folder: Path) -> Evaluation | None:
    """The newest evaluation of a run, by the update of its checkpoint; None if it has none that can be read."""
    for update, path in sorted(evaluations(folder).items(), reverse=True):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            facts = {name: x for name, x in values.items() if name in FACTS or isinstance(x, str)}
            numbers_only = {name: x for name, x in values.items() if name not in FACTS}
            agent = numbers_only.pop(AGENT, {})
            results = read_results({**agent, **numbers_only} if isinstance(agent, dict) else numbers_only)
            return Evaluation(path, update, facts, results)
    return None


def read_results(values: Mapping[str, Any]) -> dict[str, Result]:
    """The numbers among results as a file has them; those of parts by their dotted path with slashes, `random/success`.

    `NAME_runs` are the values of `NAME` of each seed. A list of objects with a `seed`, as of several searches,
    gives `TASK/NAME` with their values."""
    return dict(_results(values, ""))


def results_of(folder: Path) -> dict[str, Result]:
    """The results of a run: those of its newest evaluation, then those of its summary that the evaluation lacks."""
    evaluation = read_evaluation(folder)
    evaluated = dict(evaluation.results) if evaluation else {}
    return evaluated | summary_of(folder, evaluated)


def summary_of(folder: Path, evaluated: Container[str] = ()) -> dict[str, Result]:
    """The numbers of a run's summary that are not among the results of its evaluation; empty if it has none."""
    numbers = read_results({name: value for name, value in read_summary(folder).items() if name not in CONDITIONS})
    return {name: result for name, result in numbers.items() if name not in evaluated}


def over_seeds(runs: Sequence[Mapping[str, Result]]) -> dict[str, Estimate]:
    """The results of runs that differ in their seed: means over all seeds, with Student's intervals over them. A result
    of a single seed has the interval that its run states for it.

    **Returns:** name -> estimate, whose `n` is the number of seeds; names in the order of the runs."""
    estimates = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        results = [run[name] for run in runs if name in run]
        values = [value for result in results for value in result.values]
        if len(values) == 1:
            estimates[name] = Estimate(values[0], results[0].low, results[0].high, 1)
        else:
            estimates[name] = run_interval(name, values)._replace(n=len(values))
    return estimates


MAIN = ("success", "episode_return", "reward", "final", "loss")
"""The last parts of names of main results, the most telling first."""


def main_names(names: Iterable[str]) -> list[str]:
    """The main results among names: those of the first of `MAIN` that there is, over all tasks if there are tasks
    (`sampled/success`, not `sampled/go_to/success`). None if there is none."""
    names = list(names)
    for last in MAIN:
        fitting = [name for name in names if name.split("/")[-1] == last]
        if fitting:
            depth = min(name.count("/") for name in fitting)
            return [name for name in fitting if name.count("/") == depth]
    return []


def number_text(value: float) -> str:
    """A number with four digits, or as an integer from ten thousand to ten millions."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def estimate_text(estimate: Estimate) -> str:
    """A mean and its interval with four digits; empty for no number."""
    if math.isnan(estimate.mean):
        return ""
    low, high = map(number_text, (estimate.low, estimate.high))
    return number_text(estimate.mean) + ("" if math.isnan(estimate.low) else f" [{low}, {high}]")


def _results(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Result]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _results(value, f"{path}/")
        elif isinstance(value, list) and value and all(isinstance(x, dict) and "seed" in x for x in value):
            yield from _of_tasks(value, path)
        elif is_number(value) and not is_bound(name, values):
            by_seed = values.get(f"{name}_runs")
            if isinstance(by_seed, list) and by_seed and all(map(is_number, by_seed)):
                yield path, Result(tuple(map(float, by_seed)))
            else:
                bounds: list[Any] = [values.get(bound_name(name, end, values)) for end in ("low", "high")]
                yield path, Result((float(value),), *(map(float, bounds) if all(map(is_number, bounds)) else ()))


def _of_tasks(items: Iterable[Mapping[str, Any]], name: str) -> Iterator[tuple[str, Result]]:
    """Results of several seeds and tasks, each an object."""
    values: dict[str, list[float]] = {}
    for item in items:
        task = item["task"] if isinstance(item.get("task"), str) else name
        for key, value in item.items():
            if key != "seed" and is_number(value):
                values.setdefault(f"{task}/{key}", []).append(float(value))
    for path, numbers in values.items():
        yield path, Result(tuple(numbers))
