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
from dataclasses import dataclass, field, replace

import numpy as np


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


INSIDE = " > "
"""Between the names of a loop and of one in it."""


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
    """Kernels, collectives and arrays of a program."""

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
        contents_ = Contents([], [], {}, Counter(), Counter(), 0)
        channels: dict[str, int] = {}
        unknown = 0
        for computation, i, times, loop, is_counted in self._scheduled(self.module.entry, 1, "", True):
            unknown += not is_counted and i.op in ("while", "conditional")
            for parent, part in [(computation, i), *self.module.parts(i)]:
                contents_.wide.update(kind for kind, _, _ in arrays(part.type) if kind in WIDE)
                if part.op in ("infeed", "outfeed", "send", "recv"):
                    contents_.callbacks[part.op] += 1
                elif part.op == "custom-call" and HOST.search(part.target):
                    contents_.callbacks[part.target] += 1
                if part.op.removesuffix("-start") in COLLECTIVES:
                    self._exchange(contents_.collectives, channels, parent, part, times, loop)
            if i.op in NO_WORK:
                continue
            work = (self._flops_of(i, computation), self._bytes_of(i, computation))
            contents_.kernels.append(Kernel(i.name, i.op, loop, times, *work, i.cycles, i.type, i.source))
            for kind, shape, layout in arrays(i.type):
                if in_main_memory(layout):
                    size = math.prod(shape) * ITEMSIZE[kind]
                    contents_.arrays.setdefault(f"{kind}[{','.join(map(str, shape))}]", (size, i.source))
        return replace(contents_, unknown=unknown)

    def _scheduled(
        self, computation: str, times: float, loop: str, is_counted: bool
    ) -> Iterator[tuple[str, Instruction, float, str, bool]]:
        """Every instruction that is run by itself, with its computation, how often it runs, and its loops."""
        for i in self.computations.get(computation, {}).values():
            if i.op == "while":
                trips = self.module.trips(i, computation)
                yield computation, i, times, loop, trips is not None
                label = f"{loop}{INSIDE}" if loop else ""
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
        instructions = self.computations[computation]
        size = max(nbytes(i.type), sum(nbytes(instructions[a].type) for a in i.operands if a in instructions))
        op = i.op.removesuffix("-start")
        if op != i.op and op != "all-reduce":
            size /= 2  # the type of a start has the operand and the result
        collective = Collective(op, loop, times, size, i.type, i.source)
        channel = re.search(r"channel_id=(\d+)", i.attributes)
        if channel and channel[1] in channels:
            # the steps of an asynchronous exchange repeat it, with its channel: it happens once
            index = channels[channel[1]]
            collectives[index] = min(collectives[index], collective, key=lambda c: c.times)
            return
        if channel:
            channels[channel[1]] = len(collectives)
        collectives.append(collective)

    # --- operations

    def _flops_of(self, i: Instruction, computation: str) -> float:
        instructions = self.computations[computation]
        if i.op == "dot":
            return _dot(i, instructions, r"lhs_contracting_dims=\{([\d,]*)\}")
        if i.op == "convolution":
            return _convolution(i, instructions)
        if i.op == "custom-call" and "gemm" in i.target:
            return _dot(i, instructions, r'"lhs_contracting_dimensions":\[([\d",]*)\]')
        total = 0.0
        for part in i.calls if i.op in ("fusion", "async-start") else ():
            if part not in self._flops:
                inner = self.computations.get(part, {}).values()
                self._flops[part] = sum(self._flops_of(j, part) for j in inner)
            total += self._flops[part]
        return total

    # --- bytes

    def _bytes_of(self, i: Instruction, computation: str) -> float:
        instructions = self.computations[computation]
        if i.op == "copy-start":
            return nbytes(instructions[i.operands[0]].type, False) * (1 if "S(1)" in i.type else 2)
        if i.op in ("dynamic-slice", "slice"):
            return 2 * nbytes(i.type, False)
        if i.op == "dynamic-update-slice":
            return 2 * nbytes(instructions[i.operands[1]].type, False)
        if i.op == "custom-call" and i.target in NO_TRAFFIC:
            return 0.0
        total = self._written(i)
        for index, name in enumerate(i.operands):
            if name not in instructions:
                continue
            full = nbytes(instructions[name].type, False)
            part = self._read_of(i.calls[0], index) if i.op == "fusion" else None
            total += full if part is None else min(full, part)
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
        instructions = self.computations.get(computation, {})
        if i is None:
            return None
        if i.op == "dynamic-update-slice":
            return nbytes(instructions[i.operands[1]].type)
        if i.op == "bitcast":
            return self._update(computation, instructions.get(i.operands[0]))
        if i.op == "fusion":
            return self._update(i.calls[0], self.module.root(i.calls[0]))
        if i.op == "tuple":
            parts = [(self._update(computation, instructions.get(name)), instructions.get(name)) for name in i.operands]
            if all(part is None for part, _ in parts):
                return None
            return sum(nbytes(x.type, False) if part is None else part for part, x in parts if x is not None)
        return None


