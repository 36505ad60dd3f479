"""The time that a compiled program takes by the roofline of each of its kernels, and what is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmrl_jax.parallel.absent import Kind
from llmrl_jax.workflows.memory import hlo
from llmrl_jax.workflows.memory.sizes import size


SHOWN = 5
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
            loops=dict(sorted(loops.items(), key=lambda item: -item[1]["seconds"])[: 2 * SHOWN]),
            slowest=[
                {"seconds": time, "times": k.times, "result": k.result[:120], "source": k.source}
                for time, k in slowest[:SHOWN]
            ],
            largest=[{"bytes": int(n), "array": name, "source": source} for name, (n, source) in arrays[:SHOWN]],
            exchanged=[
                {"op": c.op, "count": c.times, "bytes": c.bytes * c.times, "result": c.result[:120], "source": c.source}
                for c in exchanges[:SHOWN]
            ],
            callbacks=dict(contents.callbacks),
            float64=sum(contents.wide.values()),
            unknown=max(0, contents.unknown - once),
        )

    def lines(self) -> list[str]:
        """The prediction as text."""
        lines = [
            f"predicted time  {milliseconds(self.seconds)}, {self.share:.0%} of the peak; without exchanges",
            f"per device      {self.flops:.3g} operations, {self.bytes / 1e9:.3g} GB moved, {self.kernels:,} kernels",
        ]
        for op, known in self.collectives.items():
            lines.append(f"{op:<15} {known['count']:,.0f} times, {size(int(known['bytes']))}")
        lines += ["", "slowest kernels"]
        lines += [f"  {milliseconds(k['seconds']):>10}  {_short(k['source'] or k['result'])}" for k in self.slowest]
        lines.append("largest arrays")
        lines += [f"  {size(a['bytes']):>10}  {a['array']}  {_short(a['source'], 50)}" for a in self.largest]
        if self.exchanged:
            lines.append("largest exchanges")
        for c in self.exchanged:
            name = _short(c["source"] or c["result"], 50)
            lines.append(f"  {size(int(c['bytes'])):>10}  {c['op']}, {c['count']:g} times: {name}")
        if self.callbacks:
            lines.append(f"It calls the host: {', '.join(f'{n} x {name}' for name, n in self.callbacks.items())}.")
        if self.float64:
            lines.append(f"{self.float64} instructions are float64, which a TPU lacks and a GPU computes slowly.")
        if self.unknown:
            lines.append(
                f"{self.unknown} loops and branches run an unknown number of times: a loop is counted once, of the "
                "alternatives of a branch each equally often."
            )
        return lines


def milliseconds(value: float) -> str:
    """A time of a program."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _short(text: str, width: int = 80) -> str:
    """The end of a name, which says most."""
    return text if len(text) <= width else f"...{text[3 - width :]}"
