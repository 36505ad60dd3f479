"""The exported form of a program, and its check on the trusted side.

The child process sends one StableHLO module. It is put into an `Exported` that this process makes itself, for the
inputs and outputs that it expects, so nothing else of what the child says about the module is used. Every operation of
the module is then compared with a whitelist, because the child has executed untrusted text.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import mlir

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.limits import DEFAULT, Limits
from llmrl_jax.advice.sandbox.shapes import CALLS, check_sizes
from llmrl_jax.advice.sandbox.spec import Spec
from llmrl_jax.advice.sandbox.tables import ASSERTION, COMPOSITES, OPERATIONS
from llmrl_jax.advice.sandbox.trace import Traced


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Where a program runs; it is lowered for all of them at once."""
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
    number.
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
    made = dataclasses.replace(stub, mlir_module_serialized=module, calling_convention_version=version)
    with mlir.make_ir_context():
        wanted = _main(stub.mlir_module(serialized=False))
        try:
            parsed = made.mlir_module(serialized=False)
        except Exception:  # noqa: BLE001 - the reader of MLIR
            raise SandboxError(
                "the exported program cannot be read: it is cut, or was made by another version"
            ) from None
        _check_operations(parsed, limits)
        if _main(parsed) != wanted:
            raise SandboxError("the exported program takes or returns other values than its description says")
        _check_calls(parsed, limits)
        check_sizes(parsed, limits)
    return made


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
        raise SandboxError(f"the exported program has a value of the type {text[:60]}, which is too large")


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
        done = [name for name, called in calls.items() if not called.keys() & calls.keys()]
        if not done:
            raise SandboxError("the exported program calls itself")
        for name in done:
            sizes[name] = sum(number * sizes.get(each, 1) for each, number in calls.pop(name).items())
            if sizes[name] > 40 * limits.equations:
                raise SandboxError(f"the exported program has more than {40 * limits.equations:,} operations")