def _dot(i: Instruction, instructions: dict[str, Instruction], pattern: str) -> float:
    contracted = re.search(pattern, i.attributes)
    if contracted is None or i.operands[0] not in instructions:
        return 0.0
    left = arrays(instructions[i.operands[0]].type)[0][1]
    inner = math.prod(left[int(n)] for n in re.findall(r"\d+", contracted[1]))
    return 2.0 * math.prod(arrays(i.type)[0][1]) * inner


def _convolution(i: Instruction, instructions: dict[str, Instruction]) -> float:
    """Operations of a convolution, as which a TPU's compiler writes every product: padding and holes do not count."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.attributes)
    if labels is None or any(name not in instructions for name in i.operands[:2]):
        return 0.0
    left, right = (arrays(instructions[name].type)[0][1] for name in i.operands[:2])
    output = arrays(i.type)[0][1]
    window = re.search(r"window=\{([^}]*)\}", i.attributes)
    options = dict(part.split("=", 1) for part in window[1].split()) if window else {}
    spatial = sorted(c for c in labels[3] if c.isdigit())

    def numbers(key: str, default: str) -> list[str]:
        return options[key].split("x") if key in options else [default] * len(spatial)

    total = 2.0 * output[labels[3].index("b")] * output[labels[3].index("f")] * right[labels[2].index("i")]
    keys = (("size", "1"), ("stride", "1"), ("pad", "0_0"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
    for d, size, stride, pad, dilate, holes in zip(spatial, *(numbers(*key) for key in keys)):
        count, length = output[labels[3].index(d)], left[labels[1].index(d)]
        if count * int(size) > 3e7:
            total *= count
            continue
        taps = np.arange(int(size)) * int(holes)
        positions = np.arange(count)[:, None] * int(stride) - int(pad.split("_")[0]) + taps
        inside = (positions >= 0) & (positions <= (length - 1) * int(dilate)) & (positions % int(dilate) == 0)
        total *= int(inside.sum())
    return total


# --- the text of optimised HLO --------------------------------------------------------------------------------------


ITEMSIZE = {
    "pred": 1, "s2": 0.25, "u2": 0.25, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4,
    "s64": 8, "u64": 8, "f8e4m3fn": 1, "f8e5m2": 1, "f8e4m3b11fnuz": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8,
    "c64": 8, "c128": 16,
}  # fmt: skip
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_MAIN = re.compile(r"S\([1-4]\)")


def arrays(type: str) -> list[tuple[str, tuple[int, ...], str]]:
    """Element type, shape and layout of every array of an HLO type."""
    return [
        (kind, tuple(int(n.lstrip("<=")) for n in shape.split(",") if n), layout)
        for kind, shape, layout in _ARRAY.findall(type)
        if kind in ITEMSIZE
    ]


def nbytes(type: str, everywhere: bool = True) -> float:
    """Bytes of an HLO type; without `everywhere` of the arrays in main memory."""
    return sum(
        math.prod(shape) * ITEMSIZE[kind]
        for kind, shape, layout in arrays(type)
        if everywhere or in_main_memory(layout)
    )


def in_main_memory(layout: str) -> bool:
    """Return whether an array of a layout is in main memory, and not in a TPU's vector memory or the like."""
    return not _MAIN.search(layout)


@dataclass
class Instruction:
    """A line of a computation: `name = type op(inside), attributes`."""

    name: str
    type: str
    op: str
    inside: str
    """What stands in its parentheses."""
    attributes: str
    root: bool
    operands: list[str] = field(default_factory=list)

    def named(self, *keys: str) -> list[str]:
        """The computations that attributes name."""
        return [c for key in keys for c in re.findall(rf"\b{key}=%?([\w.\-]+)", self.attributes)]

    @property
    def calls(self) -> list[str]:
        """The computations that are parts of it."""
        return self.named("calls", "to_apply") if self.op in ("fusion", "async-start", "call") else []

    @property
    def source(self) -> str:
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def target(self) -> str:
        match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return match[1] if match else ""

    @property
    def cycles(self) -> int | None:
        match = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(match[1]) if match and int(match[1]) < 1 << 40 else None  # beyond: the compiler's "unknown"

    @property
    def integer(self) -> int | None:
        """The value of an integer constant."""
        return int(self.inside) if self.op == "constant" and re.fullmatch(r"\s*-?\d+\s*", self.inside) else None


