"""Measurement harness: compilation timed separately, medians of at least five samples, and recorded conditions.

A benchmark is a module with a `TITLE` and a function `run(quick: bool) -> Result`. Results go to
`benchmarks/results/<name>.json`; `benchmarks.table` writes `docs/benchmarks.md` from them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info
from llmrl_jax.run.chunk import compile_chunk


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ELSEWHERE = "elsewhere"
"""The folder in `RESULTS` with the last record of every other processor."""
REPEATS = 5
OURS = "llmrl_jax"


def number(x: float) -> str:
    """Three significant digits: 0.0123, 4.56, 789, 12.3k, 1.23M; `failed` for NaN."""
    if not math.isfinite(x):
        return "failed" if math.isnan(x) else str(x)
    x = float(f"{x:.3g}")  # before a unit is chosen: 999,600 is 1M
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:g}{unit}"
    return f"{x:g}"


@dataclass(frozen=True)
class Figure:
    """A number and the range in which its samples put it, which decides whether an aim is met."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        """The median of samples, and their quartiles."""
        low, value, high = np.quantile(np.asarray(samples, float), (0.25, 0.5, 0.75)).tolist()
        return cls(value, low, high)

    def __truediv__(self, other: Figure) -> Figure:
        """The ratio of two figures: at the least the lower end of one by the upper end of the other."""
        return Figure(self.value / other.value, self.low / other.high, self.high / other.low)

    def scaled(self, factor: float, plus: float = 0.0) -> Figure:
        """`factor * self + plus`, for a positive factor."""
        return Figure(*(factor * x + plus for x in (self.value, self.low, self.high)))

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


@dataclass
class Row:
    """One measurement."""

    case: str
    """The compared case: rows of one case are shown together."""
    who: str
    """`llmrl_jax`, or the name of the peer."""
    unit: str
    """Unit of `samples`; more is better, except for seconds."""
    samples: list[float]
    """One value per repetition."""
    compile_seconds: float | None = None
    """Time of tracing and compilation, not part of the samples; None if nothing compiles."""
    note: str = ""
    """Differences from the other rows, in a few words."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def figure(self) -> Figure:
        """The median, and the quartiles."""
        return Figure.of(self.samples)


@dataclass
class Result:
    """The results of one benchmark."""

    rows: list[Row]
    bars: list[str] = field(default_factory=list)
    """The targets, and whether they are met, one sentence each."""
    notes: list[str] = field(default_factory=list)
    """Notes on the measurement."""


def less_is_better(unit: str) -> bool:
    """Return whether a unit counts seconds, and not something per second."""
    return unit.startswith("s") and "/" not in unit


def fastest(rows: Sequence[Row]) -> Row:
    """The best of several rows of one unit: the row against which a ratio is stated. Rows of NaN failed."""
    units = {row.unit for row in rows}
    if len(units) != 1:
        raise ValueError(f"rows of {len(units)} units ({', '.join(sorted(units))}) cannot be compared")
    sign = -1 if less_is_better(rows[0].unit) else 1
    return max(rows, key=lambda row: -math.inf if math.isnan(row.median) else sign * row.median)


def speedup(ours: Sequence[Row], theirs: Sequence[Row]) -> Figure:
    """Ratio of the speed of our fastest row to that of the fastest row of a peer."""
    mine, other = fastest(ours), fastest(theirs)
    if mine.unit != other.unit:
        raise ValueError(f"{mine.unit!r} cannot be compared with {other.unit!r}")
    return other.figure / mine.figure if less_is_better(mine.unit) else mine.figure / other.figure


def verdict(figure: Figure | float, bar: float, *, below: bool = False) -> str:
    """`met` if all of the range of a figure reaches a bar, `missed` if none of it does, else `within the noise`.

    **Arguments:** `figure`, a number for what has no spread; `below`, whether less than `bar` is the aim.
    """
    figure = figure if isinstance(figure, Figure) else Figure(figure, figure, figure)
    reached = {x < bar if below else x >= bar for x in (figure.low, figure.value, figure.high)}
    return "within the noise" if len(reached) > 1 else "met" if reached == {True} else "missed"


def aim(figure: Figure | float, bar: float, *, below: bool = False) -> str:
    """A target and whether `figure` meets it: at least `bar`, or less than it if `below`; see `verdict`."""
    judged = verdict(figure, bar, below=below)
    if judged == "within the noise" and isinstance(figure, Figure):
        judged += f": {number(figure.low)} to {number(figure.high)}"
    return f"(aim: {'below' if below else 'at least'} {number(bar)}, {judged})"


def threads(count: int) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} thread{'' if count == 1 else 's'}"


def compiled(function: Callable, *args: Any, **jit_options: Any) -> tuple[Callable, float]:
    """Trace and compile `function` for `args`. **Returns:** the compiled function and the seconds taken."""
    started = time.perf_counter()
    program = jax.jit(function, **jit_options).lower(*args).compile()
    return program, time.perf_counter() - started


