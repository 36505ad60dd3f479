"""One part: its cases measured one after the other, and its JSON written whole after each of them."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.accelerator.counts import PEAKS, Peak
from benchmarks.harness import REPEATS, compiled
from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info


Size = Literal["tiny", "full"]

PARTS = {
    "train_mfu": "LoRA training of 1B-, 135M- and 7B-shaped models: share of peak operations (MFU)",
    "decode": "decoding with the same shapes, batches of 1 and 64: share of peak bandwidth",
    "agreement": "probabilities of play beside those of the first gradient step, by dtype and excess precision",
    "glam": "GLAM's rollout and update, 135M and 1B shapes, or the model of --model",
    "agent": "agents that write over turns: the loop over tokens, and the update, 135M and 1B shapes",
    "mjx": "CLEVR-Robot in float64, HalfCheetah, CLEVR-Robot and Meta-World on MJX: environment steps",
    "worlds": "Crafter and BabyAI, with and without text: environment steps",
    "scoring": "six actions under prompts of 192 tokens, the same shapes",
    "device": "matrix products and copies: what the device reaches",
    "cartpole": "PPO on CartPole-v1, 500,000 steps",
}
"""The parts by name, the most important first; each is a module here with a function `cases(settings)`."""

SHARES = dict(zip(PARTS, (23, 15, 6, 28, 8, 8, 5, 3, 2, 2)))
"""The share of all time that each part gets, in hundredths; what one leaves, the next ones have."""

EXPECTED_S = 15.0
"""Seconds that a case is expected to take while none of its part has been measured."""
LONG_S = 2.0
"""Seconds of a call from which on fewer calls are made."""
NO_TIME = "no time"
"""The status of a case that was not begun, since the time left was too short for it."""


@dataclass(frozen=True)
class Settings:
    """Arguments of all parts."""

    size: Size
    model: str = ""
    """A folder or GGUF file of a real model, for the part `glam`."""
    command: str = ""
    """The command that measures, for the record."""
    limit_s: float = math.inf
    """Seconds after which the process is ended that measures a case."""
    run: float = 0.0
    """When the measuring began, in seconds since 1970: what was written before is not gone on with."""

    @property
    def tiny(self) -> bool:
        return self.size == "tiny"


@dataclass(frozen=True)
class Budget:
    """The time in which all parts are measured, in seconds since 1970."""

    start: float
    end: float

    def slices(self, names: Sequence[str]) -> dict[str, float]:
        """Ends of the parts' shares of the time."""
        shares = [SHARES.get(name, 1) for name in names]
        duration = self.end - self.start
        return {
            name: self.start + duration * so_far / sum(shares)
            for name, so_far in zip(names, itertools.accumulate(shares))
        }


@dataclass(frozen=True)
class Measured:
    """The result of a case."""

    seconds: Sequence[float]
    """Seconds of each call, compilation and warm-up excluded."""
    compile_seconds: float
    amount: float
    """What one call does, in `unit`."""
    unit: str
    flop: float | None = None
    """Operations per call; None if they are not counted."""
    flop_formula: str = ""
    bytes: float | None = None
    """Bytes read per call; None if they are not counted."""
    bytes_formula: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts for the record."""


@dataclass(frozen=True)
class Case:
    """One measurement of a part."""

    name: str
    shape: dict[str, Any]
    """Sizes, dtype and options, for the record."""
    measure: Callable[[], Measured]
    expected: float = 0.0
    """Seconds that it takes, compilation included; 0: as the longest of its part so far."""
    after: str = ""
    """The name of the case that compiles for both, without which this one is not begun."""


class Skipped(Exception):
    """A part or a case that cannot run here, with the reason."""


def check_finite(tree: Any) -> None:
    """**Raises** `FloatingPointError` if a number in `tree` is not finite."""
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    if not all(bool(jnp.all(jnp.isfinite(x))) for x in numbers):
        raise FloatingPointError("a result is not finite, so its time says nothing")


class Clocked(NamedTuple):
    """A program that was called repeatedly."""

    seconds: list[float]
    """Of each call."""
    compile_seconds: float
    result: Any
    """Of the last call."""
    temporary_bytes: int | None
    """Memory that the program takes beside its arguments and results; None if the compiler does not say."""


def clocked(function: Callable, *args: Any, **jit_options: Any) -> Clocked:
    """Compile `function` for `args`, call it repeatedly, and check that what it returns is finite.

    XLA deletes what no result depends on: `function` returns all that it is measured for, or sums of it.
    """
    return called(*compiled(function, *args, **jit_options), *args)


def called(program: Callable, compile_seconds: float, *args: Any) -> Clocked:
    """Call a compiled program repeatedly, and check that what it returns is finite."""
    last: list[Any] = []

    def once() -> Any:
        last[:] = [program(*args)]
        return last[0]

    times = seconds(once)
    check_finite(last)
    return Clocked(times, compile_seconds, last[0], temporaries(program))


def temporaries(program: Any) -> int | None:
    """Bytes of a compiled program's temporaries; None if they are not known."""
    memory = program.memory_analysis()
    return getattr(memory, "temp_size_in_bytes", None)


