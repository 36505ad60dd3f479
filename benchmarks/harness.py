"""Measurement harness: compilation timed separately, medians of at least five samples, and recorded conditions.

A benchmark is a module with a `TITLE` and a function `run(quick: bool) -> Result`. Results go to
`benchmarks/results/<name>.json`; `benchmarks.table` writes `docs/benchmarks.md` from them.
"""

from __future__ import annotations

import json
import math
import os
import re
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

from llmrl_jax.run import info
from llmrl_jax.run.chunk import compile_chunk


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ELSEWHERE = "elsewhere"
"""The folder in `RESULTS` with the last record of every other processor."""
REPEATS = 5
OURS = "llmrl_jax"


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


@dataclass
class Result:
    """The results of one benchmark."""

    rows: list[Row]
    bars: list[str] = field(default_factory=list)
    """The targets, and whether they are met, one sentence each."""
    notes: list[str] = field(default_factory=list)
    """Notes on the measurement."""


def less_is_better(unit: str) -> bool:
    """Whether a unit counts seconds, and not something per second."""
    return unit.startswith("s") and "/" not in unit


def fastest(rows: Sequence[Row]) -> Row:
    """The best of several rows of one unit: the row against which a ratio is stated. Rows of NaN failed."""
    units = {row.unit for row in rows}
    if len(units) != 1:
        raise ValueError(f"rows of {len(units)} units ({', '.join(sorted(units))}) cannot be compared")
    sign = -1 if less_is_better(rows[0].unit) else 1
    return max(rows, key=lambda row: -math.inf if math.isnan(row.median) else sign * row.median)


def speedup(ours: Sequence[Row], theirs: Sequence[Row]) -> float:
    """How many times faster our fastest row is than the fastest row of a peer."""
    mine, other = fastest(ours), fastest(theirs)
    if mine.unit != other.unit:
        raise ValueError(f"{mine.unit!r} cannot be compared with {other.unit!r}")
    return other.median / mine.median if less_is_better(mine.unit) else mine.median / other.median


def aim(value: float, bar: float, *, below: bool = False) -> str:
    """A target and whether `value` meets it: `value >= bar`, or `value < bar` if `below`."""
    met = value < bar if below else value >= bar
    return f"(aim: {'below' if below else 'at least'} {bar:g}, {'met' if met else 'missed'})"


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


def record(name: str, title: str, run: Callable[[bool], Result], quick: bool) -> Path:
    """Run a benchmark and write its JSON with the measurement conditions. A record of another processor is kept
    elsewhere, since the fastest library of one processor need not be that of another."""
    before = info.machine()
    started = time.perf_counter()
    result = run(quick)
    value = {
        "name": name,
        "title": title,
        "quick": quick,
        "date": time.strftime("%Y-%m-%d"),
        "took_seconds": round(time.perf_counter() - started, 1),
        "machine": before | {"load_average_after": round(os.getloadavg()[0], 2)},
        "versions": info.versions(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 2),
        **asdict(result),
    }
    for row, made in zip(value["rows"], result.rows):
        row["median"] = made.median
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'-quick' if quick else ''}.json"
    if not quick:
        keep_elsewhere(path, value["machine"]["cpu"])
    path.write_text(json.dumps(value, indent=1) + "\n")
    for row in result.rows:
        print(f"  {row.case:<48} {row.who:<28} {row.median:>14,.4g} {row.unit}", flush=True)
    return path


def keep_elsewhere(path: Path, cpu: str) -> None:
    """Make room at `path` for a record made on the processor `cpu`: one of another processor moves elsewhere, and an
    earlier one of `cpu` is removed from there."""

    def elsewhere(name: str) -> Path:
        slug = "-".join(re.findall(r"[a-z0-9]+", name.lower()))
        return path.parent / ELSEWHERE / f"{path.stem}--{slug}.json"

    before = json.loads(path.read_text())["machine"]["cpu"] if path.exists() else cpu
    if before != cpu:
        elsewhere(before).parent.mkdir(exist_ok=True)
        path.replace(elsewhere(before))
    elsewhere(cpu).unlink(missing_ok=True)


def execute(name: str, quick: bool) -> int:
    """Run one benchmark in a separate process, so that it does not share memory, threads or caches with others."""
    command = [sys.executable, "-m", "benchmarks", name, "--here", *(["--quick"] if quick else [])]
    return subprocess.run(command, cwd=ROOT).returncode