def updating(learner: Any, state: Any) -> tuple[Callable[[], Any], float]:
    """A call that makes one update by the program of a run, which goes on from the state that the last call left.

    As in a run, the state is donated and its frozen part is only read: a program that returned the whole state would
    copy data sets and frozen weights at every call.

    **Returns:** the call, which returns the update's metrics, and the seconds of tracing and compilation. `state`
    itself stays usable.
    """
    program, took = compile_chunk(learner, state, 1)
    kept = [jax.tree.map(jnp.copy, state.replace(frozen=()))]

    def call() -> Any:
        kept[0], metrics = program(kept[0], state.frozen, np.int32(1))
        return metrics

    return call, took


def seconds(call: Callable[[], Any], *, repeats: int = REPEATS, warmup: int = 1) -> list[float]:
    """The duration of each of `repeats` calls, after `warmup` calls, including the wait for results."""
    if repeats < REPEATS:
        raise ValueError(f"repeats is {repeats}; a median of at least {REPEATS} is the rule")
    for _ in range(warmup):
        jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
    return times


def rates(amount: float, times: Sequence[float]) -> list[float]:
    """Amounts per second."""
    return [amount / t for t in times]


def peer_python() -> str | None:
    """The interpreter of the peers' virtual environment; None if `make bench` has not built it."""
    path = ROOT / os.environ.get("LLMRL_PEERS", ".venv-peers") / "bin" / "python"
    return str(path) if path.exists() else None


def run_peer(script: str | Path, *args: str, timeout: float = 1800) -> dict[str, Any]:
    """Run a script with the peers' interpreter; the last line of its output is JSON.

    **Raises:** `FileNotFoundError` if that environment is missing; `RuntimeError` with the end of its output if the
    script fails.
    """
    python = peer_python()
    if python is None:
        raise FileNotFoundError("the peers' environment .venv-peers is missing; `make bench` builds it")
    env = {**os.environ, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")}
    command = [python, str(ROOT / "benchmarks" / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def commit() -> str:
    """The commit of what is measured; see `info.commit`.

    **Raises:** `RuntimeError` if it is unknown.
    """
    digits = info.commit("benchmarks")
    if digits is None:
        raise RuntimeError(
            f"the commit of {ROOT} is unknown, and a record needs it: run the benchmarks in a git checkout, or set "
            f"{info.COMMIT} to the commit of this copy"
        )
    return digits


def record(name: str, title: str, run: Callable[[bool], Result], quick: bool) -> Path:
    """Run a benchmark and write its JSON with the measurement conditions. A record of another processor is kept
    elsewhere, since the fastest library of one processor need not be that of another.

    **Raises:** `RuntimeError` if the commit is unknown, before anything is measured.
    """
    commit()
    before = info.machine()
    started = time.perf_counter()
    result = run(quick)
    value = {
        "name": name,
        "title": title,
        "quick": quick,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "took_seconds": round(time.perf_counter() - started, 1),
        "machine": before | {"load_average_after": round(os.getloadavg()[0], 2)},
        "versions": info.versions(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 2),
        **asdict(result),
    }
    for row, made in zip(value["rows"], result.rows):
        row["median"] = made.median
    RESULTS.mkdir(exist_ok=True)
    path = path_of(name, quick)
    if not quick:
        keep_elsewhere(path, value["machine"]["cpu"], value["commit"])
    write_whole(path, json.dumps(value, indent=1) + "\n")
    for row in result.rows:
        print(f"  {row.case:<48} {row.who:<28} {row.median:>14,.4g} {row.unit}", flush=True)
    return path


def path_of(name: str, quick: bool = False) -> Path:
    """The file of a benchmark's record."""
    return RESULTS / f"{name}{'-quick' if quick else ''}.json"


def load(path: Path) -> dict[str, Any]:
    """A record; empty if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def keep_elsewhere(path: Path, cpu: str, digits: str) -> None:
    """Make room at `path` for a record of the commit `digits` on the processor `cpu`: one of another processor moves
    elsewhere. Records of `cpu` and of other commits are removed from there."""
    folder = path.parent / ELSEWHERE
    before = load(path)
    if before and before["machine"]["cpu"] != cpu:
        slug = "-".join(re.findall(r"[a-z0-9]+", before["machine"]["cpu"].lower()))
        folder.mkdir(exist_ok=True)
        path.replace(folder / f"{path.stem}--{slug}.json")
    for other in folder.glob(f"{path.stem}--*.json"):
        value = load(other)
        if value["machine"]["cpu"] == cpu or value.get("commit") != digits:
            other.unlink()


def execute(name: str, quick: bool, limit_s: float = math.inf) -> str:
    """Run one benchmark in a separate process, so that it does not share memory, threads or caches with others.

    **Arguments:** `limit_s`, seconds after which it is stopped, with all processes that it started.
    **Returns:** why it failed; empty if it did not.
    """
    command = [sys.executable, "-m", "benchmarks", name, "--here", *(["--quick"] if quick else [])]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            code = process.wait(None if math.isinf(limit_s) else limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"stopped after {limit_s / 60:g} minutes"
    return f"exit code {code}" if code else ""