def seconds(call: Callable[[], Any]) -> list[float]:
    """The duration of each of `REPEATS` calls after one for warm-up, including the wait for results; of three calls,
    if one takes longer than `LONG_S`."""
    times: list[float] = []
    repeats = REPEATS
    while len(times) <= repeats:
        started = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - started)
        if times[-1] > LONG_S:
            repeats = 3
    return times[1:]


def peak_of_device() -> Peak | None:
    """The peak of the first device; None if it is not known."""
    return PEAKS.get(jax.devices()[0].device_kind)


def conditions(settings: Settings) -> dict[str, Any]:
    """Commit, device, versions, peaks, command and settings: what a result depends on. Starts the jax backend."""
    device, peak = jax.devices()[0], peak_of_device()
    memory = device.memory_stats() or {}
    return {
        "commit": info.commit("benchmarks"),
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_memory_bytes": memory.get("bytes_limit"),
        "peak_flops": peak and peak.flops,
        "peak_bandwidth": peak and peak.bandwidth,
        "machine": info.machine(),
        "versions": info.versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "command": settings.command,
        "settings": {"size": settings.size, "model": settings.model, **environment()},
    }


def environment() -> dict[str, str]:
    """The environment variables that jax and XLA read."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(("JAX_", "XLA_"))}


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def counted(m: Measured, peak: Peak | None) -> dict[str, Any]:
    """Rates of operations and bytes at the median, and their shares of the peak (null if it is not known)."""
    took, value = statistics.median(m.seconds), {}
    if m.flop is not None:
        rate = m.flop / took
        share = peak and rate / peak.flops
        value["flop"] = {"per_call": m.flop, "formula": m.flop_formula, "per_second": rate, "mfu": share}
    if m.bytes is not None:
        rate = m.bytes / took
        share = peak and rate / peak.bandwidth
        value["bytes"] = {"per_call": m.bytes, "formula": m.bytes_formula, "per_second": rate, "share": share}
    return value


def as_value(case: Case, m: Measured, peak: Peak | None) -> dict[str, Any]:
    """A measured case for the JSON."""
    return {
        "case": case.name,
        "status": "ok",
        "shape": case.shape,
        "compile_seconds": m.compile_seconds,
        "seconds": spread(m.seconds) | {"samples": list(m.seconds)},
        "unit": m.unit,
        "amount": m.amount,
        "per_second": spread([m.amount / t for t in m.seconds]),
        **counted(m, peak),
        **({"facts": m.facts} if m.facts else {}),
    }


def attempt(case: Case, peak: Peak | None) -> dict[str, Any]:
    """Measure a case. An error, such as a lack of memory, becomes its result, and the next case can run."""
    started = time.perf_counter()
    try:
        value = as_value(case, case.measure(), peak)
    except Skipped as reason:
        value = unmeasured(case, "skipped", str(reason))
    except Exception as error:
        traceback.print_exc()
        value = unmeasured(case, "failed", said(error))
    gc.collect()  # the frames of a failed case's error hold its weights
    return value | {"took_seconds": round(time.perf_counter() - started, 1)}


def unmeasured(case: Case, status: str, why: str) -> dict[str, Any]:
    """A case without a number for the JSON."""
    return {"case": case.name, "status": status, "shape": case.shape, "error": why}


def said(error: BaseException) -> str:
    """An error in a few lines: XLA's list every buffer."""
    return f"{type(error).__name__}: {error}"[:2000]


def line(value: dict[str, Any]) -> str:
    """A case in one line, for the terminal."""
    if value["status"] != "ok":
        return f"  {value['case']:<64} {value['status']}: {value['error'].splitlines()[0]}"
    text = f"  {value['case']:<64} {value['per_second']['median']:>12,.4g} {value['unit']}/s"
    text += f", {1e3 * value['seconds']['median']:.4g} ms"
    if "flop" in value:
        text += f", {value['flop']['per_second'] / 1e12:.3g} TFLOP/s"
    if "bytes" in value:
        text += f", {value['bytes']['per_second'] / 1e9:.4g} GB/s"
    shares = {"flop": "mfu", "bytes": "share"}
    known = [f"{value[k][name]:.1%} of peak" for k, name in shares.items() if k in value and value[k][name]]
    return ", ".join([text, *known])


def path_of(name: str, out: Path) -> Path:
    """The JSON of a part."""
    return out / f"{name}.json"


