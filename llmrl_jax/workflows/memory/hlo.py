"""A reader of optimised HLO text: kernels, the bytes and operations of each, collectives, large arrays, callbacks.

XLA's own cost analysis counts the body of a loop once, and is empty for GPUs. Here everything inside a loop counts as
often as the loop runs. A *kernel* is a scheduled instruction that does work: not a tuple, a bitcast or a parameter. Its
bytes are those that it reads and writes in the device's main memory. Arrays in a TPU's vector memory (layouts with
`S(1)`) do not count; of an operand that a kernel only slices the slice counts, of a result that is updated in place the
update.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmrl_jax.workflows.memory.hlo_text import ITEMSIZE, Instruction, Module, arrays, in_main_memory, nbytes


WIDE = ("f64", "c128")
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all",
    "collective-broadcast",
)  # fmt: skip
NO_WORK = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id", "opt-barrier", "domain", "add-dependency", "iota", "async-done", "async-update",
    "copy-done",
}  # fmt: skip
NO_TRAFFIC = ("AllocateBuffer", "AssumeGather", "ConcatBitcast")
HOST = re.compile(r"callback|python|MoveToHost", re.IGNORECASE)


@dataclass(frozen=True)
class Kernel:
    """A scheduled instruction, with all its runs."""

    name: str
    op: str
    loop: str
    """The loops around it with their trip counts, outermost first; empty outside of loops."""
    times: float
    """How often it runs: of the alternatives of a branch each equally often."""
    flops: float
    """Operations of the products in it, in one run."""
    bytes: float
    """Bytes of main memory read and written in one run."""
    cycles: int | None
    """Cycles of one run as the TPU's compiler estimates them."""
    result: str
    """Its type, as `bf16[16,1024]{1,0}`."""
    source: str
    """The operation that it is made of, by JAX's names."""


@dataclass(frozen=True)
class Collective:
    """An exchange between devices, with all its runs."""

    op: str
    loop: str
    times: float
    bytes: float
    """Bytes in one run on one device: of the larger of its operands and results."""
    result: str
    source: str


@dataclass(frozen=True)
class Contents:
    """What is in a program."""

    kernels: list[Kernel]
    collectives: list[Collective]
    arrays: dict[str, tuple[float, str]]
    """Type and shape of every result in main memory -> its bytes, and the operation that makes it."""
    callbacks: Counter[str]
    """Calls of the host, infeeds and outfeeds: target -> number."""
    wide: Counter[str]
    """Instructions with 64-bit floating-point results, by type."""
    unknown: int
    """Loops and branches whose number of runs the text does not say: a loop counts once, the alternatives of a branch
    together."""


def read(text: str) -> Contents:
    """The contents of a compiled program, of `compiled.as_text()`."""
    return _Counting(Module(text)).contents()


