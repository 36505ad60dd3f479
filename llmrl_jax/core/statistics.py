"""Confidence intervals for the metrics of runs."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from llmrl_jax.core.checks import between


Z95 = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution."""


class Estimate(NamedTuple):
    """A mean and its interval."""

    mean: float
    low: float
    """nan, as `high`, if there is no interval."""
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        """The mean and its interval, each number by `spec` (default .3f)."""
        mean, low, high = (format(x, spec or ".3f") for x in self[:3])
        return mean if math.isnan(self.low) else f"{mean} [{low}, {high}]"

    def __str__(self) -> str:
        return format(self, "")

    def results(self, name: str) -> dict[str, float]:
        """`NAME`, `NAME_low` and `NAME_high`, as results of runs have them."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def wilson(successes: float, n: int, z: float = Z95) -> Estimate:
    """A success rate with Wilson's score interval (Wilson 1927), which stays in [0, 1] and holds for few episodes.

    **Arguments:** `successes`, how many of `n` episodes succeeded; `z`, the normal quantile of the interval.
    **Returns:** the rate and its interval; nan and [0, 1] for no episode.
    **Raises:** `ValueError` unless `0 <= successes <= n`.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} episodes is impossible")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # at 0 and at 1 rounding could leave the rate just outside its interval
    return Estimate(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n)


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """A mean with Student's interval (Student 1908): `mean +- t(n - 1) s / sqrt(n)`, `s` with divisor `n - 1`.

    The normal quantile instead of `t` makes intervals of few values too narrow: a nominal 95% interval then covers the
    mean of a normal distribution in 70% of cases for two values, and in 81% for three.

    **Arguments:** `values`, any shape; nan and infinities are ignored; `level`, the probability of coverage.
    **Returns:** the mean and its interval. One value has no interval: its bounds are nan.
    **Raises:** `ValueError` unless `level` is between 0 and 1.
    """
    between("level", level, 0, 1, above=True, below=True)
    x = np.asarray(values, np.float64).ravel()
    x = x[np.isfinite(x)]
    if x.size < 2:
        return Estimate(float(x[0]) if x.size else math.nan, math.nan, math.nan, int(x.size))
    from scipy.special import stdtrit  # the quantile of Student's distribution; scipy comes with jax

    half = float(stdtrit(x.size - 1, (1 + level) / 2)) * x.std(ddof=1) / math.sqrt(x.size)
    return Estimate(float(x.mean()), float(x.mean() - half), float(x.mean() + half), int(x.size))


def mean_rate(rates: ArrayLike, level: float = 0.95) -> Estimate:
    """`mean_interval` of success rates over seeds, clipped to [0, 1]."""
    mean, low, high, n = mean_interval(rates, level)
    return Estimate(mean, low, high, n) if n < 2 else Estimate(mean, max(0.0, low), min(1.0, high), n)


RATES = ("success", "unlocked")
"""The parts of names of results that are rates."""


def run_interval(name: str, values: ArrayLike) -> Estimate:
    """The mean of a result over runs, with Student's interval: within [0, 1] if the name is that of a rate."""
    return (mean_interval if set(RATES).isdisjoint(name.split("/")) else mean_rate)(values)


def is_number(value: Any) -> bool:
    """Return whether a value of a file is a finite number that a float can hold; a truth value is none."""
    try:
        return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def over_runs(results: Sequence[Mapping[str, Any]], *, values: bool = True) -> dict[str, Any]:
    """The results of runs that differ in their seed as one: means over the runs, with Student's intervals over them in
    place of the runs' own.

    **Arguments:** `results`, numbers by name, or such mappings by name, the same of each run; an interval is
    `NAME_low` and `NAME_high`, or `HEAD_low/TAIL` and `HEAD_high/TAIL` of `HEAD/TAIL`; `values`, whether the runs' own
    numbers stay, as the list `NAME_runs`.
    """
    line: dict[str, Any] = {}
    for name, first in results[0].items():
        numbers = [run[name] for run in results]
        if isinstance(first, Mapping):
            line[name] = over_runs(numbers, values=values)
        elif not is_bound(name, results[0]):
            mean, low, high, _ = run_interval(name, numbers)
            line |= {name: mean, bound_name(name, "low", results[0]): low, bound_name(name, "high", results[0]): high}
            line |= {f"{name}_runs": numbers} if values else {}
    return line


def estimate_of(results: Mapping[str, Any], name: str, n: int = 0) -> Estimate:
    """A result and its interval, which is nan if there is none. **Arguments:** `n`, of the estimate."""
    bounds = (results.get(bound_name(name, end, results), math.nan) for end in ("low", "high"))
    mean, low, high = map(float, (results[name], *bounds))  # nan is a string in JSON
    return Estimate(mean, low, high, n)


def bound_name(name: str, end: str, names: Container[str]) -> str:
    """The name of an end of the interval of a result. **Arguments:** `end`, low or high; `names`, of all results."""
    head, _, tail = name.partition("/")
    inner = f"{head}_{end}/{tail}"
    return inner if inner in names else f"{name}_{end}"


def is_bound(name: str, names: Container[str]) -> bool:
    """Return whether a result is an end of the interval of another. **Arguments:** `names`, of all results."""
    head, slash, tail = name.partition("/")
    return any(
        part.endswith(f"_{end}") and part.removesuffix(f"_{end}") + suffix in names
        for end in ("low", "high")
        for part, suffix in ((name, ""), (head, slash + tail))
    )
