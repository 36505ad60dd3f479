"""The exported form of a program, and its check on the trusted side.

The child process sends one StableHLO module. It is put into an `Exported` that this process makes itself, for the
inputs and outputs that it expects, so nothing else of what the child says about the module is used. Every operation of
the module is then compared with a whitelist, because the child has executed untrusted text.
"""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import mlir

from llmrl_jax.advice.sandbox.spec import DEFAULT, Limits, SandboxError, Spec
from llmrl_jax.advice.sandbox.tables import ASSERTION, COMPOSITES, OPERATIONS
from llmrl_jax.advice.sandbox.trace import Traced


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms of a program; it is lowered for all of them at once."""
_TENSOR = re.compile(r"tensor<((?:[0-9?]+x)*)([a-z0-9]+)>")
_TYPES = re.compile(r"(?:i|ui|si|f)\d+|bf16|index")
_ANNOTATIONS = frozenset((
    "jax.global_constant", "jax.result_info", "jax.uses_shape_polymorphism", "mhlo.num_partitions", "mhlo.num_replicas",
    "jax.buffer_donor", "tf.aliasing_output",
))  # fmt: skip


def lower(traced: Traced) -> bytes:
    """A program's StableHLO, over a batch of windows of any size.

    **Raises:** `SandboxError` if an operation of it cannot be exported for batches of any size.
    """
    try:
        return exported(jax.vmap(jaxpr_as_fun(traced.jaxpr)), traced.spec).mlir_module_serialized
    except Exception as error:  # noqa: BLE001 - whatever a lowering rule raises
        first = str(error).strip().split("\n")[0][:200]
        raise SandboxError(f"it cannot be exported for batches of any size: {type(error).__name__}: {first}") from None


def exported(function: Any, spec: Spec) -> export.Exported:
    """A function of batched flat inputs, exported for batches of any size and for `PLATFORMS`."""
    inputs = spec.inputs(tuple(export.symbolic_shape("b")))
    return export.export(jax.jit(function, keep_unused=True), platforms=PLATFORMS)(*inputs)


def verified(module: bytes, version: int, spec: Spec, components: int, limits: Limits = DEFAULT) -> export.Exported:
    """An exported program, callable on flat inputs with one leading dimension.

    **Arguments:** `module`, of `lower`, which is not trusted; `version`, of its calling convention; `components`, their
    number; `limits`, of which sizes of arrays, operations and bytes count here.
    **Raises:** `SandboxError` for a module that takes or returns anything else, has an operation, type or annotation
    that is not in the whitelist, has an array with a size that is neither fixed nor that of the batch, calls itself, or
    is too large.
    """
    lowest, highest = (
        export.minimum_supported_calling_convention_version,
        export.maximum_supported_calling_convention_version,
    )
    if not lowest <= version <= highest:
        raise SandboxError(
            f"its calling convention is {version}; this JAX reads {lowest} to {highest}: admit its source again"
        )
    if len(module) > limits.module:
        raise SandboxError(f"the exported program has {len(module):,} bytes; at most {limits.module:,} are allowed")

    def empty(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        return (jnp.zeros(inputs[0].shape[:1], jnp.float32),) * (1 + components)

    stub = exported(empty, spec)
    exported_module = dataclasses.replace(stub, mlir_module_serialized=module, calling_convention_version=version)
    with mlir.make_ir_context():
        expected = _main(stub.mlir_module(serialized=False))
        try:
            parsed = exported_module.mlir_module(serialized=False)
        except Exception:  # noqa: BLE001 - the reader of MLIR
            raise SandboxError(
                "the exported program cannot be read: it is cut, or was made by another version"
            ) from None
        _check_operations(parsed, limits)
        if _main(parsed) != expected:
            raise SandboxError("the exported program takes or returns other values than its description says")
        _check_calls(parsed, limits)
        check_sizes(parsed, limits)
    return exported_module


def _main(module: Any) -> str:
    """The type of the module's entry."""
    for operation in module.body.operations:
        if operation.attributes["sym_name"].value == "main":
            return str(operation.attributes["function_type"])
    return ""