class _Counting:
    def __init__(self, module: Module):
        self.module, self.computations = module, module.computations
        self._reads: dict[tuple[str, int], float | None] = {}
        self._flops: dict[str, float] = {}

    def contents(self) -> Contents:
        """Everything that the program runs."""
        found = Contents([], [], {}, Counter(), Counter(), 0)
        channels: dict[str, int] = {}
        unknown = 0
        for computation, i, times, loop, known in self._scheduled(self.module.entry, 1, "", True):
            unknown += not known and i.op in ("while", "conditional")
            for at, part in [(computation, i), *self.module.parts(i)]:
                found.wide.update(kind for kind, _, _ in arrays(part.type) if kind in WIDE)
                if part.op in ("infeed", "outfeed", "send", "recv"):
                    found.callbacks[part.op] += 1
                elif part.op == "custom-call" and HOST.search(part.target):
                    found.callbacks[part.target] += 1
                if part.op.removesuffix("-start") in COLLECTIVES:
                    self._exchange(found.collectives, channels, at, part, times, loop)
            if i.op in NO_WORK:
                continue
            work = (self._flops_of(i, computation), self._bytes_of(i, computation))
            found.kernels.append(Kernel(i.name, i.op, loop, times, *work, i.cycles, i.type, i.source))
            for kind, shape, layout in arrays(i.type):
                if in_main_memory(layout):
                    size = math.prod(shape) * ITEMSIZE[kind]
                    found.arrays.setdefault(f"{kind}[{','.join(map(str, shape))}]", (size, i.source))
        return Contents(found.kernels, found.collectives, found.arrays, found.callbacks, found.wide, unknown)

    def _scheduled(
        self, computation: str, times: float, loop: str, known: bool
    ) -> Iterator[tuple[str, Instruction, float, str, bool]]:
        """Every instruction that is run by itself, with its computation, how often it runs, and its loops."""
        for i in self.computations.get(computation, {}).values():
            if i.op == "while":
                trips = self.module.trips(i, computation)
                yield computation, i, times, loop, trips is not None
                label = f"{loop} > " if loop else ""
                for body in i.named("body"):
                    yield from self._scheduled(body, times * (trips or 1), f"{label}{i.name} x {trips or '?'}", True)
                continue
            yield computation, i, times, loop, i.op != "conditional"
            if i.op == "conditional":
                several = re.search(r"branch_computations=\{([^}]*)\}", i.attributes)
                branches = re.findall(r"%?([\w.\-]+)", several[1]) if several else []
                branches = branches or i.named("true_computation", "false_computation")
                for branch in branches:
                    yield from self._scheduled(branch, times / len(branches), loop, True)
            elif i.op == "call":
                for body in i.calls:
                    yield from self._scheduled(body, times, loop, True)

    def _exchange(
        self,
        collectives: list[Collective],
        channels: dict[str, int],
        computation: str,
        i: Instruction,
        times: float,
        loop: str,
    ) -> None:
        known = self.computations[computation]
        size = max(nbytes(i.type), sum(nbytes(known[a].type) for a in i.operands if a in known))
        op = i.op.removesuffix("-start")
        if op != i.op and op != "all-reduce":
            size /= 2  # the type of a start has the operand and the result
        made = Collective(op, loop, times, size, i.type, i.source)
        channel = re.search(r"channel_id=(\d+)", i.attributes)
        if channel and channel[1] in channels:
            # the steps of an asynchronous exchange repeat it, with its channel: it happens once
            at = channels[channel[1]]
            collectives[at] = min(collectives[at], made, key=lambda c: c.times)
            return
        if channel:
            channels[channel[1]] = len(collectives)
        collectives.append(made)

    # --- operations

    def _flops_of(self, i: Instruction, computation: str) -> float:
        known = self.computations[computation]
        if i.op == "dot":
            return _dot(i, known, r"lhs_contracting_dims=\{([\d,]*)\}")
        if i.op == "convolution":
            return _convolution(i, known)
        if i.op == "custom-call" and "gemm" in i.target:
            return _dot(i, known, r'"lhs_contracting_dimensions":\[([\d",]*)\]')
        total = 0.0
        for part in i.calls if i.op in ("fusion", "async-start") else ():
            if part not in self._flops:
                inner = self.computations.get(part, {}).values()
                self._flops[part] = sum(self._flops_of(j, part) for j in inner)
            total += self._flops[part]
        return total

    # --- bytes

    def _bytes_of(self, i: Instruction, computation: str) -> float:
        known = self.computations[computation]
        if i.op == "copy-start":
            return nbytes(known[i.operands[0]].type, False) * (1 if "S(1)" in i.type else 2)
        if i.op in ("dynamic-slice", "slice"):
            return 2 * nbytes(i.type, False)
        if i.op == "dynamic-update-slice":
            return 2 * nbytes(known[i.operands[1]].type, False)
        if i.op == "custom-call" and i.target in NO_TRAFFIC:
            return 0.0
        total = self._written(i)
        for index, name in enumerate(i.operands):
            if name not in known:
                continue
            whole = nbytes(known[name].type, False)
            part = self._read_of(i.calls[0], index) if i.op == "fusion" else None
            total += whole if part is None else min(whole, part)
        return total

    def _read_of(self, computation: str, index: int) -> float | None:
        """Bytes of a parameter that a fused computation reads; None: all."""
        key = (computation, index)
        if key not in self._reads:
            self._reads[key] = None
            inner = self.computations[computation].values()
            parameter = next((i for i in inner if i.op == "parameter" and i.inside.strip() == str(index)), None)
            self._reads[key] = self._used(computation, parameter) if parameter else None
        return self._reads[key]

    def _used(self, computation: str, i: Instruction) -> float | None:
        """Bytes of a value that the instructions of a computation read; None: all."""
        users = [j for j in self.computations[computation].values() if i.name in j.operands]
        if not users:
            return None if i.root else 0.0
        total = 0.0
        for user in users:
            parts: list[float | None] = [None]
            if user.op in ("dynamic-slice", "slice", "gather"):
                parts = [nbytes(user.type)]
            elif user.op == "dynamic-update-slice" and i.name not in user.operands[1:]:
                parts = [0.0]
            elif user.op == "bitcast":
                parts = [self._used(computation, user)]
            elif user.op == "fusion":
                parts = [self._read_of(user.calls[0], k) for k, name in enumerate(user.operands) if name == i.name]
            for part in parts:
                if part is None:
                    return None
                total += part
        return total

    def _written(self, i: Instruction) -> float:
        """Bytes that an instruction writes."""
        update = self._update("", i) if i.op == "fusion" else None
        return nbytes(i.type, False) if update is None else update

    def _update(self, computation: str, i: Instruction | None) -> float | None:
        """Bytes of the updates that a result is made of in place; None if it is not."""
        known = self.computations.get(computation, {})
        if i is None:
            return None
        if i.op == "dynamic-update-slice":
            return nbytes(known[i.operands[1]].type)
        if i.op == "bitcast":
            return self._update(computation, known.get(i.operands[0]))
        if i.op == "fusion":
            return self._update(i.calls[0], self.module.root(i.calls[0]))
        if i.op == "tuple":
            parts = [(self._update(computation, known.get(name)), known.get(name)) for name in i.operands]
            if all(part is None for part, _ in parts):
                return None
            return sum(nbytes(x.type, False) if part is None else part for part, x in parts if x is not None)
        return None


