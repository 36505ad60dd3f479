"""The text of optimised HLO: types, the instructions of computations, and how often their loops run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field


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
    """Whether an array of a layout is in main memory, and not in a TPU's vector memory or the like."""
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
    rest = match[3]
    end = _end(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    type, rest = rest[:end], rest[end:].lstrip()
    start = rest.find("(")
    if start < 0:
        return None
    end = _end(rest, start)
    inside = rest[start + 1 : end]
    operands = re.findall(r"%([\w.\-]+)", inside)
    return Instruction(match[2], type, rest[:start], inside, rest[end + 1 :], bool(match[1]), operands)


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
            elif name and (made := _instruction(line)):
                self.computations[name][made.name] = made

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
        """How often a loop runs: as the compiler says, or the constant with which its counter is compared."""
        stated = re.search(r'known_trip_count"?[:=]\{"?n"?:"?(\d+)', i.attributes)
        if stated:
            return int(stated[1])
        condition = i.named("condition")[0]
        return self._compared(condition, i, computation, condition, None)

    def _compared(
        self, at: str, loop: Instruction, outside: str, condition: str, call: Instruction | None
    ) -> int | None:
        """The trip count of a loop, by a comparison in its condition or in a fusion of it."""
        here = self.computations.get(at, {})
        for i in here.values():
            if i.op == "fusion":
                for inner in i.calls:
                    trips = self._compared(inner, loop, outside, condition, i)
                    if trips is not None:
                        return trips
            if i.op != "compare" or "direction=LT" not in i.attributes:
                continue
            counter, limit = (self._outer(here, call, condition, a) for a in i.operands)
            bound = self._constant(limit, loop, outside)
            if bound is not None:
                return -(-bound // self._step(loop, counter))
        return None

    def _outer(
        self, here: dict[str, Instruction], call: Instruction | None, condition: str, name: str
    ) -> Instruction | None:
        """An operand; for a parameter of a fusion, what the condition hands it."""
        i = here.get(name)
        if i is not None and i.op == "parameter" and call is not None:
            return self.computations[condition].get(call.operands[int(i.inside)])
        return i

    def _constant(self, i: Instruction | None, loop: Instruction, outside: str) -> int | None:
        """The value of an instruction of a condition, perhaps an element of the loop's start that is a constant."""
        if i is None:
            return None
        if i.op != "get-tuple-element":
            return i.integer
        known = self.computations[outside]
        start = known.get(loop.operands[0])
        element = known.get(start.operands[_index(i)]) if start is not None and start.op == "tuple" else None
        while element is not None and element.op in ("copy", "bitcast", "convert"):
            element = known.get(element.operands[0])
        return None if element is None else element.integer

    def _step(self, loop: Instruction, counter: Instruction | None) -> int:
        """By how much the counter of a loop grows in a run: 1 unless an addition is plain to see."""
        body = loop.named("body")[0]
        known, root = self.computations[body], self.root(body)
        if counter is None or counter.op != "get-tuple-element" or root is None or root.op != "tuple":
            return 1

        def added(i: Instruction | None, depth: int) -> int | None:
            if i is None or depth > 12:
                return None
            if i.op == "get-tuple-element":
                return 0 if _index(i) == _index(counter) else None
            if i.op == "copy":
                return added(known.get(i.operands[0]), depth + 1)
            if i.op != "add":
                return None
            a, b = (known.get(name) for name in i.operands)
            for x, y in ((a, b), (b, a)):
                more, inner = None if y is None else y.integer, added(x, depth + 1)
                if more is not None and inner is not None:
                    return inner + more
            return None

        return added(known.get(root.operands[_index(counter)]), 0) or 1


def _index(i: Instruction) -> int:
    match = re.search(r"index=(\d+)", i.attributes)
    return int(match[1]) if match else -1