def _check_operations(module: Any, limits: Limits) -> None:
    count = 0

    def check(operation: Any) -> Any:
        nonlocal count
        count += 1
        name = operation.name
        if name == "stablehlo.custom_call":
            target = operation.attributes["call_target_name"].value
            if target != ASSERTION or len(operation.results):
                raise SandboxError(f"the exported program calls {target[:60]!r}, which is not allowed")
        elif name not in OPERATIONS:
            raise SandboxError(f"the exported program has the operation {name[:60]}, which is not allowed")
        elif name == "stablehlo.composite" and operation.attributes["name"].value not in COMPOSITES:
            composite = operation.attributes["name"].value
            raise SandboxError(f"the exported program has the operation {composite[:60]!r}, which is not allowed")
        for attribute in operation.attributes:
            label = getattr(attribute, "name", attribute)
            if "." in label and label not in _ANNOTATIONS:
                raise SandboxError(f"the exported program has the annotation {label[:60]!r}, which is not allowed")
        for result in operation.results:
            check_type(str(result.type), limits)
        if count > 40 * limits.equations:
            raise SandboxError(f"the exported program has more than {40 * limits.equations:,} operations")
        return mlir.ir.WalkResult.ADVANCE

    errors: list[SandboxError] = []

    def guarded(operation: Any) -> Any:
        try:
            return check(operation)
        except SandboxError as error:  # not through C++
            errors.append(error)
            return mlir.ir.WalkResult.INTERRUPT

    module.operation.walk(guarded)
    if errors:
        raise errors[0]


def check_type(text: str, limits: Limits) -> None:
    match = _TENSOR.fullmatch(text)
    if match is None or not _TYPES.fullmatch(match[2]):
        raise SandboxError(f"the exported program has a value of the type {text[:60]}, which is not allowed")
    if match[1].count("?") > 1:
        raise SandboxError(f"the exported program has a value of the type {text[:60]}, with more than one free size")
    sizes = [int(size) for size in match[1].split("x") if size not in ("", "?")]
    # A gather's and a scatter's indices have a dimension for each of the operand's.
    if math.prod(sizes) > limits.elements * limits.dimensions:
        raise SandboxError(
            f"the exported program has a value of the type {text[:60]}, which is too large: limits.elements is "
            f"{limits.elements:,}"
        )


def _check_calls(module: Any, limits: Limits) -> None:
    """No function calls itself, directly or through others; and the operations are few where all calls are written out,
    as the compiler does."""
    calls: dict[str, Counter[str]] = {}
    for function in module.body.operations:
        called = calls.setdefault(function.attributes["sym_name"].value, Counter())

        def add(operation: Any, called: Counter[str] = called) -> Any:
            called[operation.attributes[CALLS[operation.name]].value if operation.name in CALLS else ""] += 1
            return mlir.ir.WalkResult.ADVANCE

        function.operation.walk(add)
    sizes = {"": 1}
    while calls:
        resolved = [name for name, called in calls.items() if not called.keys() & calls.keys()]
        if not resolved:
            raise SandboxError("the exported program calls itself")
        for name in resolved:
            sizes[name] = sum(number * sizes.get(callee, 1) for callee, number in calls.pop(name).items())
            if sizes[name] > 40 * limits.equations:
                raise SandboxError(f"the exported program has more than {40 * limits.equations:,} operations")


# --- sizes of arrays --------------------------------------------------------------------------------------------------

# Each dimension is fixed, or the batch's, for batches of any size. The types of the module say `?` for the batch. A
# compiler infers what it stands for from the operands of some operations, and would believe these. So an unpredictable
# size takes the place of every `?`: then MLIR's own verifier compares the types of almost all operations, and the sizes
# that the others have as operands are computed here, from constants and sizes.


CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Operations that call a function of the module, and the attribute that names it."""
_SHAPED = {"stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_reshape": 1, "stablehlo.dynamic_iota": 0}
"""Operations whose result has the shape that is the operand of this number."""
_TYPE = re.compile(r"tensor<[0-9?x]+")
_OFFSETS = re.compile(r"offset_dims = \[([0-9, ]*)\]")
_REFUSED = "the exported program has an array of a size that is neither fixed nor that of the batch"
_MAX_SHAPE = 64
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
    text = _TYPE.sub(lambda match: match[0].replace("?", str(batch)), str(module))
    try:
        sized: Any = mlir.ir.Module.parse(text)
    except Exception:  # noqa: BLE001 - the verifier's, of types that do not fit
        raise SandboxError(_REFUSED) from None
    functions = {function.attributes["sym_name"].value: function for function in sized.body.operations}
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
        operands: list[Numbers] = []
        for entry in block.operations:
            operation = entry.operation
            operands = [values.get(x) for x in operation.operands]
            for result, numbers in zip(operation.results, self._results(operation, operands)):
                values[result] = numbers
            for region in operation.regions:
                for inner in region.blocks:
                    self._block(inner, values)
        return operands

    def _results(self, operation: Any, operands: list[Numbers]) -> Sequence[Numbers]:
        name = operation.name
        if name in CALLS:
            return self.of_call(operation.attributes[CALLS[name]].value, operands)
        if name == "stablehlo.constant":
            return (_constant(operation.attributes["value"]),)
        if name == "stablehlo.get_dimension_size":
            return ((_dims(operation.operands[0])[operation.attributes["dimension"].value],),)
        if name in ("stablehlo.reshape", "stablehlo.convert"):
            return (operands[0],)
        if name == "stablehlo.concatenate":
            return (None if None in operands else tuple(n for numbers in operands for n in numbers or ()),)
        shape = self._shape(operation, operands)
        if shape is not None and list(shape) != _dims(operation.results[0]):
            raise SandboxError(_REFUSED)
        return (None,) * len(operation.results)

    def _shape(self, operation: Any, operands: list[Numbers]) -> Sequence[int] | None:
        """The shape of the result of an operation whose sizes are operands; None for others."""
        name = operation.name
        if name in _SHAPED:
            return _require(operands[_SHAPED[name]])
        if name == "stablehlo.real_dynamic_slice":
            start, stop, step = map(_require, operands[1:])
            dims = _dims(operation.operands[0])
            if any(not 0 <= a <= b <= n or s < 1 for a, b, s, n in zip(start, stop, step, dims)):
                return ()
            return [-(-(b - a) // s) for a, b, s in zip(start, stop, step)]
        if name == "stablehlo.dynamic_pad":
            low, high, interior = map(_require, operands[2:])
            dims = _dims(operation.operands[0])
            return [a + b + n + max(n - 1, 0) * c for a, b, c, n in zip(low, high, interior, dims)]
        if name == "stablehlo.dynamic_gather":
            dims = list(_dims(operation.results[0]))
            match = _OFFSETS.search(str(operation.attributes["dimension_numbers"]))
            offsets = [dims[int(i)] for i in match[1].split(",") if i.strip()] if match else []
            sizes = _require(operands[2])  # the result has them in order, but for some of 1, or 0 of an empty array
            equal = [n for n in sizes if n != 1] == [n for n in offsets if n != 1]
            return dims if equal and math.prod(sizes) == math.prod(offsets) else ()
        return None


def _require(numbers: Numbers) -> tuple[int, ...]:
    if numbers is None:
        raise SandboxError(_REFUSED)
    return numbers


def _dims(value: Any) -> list[int]:
    return list(mlir.ir.RankedTensorType(value.type).shape)


def _constant(value: Any) -> Numbers:
    kind = mlir.ir.RankedTensorType(value.type)
    if str(kind.element_type) not in ("i32", "i64") or len(kind.shape) > 1 or math.prod(kind.shape) > _MAX_SHAPE:
        return None
    elements: Any = mlir.ir.DenseIntElementsAttr(value)
    return tuple(int(n) for n in elements)