def read(name: str, settings: Settings, out: Path) -> dict[str, Any] | None:
    """The JSON of a part; None if there is none of this run."""
    path = path_of(name, out)
    value = json.loads(path.read_text()) if path.exists() else {}
    return value if value.get("run") == settings.run else None


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a part's JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def begun(name: str, settings: Settings) -> dict[str, Any]:
    """The JSON of a part of which nothing is measured."""
    return {
        "name": name,
        "title": PARTS[name],
        "size": settings.size,
        "run": settings.run,
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_seconds": 0.0,
        "error": None,
        "running": None,
        "cases": [],
    }


def put(value: dict[str, Any], entry: dict[str, Any]) -> None:
    """Add a case to a part's JSON, in place of what it holds of this case."""
    names = [old["case"] for old in value["cases"]]
    if entry["case"] in names:
        value["cases"][names.index(entry["case"])] = entry
    else:
        value["cases"].append(entry)


def status_of(cases: Sequence[dict[str, Any]]) -> str:
    """The status of a part: `failed` if a case failed or was stopped, else `no time` if one was not begun, else
    `skipped` if all were, else `ok`."""
    statuses = {case["status"] for case in cases}
    if statuses & {"failed", "timeout"}:
        return "failed"
    return NO_TIME if NO_TIME in statuses else "skipped" if statuses == {"skipped"} else "ok"


def expected_seconds(case: Case, value: dict[str, Any]) -> float:
    """Duration of a case, compilation included: as the longest one of its part so far, if it does not say."""
    took = [old["took_seconds"] for old in value["cases"] if old["status"] in ("ok", "failed")]
    return case.expected or max(took, default=EXPECTED_S)


def outrun(case: Case, value: dict[str, Any], until: float) -> str:
    """Why a case is not begun; empty if it is."""
    if case.after and case.after not in [old["case"] for old in value["cases"] if old["status"] in ("ok", "failed")]:
        return f"it goes with {case.after!r}"
    expected, left = expected_seconds(case, value), max(0.0, until - time.time())
    return f"{left:.0f} s are left, and this takes about {expected:.0f} s" if left < expected else ""


@contextlib.contextmanager
def guarded(settings: Settings, end: float) -> Iterator[None]:
    """End the process, with a trace of where it was, if the block does not end in time."""
    left = min(settings.limit_s, end - time.time())
    if math.isinf(left):
        yield
        return
    faulthandler.dump_traceback_later(max(0.1, left), exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_part(name: str, settings: Settings, out: Path, until: float = math.inf, end: float = math.inf) -> str:
    """Measure a part in this process, writing `out/NAME.json` at the beginning and after every case.

    **Arguments:** `until`, in seconds since 1970: no case is begun that is expected to end later; `end`, when the
    process is ended at the latest. With these, what `out/NAME.json` holds stays, and only other cases are measured.
    **Returns:** its status, that of `status_of`: the whole part's, if it cannot list its cases, is `failed` or
    `skipped`.
    """
    started, bounded = time.perf_counter(), not math.isinf(until)
    value = (read(name, settings, out) if bounded else None) or begun(name, settings)
    if value["status"] not in ("running", NO_TIME):
        return value["status"]
    print(f"{name}: {PARTS[name]}", flush=True)
    value["conditions"] = conditions(settings)
    path, peak, before = path_of(name, out), peak_of_device(), value["took_seconds"]

    def save(**changes: Any) -> None:
        value.update(changes, took_seconds=round(before + time.perf_counter() - started, 1))
        write(path, value)

    save(status="running")
    try:
        module = importlib.import_module(f"benchmarks.accelerator.{name}")
        measured = {case["case"] for case in value["cases"] if case["status"] != NO_TIME}
        for case in module.cases(settings):
            if case.name in measured:
                continue
            if bounded and (why := outrun(case, value, until)):
                put(value, unmeasured(case, NO_TIME, why))
            else:
                save(running={"case": case.name, "shape": case.shape, "started": time.time()})
                with guarded(settings, end):
                    put(value, attempt(case, peak))
            save(running=None)
            print(line(next(x for x in value["cases"] if x["case"] == case.name)), flush=True)
        value["status"] = status_of(value["cases"])
    except Skipped as reason:
        value |= {"status": "skipped", "error": str(reason)}
        print(f"  skipped: {reason}", flush=True)
    except Exception as error:
        traceback.print_exc()
        value |= {"status": "failed", "error": said(error)}
        print(f"  failed: {said(error)}", file=sys.stderr)
    save(running=None)
    return value["status"]


def run_parts(names: Sequence[str], settings: Settings, out: Path, budget: Budget | None = None) -> dict[str, str]:
    """Measure parts in this process, each within its share of the time; then, in the time that is left, the cases that
    their part had no time for. **Returns:** the statuses by part."""
    if budget is None:
        return {name: run_part(name, settings, out) for name in names}
    end = budget.end
    statuses = {name: run_part(name, settings, out, until, end) for name, until in budget.slices(names).items()}
    for name, status in statuses.items():
        if status == NO_TIME and time.time() < end:
            statuses[name] = run_part(name, settings, out, end, end)
    return statuses