def _dot(i: Instruction, known: dict[str, Instruction], pattern: str) -> float:
    contracted = re.search(pattern, i.attributes)
    if contracted is None or i.operands[0] not in known:
        return 0.0
    left = arrays(known[i.operands[0]].type)[0][1]
    inner = math.prod(left[int(n)] for n in re.findall(r"\d+", contracted[1]))
    return 2.0 * math.prod(arrays(i.type)[0][1]) * inner


def _convolution(i: Instruction, known: dict[str, Instruction]) -> float:
    """Operations of a convolution, as which a TPU's compiler writes every product: padding and holes do not count."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    if labels is None or any(name not in known for name in i.operands[:2]):
        return 0.0
    left, right = (arrays(known[name].type)[0][1] for name in i.operands[:2])
    out = arrays(i.type)[0][1]
    window = re.search(r"window=\{([^}]*)\}", i.attributes)
    given = dict(part.split("=", 1) for part in window[1].split()) if window else {}
    spatial = sorted(c for c in labels[3] if c.isdigit())

    def numbers(key: str, default: str) -> list[str]:
        return given[key].split("x") if key in given else [default] * len(spatial)

    total = 2.0 * out[labels[3].index("b")] * out[labels[3].index("f")] * right[labels[2].index("i")]
    keys = (("size", "1"), ("stride", "1"), ("pad", "0_0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
    for d, size, stride, pad, dilate, holes in zip(spatial, *(numbers(*key) for key in keys)):
        count, length = out[labels[3].index(d)], left[labels[1].index(d)]
        if count * int(size) > 3e7:
            total *= count
            continue
        taps = np.arange(int(size)) * int(holes)
        at = np.arange(count)[:, None] * int(stride) - int(pad.split("_")[0]) + taps
        inside = (at >= 0) & (at <= (length - 1) * int(dilate)) & (at % int(dilate) == 0)
        total *= int(inside.sum())
    return total