def _end(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text) - 1


def _instruction(line: str) -> Instruction | None:
    match = re.match(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$", line)
    if not match:
        return None
    remaining = match[3]
    end = _end(remaining, 0) + 1 if remaining.startswith("(") else remaining.find(" ")
    type, remaining = remaining[:end], remaining[end:].lstrip()
    start = remaining.find("(")
    if start < 0:
        return None
    end = _end(remaining, start)
    inside = remaining[start + 1 : end]
    operands = re.findall(r"%([\w.\-]+)", inside)
    return Instruction(match[2], type, remaining[:start], inside, remaining[end + 1 :], bool(match[1]), operands)


class Module:
    """The computations of a program."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        """Name -> its instructions by name."""
        self.entry = ""
        """The name of the computation that the program starts with."""
        name = ""
        for line in text.splitlines():
            head = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
            if head:
                name = head[2]
                self.computations[name] = {}
                self.entry = name if head[1] else self.entry
            elif name and (parsed := _instruction(line)):
                self.computations[name][parsed.name] = parsed

    def root(self, computation: str) -> Instruction | None:
        """The instruction whose value is that of a computation."""
        return next((i for i in self.computations.get(computation, {}).values() if i.root), None)

    def parts(self, i: Instruction) -> Iterator[tuple[str, Instruction]]:
        """The instructions that a fusion or an asynchronous start is made of."""
        if i.op not in ("fusion", "async-start"):
            return
        for computation in i.calls:
            for part in self.computations.get(computation, {}).values():
                yield computation, part
                yield from self.parts(part)

    def trips(self, i: Instruction, computation: str) -> int | None:
        """Trips of a loop: as the compiler says, or the constant with which its counter is compared."""
        stated = re.search(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)', i.attributes)
        if stated:
            return int(stated[1])
        condition = i.named("condition")[0]
        return self._compared(condition, i, computation, condition, None)

    def _compared(
        self, computation: str, loop: Instruction, outside: str, condition: str, call: Instruction | None
    ) -> int | None:
        """The trip count of a loop, by a comparison in its condition or in a fusion of it."""
        instructions = self.computations.get(computation, {})
        for i in instructions.values():
            if i.op == "fusion":
                for inner in i.calls:
                    trips = self._compared(inner, loop, outside, condition, i)
                    if trips is not None:
                        return trips
            if i.op != "compare" or "direction=LT" not in i.attributes:
                continue
            counter, limit = (self._outer(instructions, call, condition, a) for a in i.operands)
            bound = self._constant(limit, loop, outside)
            if bound is not None:
                return -(-bound // self._step(loop, counter))
        return None

    def _outer(
        self, instructions: dict[str, Instruction], call: Instruction | None, condition: str, name: str
    ) -> Instruction | None:
        """An operand; for a parameter of a fusion, what the condition hands it."""
        i = instructions.get(name)
        if i is not None and i.op == "parameter" and call is not None:
            return self.computations[condition].get(call.operands[int(i.inside)])
        return i

    def _constant(self, i: Instruction | None, loop: Instruction, outside: str) -> int | None:
        """The value of an instruction of a condition, perhaps an element of the loop's start that is a constant."""
        if i is None:
            return None
        if i.op != "get-tuple-element":
            return i.integer
        instructions = self.computations[outside]
        start = instructions.get(loop.operands[0])
        element = instructions.get(start.operands[_index(i)]) if start is not None and start.op == "tuple" else None
        while element is not None and element.op in ("copy", "bitcast", "convert"):
            element = instructions.get(element.operands[0])
        return None if element is None else element.integer

    def _step(self, loop: Instruction, counter: Instruction | None) -> int:
        """By how much the counter of a loop grows in a run: 1 unless an addition is plain to see."""
        body = loop.named("body")[0]
        instructions, root = self.computations[body], self.root(body)
        if counter is None or counter.op != "get-tuple-element" or root is None or root.op != "tuple":
            return 1

        def added(i: Instruction | None, depth: int) -> int | None:
            if i is None or depth > 12:
                return None
            if i.op == "get-tuple-element":
                return 0 if _index(i) == _index(counter) else None
            if i.op == "copy":
                return added(instructions.get(i.operands[0]), depth + 1)
            if i.op != "add":
                return None
            a, b = (instructions.get(name) for name in i.operands)
            for x, y in ((a, b), (b, a)):
                increment, inner = None if y is None else y.integer, added(x, depth + 1)
                if increment is not None and inner is not None:
                    return inner + increment
            return None

        return added(instructions.get(root.operands[_index(counter)]), 0) or 1


def _index(i: Instruction) -> int:
    match = re.search(r"index=(\d+)", i.attributes)
    return int(match[1]) if match else -1
