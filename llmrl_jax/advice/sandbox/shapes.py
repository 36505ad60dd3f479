"""Sizes of the arrays of an exported program: each dimension is fixed, or the batch's, for batches of any size.

The types of the module say `?` for the batch. A compiler infers what it stands for from the operands of some
operations, and would believe these. So a size that no one could have expected takes the place of every `?`: then MLIR's
own verifier compares the types of almost all operations, and the sizes that the others are given as arrays are computed
here, from constants and sizes.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.limits import Limits


CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Operations that call a function of the module, and the attribute that names it."""
_SHAPED = {"stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_reshape": 1, "stablehlo.dynamic_iota": 0}
"""Operations whose result has the shape that is the operand of this number."""
_TYPE = re.compile(r"tensor<[0-9?x]+")
_OFFSETS = re.compile(r"offset_dims = \[([0-9, ]*)\]")
_REFUSED = "the exported program has an array of a size that is neither fixed nor that of the batch"
_FEW = 64
"""Elements of a constant that may be a shape."""

Numbers = tuple[int, ...] | None
"""The elements of an array of integers; None: not known here."""


def check_sizes(module: Any, limits: Limits) -> None:
    """Refuse a module whose arrays have a dimension that is neither fixed nor that of the batch.

    **Arguments:** `module`, whose operations, types and calls have been checked; inside a context of MLIR.
    **Raises:** `SandboxError`.
    """
    largest = limits.elements * limits.dimensions  # of a fixed dimension
    batch = largest + 1 + secrets.randbelow(4 * largest)
    text = _TYPE.sub(lambda found: found[0].replace("?", str(batch)), str(module))
    try:
        known: Any = mlir.ir.Module.parse(text)
    except Exception:  # noqa: BLE001 - the verifier's, of types that do not fit
        raise SandboxError(_REFUSED) from None
    functions = {each.attributes["sym_name"].value: each for each in known.body.operations}
    try:
        main = functions["main"].regions[0].blocks[0]
        _Sizes(functions).of_call("main", (None,) * len(main.arguments))
    except RecursionError:
        raise SandboxError("the calls of the exported program are nested too deep") from None


class _Sizes:
    """The integers of which shapes are made, function by function, and the comparison of shapes with them."""

    def __init__(self, functions: dict[str, Any]):
        self.functions = functions

    def of_call(self, name: str, arguments: Sequence[Numbers]) -> list[Numbers]:
        """The results of a call."""
        block = self.functions[name].regions[0].blocks[0]
        values: dict[Any, Numbers] = dict(zip(block.arguments, arguments))
        return self._block(block, values)

    def _block(self, block: Any, values: dict[Any, Numbers]) -> list[Numbers]:
        """The operands of the block's last operation."""
        given: list[Numbers] = []
        for each in block.operations:
            operation = each.operation
            given = [values.get(x) for x in operation.operands]
            for result, numbers in zip(operation.results, self._results(operation, given)):
                values[result] = numbers
            for region in operation.regions:
                for inner in region.blocks:
                    self._block(inner, values)
        return given

    def _results(self, operation: Any, given: list[Numbers]) -> Sequence[Numbers]:
        name = operation.name
        if name in CALLS:
            return self.of_call(operation.attributes[CALLS[name]].value, given)
        if name == "stablehlo.constant":
            return (_constant(operation.attributes["value"]),)
        if name == "stablehlo.get_dimension_size":
            return ((_dims(operation.operands[0])[operation.attributes["dimension"].value],),)
        if name in ("stablehlo.reshape", "stablehlo.convert"):
            return (given[0],)
        if name == "stablehlo.concatenate":
            return (None if None in given else tuple(n for numbers in given for n in numbers or ()),)
        wanted = self._shape(operation, given)
        if wanted is not None and list(wanted) != _dims(operation.results[0]):
            raise SandboxError(_REFUSED)
        return (None,) * len(operation.results)

    def _shape(self, operation: Any, given: list[Numbers]) -> Sequence[int] | None:
        """The shape of the result of an operation that is given sizes as arrays; None for others."""
        name = operation.name
        if name in _SHAPED:
            return _known(given[_SHAPED[name]])
        if name == "stablehlo.real_dynamic_slice":
            start, stop, step = map(_known, given[1:])
            dims = _dims(operation.operands[0])
            if any(not 0 <= a <= b <= n or s < 1 for a, b, s, n in zip(start, stop, step, dims)):
                return ()
            return [-(-(b - a) // s) for a, b, s in zip(start, stop, step)]
        if name == "stablehlo.dynamic_pad":
            low, high, between = map(_known, given[2:])
            dims = _dims(operation.operands[0])
            return [a + b + n + max(n - 1, 0) * c for a, b, c, n in zip(low, high, between, dims)]
        if name == "stablehlo.dynamic_gather":
            dims = list(_dims(operation.results[0]))
            found = _OFFSETS.search(str(operation.attributes["dimension_numbers"]))
            offsets = [dims[int(i)] for i in found[1].split(",") if i.strip()] if found else []
            sizes = _known(given[2])  # the result has them in order, but for some of 1, or 0 of an empty array
            same = [n for n in sizes if n != 1] == [n for n in offsets if n != 1]
            return dims if same and math.prod(sizes) == math.prod(offsets) else ()
        return None


def _known(numbers: Numbers) -> tuple[int, ...]:
    if numbers is None:
        raise SandboxError(_REFUSED)
    return numbers


def _dims(value: Any) -> list[int]:
    return list(mlir.ir.RankedTensorType(value.type).shape)


def _constant(value: Any) -> Numbers:
    kind = mlir.ir.RankedTensorType(value.type)
    if str(kind.element_type) not in ("i32", "i64") or len(kind.shape) > 1 or math.prod(kind.shape) > _FEW:
        return None
    elements: Any = mlir.ir.DenseIntElementsAttr(value)
    return tuple(int(n) for n in elements)
