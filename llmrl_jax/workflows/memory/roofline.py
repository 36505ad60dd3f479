"""The time that a compiled program takes by the roofline of each of its kernels, and what is in it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.core.files import byte_text, expanded
from llmrl_jax.parallel.absent import Kind
from llmrl_jax.workflows.memory import hlo


TOP = 5
"""Rows of each list of what is largest."""


def seconds(kernel: hlo.Kernel, kind: Kind) -> float:
    """Seconds of one run of a kernel.

    On a TPU the compiler's cycles; where it states none, and on a GPU, the longer of operations at the device's peak
    and bytes at its bandwidth. On a GPU the start of a kernel is added, and the bandwidth is what programs reach.
    """
    if kernel.cycles is not None and kind.clock:
        return kernel.cycles / kind.clock
    return max(kernel.flops / kind.flops, kernel.bytes / (kind.reached or kind.bandwidth)) + kind.launch


@dataclass(frozen=True)
class Prediction:
    """One run of a program on one device of a target: for a learner one update."""

    seconds: float
    """Predicted time, without exchanges between devices and without kernels that are custom calls of a TPU."""
    flops: float
    """Operations of matrix products, recomputed ones too."""
    bytes: float
    """Bytes of main memory read and written."""
    kernels: int
    share: float
    """Share of the device's peak in bfloat16: the time of the operations alone, divided by the predicted time."""
    collectives: Mapping[str, Mapping[str, float]]
    """Exchange -> how often it happens (`count`), and its `bytes`."""
    loops: Mapping[str, Mapping[str, float]]
    """Loop -> `seconds`, `bytes`, `kernels` inside it, the longest first; the empty name is outside of loops."""
    slowest: list[dict[str, Any]]
    """Kernels that take longest: `seconds`, `times`, `result` and `source`."""
    largest: list[dict[str, Any]]
    """Largest arrays in main memory: `bytes`, `array` and `source`."""
    exchanged: list[dict[str, Any]]
    """Collectives with most bytes: `op`, `count`, `bytes`, `result` and `source`."""
    callbacks: Mapping[str, int]
    """Calls of the host, by their targets."""
    float64: int
    """Instructions with 64-bit floating-point results."""
    unknown: int
    """Loops of an unknown number of runs, and branches: a loop is counted once, of the alternatives of a branch each
    equally often."""
    uncounted: Mapping[str, float]
    """Loop of an unknown number of runs -> seconds of one run of it, with the loops inside; the longest first. Of
    loops in the alternatives of a branch, their share."""

    @staticmethod
    def of(text: str, kind: Kind, once: int = 0) -> Prediction:
        """The prediction for a program, from its optimised HLO. **Arguments:** `once`, loops of an unknown number of
        runs that are meant to run once, as that over the updates of a chunk."""
        contents = hlo.read(text)
        loops: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(("seconds", "bytes", "kernels"), 0.0))
        slowest, flops = [], 0.0
        for kernel in contents.kernels:
            time = seconds(kernel, kind) * kernel.times
            flops += kernel.flops * kernel.times
            for name, value in (("seconds", time), ("bytes", kernel.bytes * kernel.times), ("kernels", kernel.times)):
                loops[kernel.loop][name] += value
            slowest.append((time, kernel))
        collectives: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0, "bytes": 0.0})
        for exchange in contents.collectives:
            collectives[exchange.op]["count"] += exchange.times
            collectives[exchange.op]["bytes"] += exchange.bytes * exchange.times
        total = sum(loop["seconds"] for loop in loops.values())
        uncounted: dict[str, float] = defaultdict(float)
        for name, loop in loops.items():
            around, times = name.split(hlo.INSIDE), 1
            for depth, last in enumerate(around):
                count = last.rpartition(" ")[2]
                if count == "?" and depth >= once:
                    uncounted[hlo.INSIDE.join(around[: depth + 1])] += loop["seconds"] / times
                times *= int(count) if count.isdigit() else 1
        slowest.sort(key=lambda pair: -pair[0])
        arrays = sorted(contents.arrays.items(), key=lambda item: -item[1][0])
        exchanges = sorted(contents.collectives, key=lambda c: -c.bytes * c.times)
        return Prediction(
            seconds=total,
            flops=flops,
            bytes=sum(loop["bytes"] for loop in loops.values()),
            kernels=int(sum(loop["kernels"] for loop in loops.values())),
            share=flops / kind.flops / total if total else 0.0,
            collectives=dict(collectives),
            loops=dict(sorted(loops.items(), key=lambda item: -item[1]["seconds"])[: 2 * TOP]),
            slowest=[
                {"seconds": time, "times": k.times, "result": k.result[:120], "source": k.source}
                for time, k in slowest[:TOP]
            ],
            largest=[{"bytes": int(n), "array": name, "source": source} for name, (n, source) in arrays[:TOP]],
            exchanged=[
                {"op": c.op, "count": c.times, "bytes": c.bytes * c.times, "result": c.result[:120], "source": c.source}
                for c in exchanges[:TOP]
            ],
            callbacks=dict(contents.callbacks),
            float64=sum(contents.wide.values()),
            unknown=max(0, contents.unknown - once),
            uncounted=dict(sorted(uncounted.items(), key=lambda item: -item[1])[:TOP]),
        )

    def lines(self) -> list[str]:
        """The prediction as text."""
        lines = [
            f"predicted time  {milliseconds(self.seconds)}, {self.share:.0%} of the peak; without exchanges",
            f"per device      {self.flops:.3g} operations, {self.bytes / 1e9:.3g} GB moved, {self.kernels:,} kernels",
        ]
        for op, numbers in self.collectives.items():
            lines.append(f"{op:<15} {numbers['count']:,.0f} times, {byte_text(int(numbers['bytes']))}")
        lines += ["", "slowest kernels"]
        lines += [f"  {milliseconds(k['seconds']):>10}  {_short(k['source'] or k['result'])}" for k in self.slowest]
        lines.append("largest arrays")
        lines += [f"  {byte_text(a['bytes']):>10}  {a['array']}  {_short(a['source'], 50)}" for a in self.largest]
        if self.exchanged:
            lines.append("largest exchanges")
        for c in self.exchanged:
            name = _short(c["source"] or c["result"], 50)
            lines.append(f"  {byte_text(int(c['bytes'])):>10}  {c['op']}, {c['count']:g} times: {name}")
        if self.callbacks:
            lines.append(f"It calls the host: {', '.join(f'{n} x {name}' for name, n in self.callbacks.items())}.")
        if self.float64:
            lines.append(f"{self.float64} instructions are float64, which a TPU lacks and a GPU computes slowly.")
        if self.unknown:
            lines.append(
                f"{self.unknown} loops and branches run an unknown number of times: a loop is counted once, of the "
                "alternatives of a branch each equally often."
            )
        lines += [f"  {milliseconds(value):>10}  a run of {_short(name)}" for name, value in self.uncounted.items()]
        return lines


