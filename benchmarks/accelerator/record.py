"""One part: its cases measured one after the other, and its JSON written whole after each of them."""

from __future__ import annotations

import gc
import importlib
import json
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
from benchmarks.harness import compiled, seconds
from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info


Size = Literal["tiny", "full"]

PARTS = {
    "device": "matrix products and copies: what the device reaches",
    "train_mfu": "LoRA training of 135M-, 1B- and 7B-shaped models: share of peak operations (MFU)",
    "decode": "decoding with the same shapes, batches of 1 and 64: share of peak bandwidth",
    "scoring": "six actions under prompts of 192 tokens, the same shapes",
    "glam": "GLAM's rollout and update, 135M and 1B shapes, or the model of --model",
    "babyai": "BabyAI: environment steps, with and without text",
    "cartpole": "PPO on CartPole-v1, 500,000 steps",
    "mjx": "HalfCheetah, CLEVR-Robot and Meta-World on MJX, CLEVR-Robot in float64: environment steps",
}
"""The parts by name; each is a module here with a function `cases(settings)`."""


@dataclass(frozen=True)
class Settings:
    """What all parts are called with."""

    size: Size
    model: str = ""
    """A folder or GGUF file of a real model, for the part `glam`."""

    @property
    def tiny(self) -> bool:
        return self.size == "tiny"


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


class Skipped(Exception):
    """A part that cannot run here, with the reason."""


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


def clocked(function: Callable, *args: Any, **jit_options: Any) -> Clocked:
    """Compile `function` for `args`, call it repeatedly, and check that what it returns is finite.

    XLA deletes what no result depends on: `function` returns all that it is measured for, or sums of it.
    """
    program, took = compiled(function, *args, **jit_options)
    last: list[Any] = []

    def once() -> Any:
        last[:] = [program(*args)]
        return last[0]

    times = seconds(once)
    check_finite(last)
    return Clocked(times, took, last[0])


def peak_of_device() -> Peak | None:
    """The peak of the first device; None if it is not known."""
    return PEAKS.get(jax.devices()[0].device_kind)


def conditions() -> dict[str, Any]:
    """Commit, device, versions and peaks: what a result depends on. Starts the jax backend."""
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
    }


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
    try:
        return as_value(case, case.measure(), peak)
    except Exception as error:
        traceback.print_exc()
        failed = {"case": case.name, "status": "failed", "shape": case.shape, "error": said(error)}
    gc.collect()  # the frames of a failed case's error hold its weights
    return failed


def said(error: BaseException) -> str:
    """An error in a few lines: XLA's list every buffer."""
    return f"{type(error).__name__}: {error}"[:2000]


def line(value: dict[str, Any]) -> str:
    """A case in one line, for the terminal."""
    if value["status"] != "ok":
        return f"  {value['case']:<64} {value['status']}: {value['error'].splitlines()[0]}"
    text = f"  {value['case']:<64} {value['per_second']['median']:>12,.4g} {value['unit']}/s"
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


def write(path: Path, value: dict[str, Any]) -> None:
    """Write a part's JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def run_part(name: str, settings: Settings, out: Path) -> str:
    """Measure a part in this process, writing `out/NAME.json` at the beginning and after every case.

    **Returns:** its status: `ok`; `failed`, if the part or one of its cases raised; `skipped`.
    """
    started = time.perf_counter()
    print(f"{name}: {PARTS[name]}", flush=True)
    value: dict[str, Any] = {
        "name": name,
        "title": PARTS[name],
        "size": settings.size,
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_seconds": 0.0,
        "error": None,
        "conditions": conditions(),
        "cases": [],
    }
    path, peak = path_of(name, out), peak_of_device()
    write(path, value)
    try:
        cases: Iterator[Case] = importlib.import_module(f"benchmarks.accelerator.{name}").cases(settings)
        for case in cases:
            value["cases"].append(attempt(case, peak))
            value["took_seconds"] = round(time.perf_counter() - started, 1)
            write(path, value)
            print(line(value["cases"][-1]), flush=True)
        value["status"] = "failed" if any(c["status"] != "ok" for c in value["cases"]) else "ok"
    except Skipped as reason:
        value |= {"status": "skipped", "error": str(reason)}
        print(f"  skipped: {reason}", flush=True)
    except Exception as error:
        traceback.print_exc()
        value |= {"status": "failed", "error": said(error)}
        print(f"  failed: {said(error)}", file=sys.stderr)
    value["took_seconds"] = round(time.perf_counter() - started, 1)
    write(path, value)
    return value["status"]