def milliseconds(value: float) -> str:
    """A time of a program."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _short(text: str, width: int = 80) -> str:
    """The end of a name, which says most."""
    return text if len(text) <= width else f"...{text[3 - width :]}"


# --- two reports side by side ---------------------------------------------------------------------------------------


def compare(paths: tuple[str, str]) -> dict[str, tuple[Any, Any]]:
    """Differences between two reports: name -> the two values; None where a report has none.

    Numbers of the program (memory, time, bytes, collectives, ...) are all there, also equal ones; the commit and
    settings only if they differ.
    **Raises:** `FileNotFoundError`, or `ValueError` for a file that is no report.
    """
    return differences(*map(_read, paths))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`compare` of two reports that have been read."""
    first, second = ({"commit": report.get("commit"), **report.get("settings", {})} for report in (a, b))
    rows = {
        n: (first.get(n), second.get(n)) for n in [*first, *(set(second) - set(first))] if first.get(n) != second.get(n)
    }
    left, right = _numbers(a), _numbers(b)
    return rows | {name: (left.get(name), right.get(name)) for name in [*left, *(n for n in right if n not in left)]}


def _numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"fits": report["fits"], "memory": report["total"]}
    numbers |= {f"memory: {name}": part["per_device"] for name, part in report["parts"].items()}
    prediction = report.get("prediction")
    if prediction:
        numbers |= {name: prediction[name] for name in ("seconds", "share", "flops", "bytes", "kernels")}
        for op, collective in prediction["collectives"].items():
            numbers |= {f"{op}: count": collective["count"], f"{op}: bytes": collective["bytes"]}
    return numbers | {"compile seconds": report["seconds"]}


def _read(path: str) -> dict[str, Any]:
    file: Path = expanded(path)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no report of llmrl lm fit --json: {error}") from None
    if not isinstance(report, dict) or not {"total", "parts", "fits"} <= set(report):
        raise ValueError(f"{path} is no report of llmrl lm fit --json: it has no total and no parts")
    return report


def table(rows: Mapping[str, tuple[Any, Any]], names: tuple[str, str]) -> str:
    """The differences as a table, with the second value as a multiple of the first."""
    cells: list[tuple[str, ...]] = [("", *names, "ratio")]
    for name, pair in rows.items():
        a, b = pair
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair)
        ratio = f"{b / a:.2f}" if numbers and a else ""
        cells.append((name, *(_text(name, x) for x in pair), ratio))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in cells
    )


def _text(name: str, value: Any) -> str:
    format_: Callable[[Any], str] = str
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or "-"
    if name == "seconds":
        format_ = milliseconds
    elif name == "share":
        format_ = "{:.1%}".format
    elif name.startswith("memory") or name.endswith("bytes"):
        return byte_text(int(value))
    elif isinstance(value, float):
        format_ = "{:.4g}".format
    return format_(value)
