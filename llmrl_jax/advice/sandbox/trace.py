"""From checked text to a jaxpr: the program is executed once, on shapes, and what it became is inspected."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from llmrl_jax.advice.sandbox.gate import FILE, MAIN, check, compiled
from llmrl_jax.advice.sandbox.guards import Guards, Refused
from llmrl_jax.advice.sandbox.spec import DEFAULT, RANDOM, Limits, SandboxError, Spec
from llmrl_jax.advice.sandbox.tables import PRIMITIVES


@dataclass(frozen=True)
class Traced:
    """A program as operations on arrays; its text is not needed any more."""

    jaxpr: ClosedJaxpr
    """Of the flat inputs `Spec.inputs()`, to the potential and the components, float32 scalars."""
    components: tuple[str, ...]
    spec: Spec
    equations: int
    work: int
    """Elements that one evaluation computes."""


def trace(source: str, spec: Spec, limits: Limits = DEFAULT) -> Traced:
    """Check a program's text, and trace it. Nothing is computed and no array is allocated.

    **Raises:** `SandboxError`, whatever the text does.
    """
    tree = check(source, limits)
    names: list[str] = []
    try:
        code = compiled(tree)
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise SandboxError(f"it cannot be compiled: {type(error).__name__}", line, source) from None

    def flat(*inputs: jax.Array) -> list[jax.Array]:
        namespace = (guards := Guards(limits)).namespace()
        exec(code, namespace)  # noqa: S102 - what the gate let through, in a namespace of guards
        obs, past_obs, past_actions = spec.nested(inputs)
        outputs = _outputs(guards, namespace[MAIN](obs, past_obs, past_actions), limits)
        names[:] = list(outputs)[1:]
        return list(outputs.values())

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jaxpr = jax.make_jaxpr(flat)(*spec.inputs())
    except Exception as error:  # noqa: BLE001 - a program may raise anything
        raise translated(error, source) from None
    equations, work = inspect(jaxpr, source, limits)
    return Traced(jaxpr, tuple(names), spec, equations, work)


def _outputs(guards: Guards, result: Any, limits: Limits) -> dict[str, jax.Array]:
    """The potential, under the name "", and the components."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], dict):
        raise Refused(
            f"{MAIN} must return two values: the potential, and a dict of its components (which may be empty)"
        )
    if len(result[1]) > limits.components:
        raise Refused(f"it returns {len(result[1])} components; at most {limits.components} are allowed")
    return {
        "": _scalar("the potential", result[0]),
        **{k: _scalar(f"the component {k!r}", v) for k, v in result[1].items()},
    }


def _scalar(label: str, x: Any) -> jax.Array:
    if not isinstance(x, bool | int | float | jax.Array | np.ndarray | np.generic):
        raise Refused(f"{label} is not a number; a scalar array is needed")
    shape = jnp.shape(x)
    if shape != ():
        raise Refused(f"{label} has the shape {shape}; a scalar is needed: reduce it by jnp.sum, jnp.mean or jnp.max")
    return jnp.asarray(x).astype(jnp.float32)


# --- the operations ---------------------------------------------------------------------------------------------------


def inspect(jaxpr: ClosedJaxpr, source: str, limits: Limits) -> tuple[int, int]:
    """Refuse operations that are not in the whitelist, arrays that are too large, and too many of either.

    **Returns:** the number of operations, and of the elements that they compute.
    """
    if jaxpr.effects:
        raise SandboxError("it has an effect beside its result")
    equations, work = 0, 0
    for owner in _jaxprs(jaxpr):
        for constant in getattr(owner, "consts", ()):
            if np.size(constant) > limits.elements:
                raise SandboxError(f"it holds an array of {np.size(constant):,} elements; at most {limits.elements:,}")
    for eqn, line in _equations(jaxpr.jaxpr, None):
        name = eqn.primitive.name
        equations += 1
        if name not in PRIMITIVES:
            raise SandboxError(f"the operation {name} is not allowed{_reason(name)}", line, source)
        for variable in eqn.outvars:
            shape = getattr(variable.aval, "shape", ())
            size = math.prod(shape)
            if size > limits.elements or len(shape) > limits.dimensions:
                reason = f"an array of shape {tuple(shape)} has {size:,} elements; at most {limits.elements:,}, and "
                raise SandboxError(f"{reason}{limits.dimensions} dimensions, are allowed", line, source)
        if name == "integer_pow" and not isinstance(eqn.params["y"], int):  # JAX checks it while it compiles
            raise SandboxError(f"the exponent of integer_pow is {eqn.params['y']}; an integer is needed", line, source)
        work += work_of(eqn)
        if equations > limits.equations:
            raise SandboxError(f"it becomes more than {limits.equations:,} operations; use fewer loops")
        if work > limits.work:
            raise SandboxError(f"it computes more than {limits.work:,} elements; use smaller arrays", line, source)
    return equations, work


def work_of(eqn: Any) -> int:
    """Elements that an operation computes, at least as many as XLA's ways of doing it; each is one pass over what it
    makes, but for those that read more than they make or do so several times."""
    name = eqn.primitive.name
    size = sum(_size(v) for v in eqn.outvars)
    largest = max((_size(v) for v in eqn.invars), default=0)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return size * max(1, math.prod(eqn.invars[0].aval.shape[i] for i in contracted))
    if name.startswith("cum"):  # a window as long as the axis at every place, if no pass of XLA takes it apart
        return size * eqn.invars[0].aval.shape[eqn.params["axis"]]
    if name in ("sort", "top_k"):  # accelerators sort by a network
        axis = eqn.params["dimension" if name == "sort" else "axis"]
        levels = max(eqn.invars[0].aval.shape[axis] - 1, 1).bit_length()
        return sum(_size(v) for v in eqn.invars) * levels * (levels + 1) // 2
    if name.startswith(("reduce", "arg", "scatter")):
        return max(size, largest)
    if name == "integer_pow":
        return size * 2 * max(abs(eqn.params["y"]).bit_length(), 1)
    return size


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _reason(name: str) -> str:
    if "callback" in name or name in ("infeed", "outfeed", "debug_print"):
        return ": a program cannot call Python or leave the device"
    if name in ("while", "scan"):
        return ": loops on the device are not allowed, so that every program ends"
    if "random" in name or "rng" in name or name == "threefry2x32":
        return ": a potential is not random"
    return ""


def _subjaxprs(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr | Jaxpr):
                yield item


def _equations(jaxpr: Jaxpr, outer: int | None) -> Iterator[tuple[Any, int | None]]:
    """Every operation with its line, those of inner functions once for each of their calls."""
    for eqn in jaxpr.eqns:
        line = outer or _line(eqn)
        yield eqn, line
        for inner in _subjaxprs(eqn):
            yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, line)


def _jaxprs(jaxpr: Any) -> Iterator[Any]:
    yield jaxpr
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        for inner in _subjaxprs(eqn):
            yield from _jaxprs(inner)


def _line(eqn: Any) -> int | None:
    """The program's line that an operation comes from, if JAX kept it."""
    trace = getattr(eqn.source_info, "traceback", None)
    frames = getattr(trace, "frames", ()) if trace is not None else ()
    return next((frame.line_num for frame in frames if frame.file_name == FILE), None)


# --- its values on sample windows -------------------------------------------------------------------------------------


LOOPED = 4
"""Windows that are also evaluated one by one."""


def check_behaviour(
    traced: Traced, drawn: Sequence[Any], sampled: Sequence[Any] | None, limits: Limits
) -> dict[str, float]:
    """Evaluate a program on windows.

    **Arguments:** `drawn`, of `random_windows`; `sampled`, windows of play in the same form, or None; the potential
    must vary on these if there are any.
    **Returns:** the least and the largest potential, and the number of windows.
    **Raises:** `SandboxError` if a value is not finite or beyond `limits.bound`, if two evaluations differ, or a batch
    and a loop, or if the potential is the same on all windows.
    """
    function = jaxpr_as_fun(traced.jaxpr)
    batched, single = jax.jit(jax.vmap(function)), jax.jit(function)
    values = np.stack(batched(*drawn))
    if not np.array_equal(values, np.stack(batched(*drawn)), equal_nan=True):
        raise SandboxError("two evaluations of the same windows differ")
    if sampled is not None:
        varying = np.stack(batched(*_repeated(sampled)))[:, : len(sampled[0])]
        values = np.concatenate([values, varying], axis=1)
    else:
        varying = values
    for name, row in zip(("the potential", *(f"the component {n!r}" for n in traced.components)), values):
        if not np.isfinite(row).all():
            bad = "NaN" if np.isnan(row).any() else "infinite"
            count = int((~np.isfinite(row)).sum())
            raise SandboxError(
                f"{name} is {bad} on {count} of {row.size} windows: guard divisions, logarithms and roots"
            )
        if np.abs(row).max() > limits.bound:
            raise SandboxError(
                f"{name} reaches {np.abs(row).max():.4g}; at most {limits.bound:g} is allowed: scale it down"
            )
    for i in range(LOOPED):
        unbatched = np.stack(single(*(x[i] for x in drawn)))
        if not np.allclose(unbatched, values[:, i], rtol=1e-4, atol=1e-4):
            raise SandboxError("a window evaluated alone and in a batch give different values")
    low, high = float(varying[0].min()), float(varying[0].max())
    if high - low <= 1e-6:
        kind = "sampled" if sampled is not None else "random"
        raise SandboxError(
            f"the potential is {low:.4g} on all {varying.shape[1]} {kind} windows: it must depend on what it is given"
        )
    return {"lowest": low, "highest": high, "windows": int(values.shape[1])}


def _repeated(sampled: Sequence[Any]) -> list[np.ndarray]:
    """Windows repeated to a multiple of `RANDOM`, so that the compiled program of the drawn windows is used again where
    there are as many."""
    n = len(sampled[0])
    index = np.arange(-(-n // RANDOM) * RANDOM) % n
    return [np.asarray(x)[index] for x in sampled]


# --- errors of a program, as one hint with the line of its source -----------------------------------------------------


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "the truth of an array is not known while it is traced, so `if`, `and`, `or`, `not` and chains such as "
        "a < b < c cannot use it: use jnp.where(condition, a, b), and &, |, ~ between conditions",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "an array cannot be indexed by a condition: use jnp.where(condition, x, 0) and reduce it",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "the value of an array is not known while it is traced: use it as an index of an array, not of a list",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "the value of an array is needed while it is traced, where it is not known: sizes, axes and range need plain "
        "numbers; give size= to functions such as jnp.nonzero, and use jnp.where for choices",
    ),
    (jax.errors.TracerArrayConversionError, "an array cannot become a NumPy array while it is traced: use jnp"),
    (RecursionError, "functions or values are nested too deeply"),
    (MemoryError, "it needs more memory than a program may have"),
    (ZeroDivisionError, "a plain number is divided by zero"),
    (OverflowError, "a plain number becomes too large"),
)
_UNBOUND = re.compile(r"variable '(\w+)'|name '([\w. ]+)'")


def translated(error: BaseException, source: str) -> SandboxError:
    """The refusal that an error in a program stands for."""
    line = line_of(error)
    if isinstance(error, Refused):
        return SandboxError(str(error), line, source)
    for kind, hint in _KINDS:
        if isinstance(error, kind):
            return SandboxError(hint, line, source)
    if isinstance(error, NameError):
        match = _UNBOUND.search(str(error))
        name = next(filter(None, match.groups()), "a name") if match else "a name"
        return SandboxError(f"{name} has no value here: assign it before, on every path", line, source)
    first = str(error).strip().split("\n")[0][:240]
    if "incompatible shapes" in first or "broadcast" in first or "must have equal shapes" in first:
        return SandboxError(f"shapes do not fit together: {first}", line, source)
    return SandboxError(f"{type(error).__name__}: {first}" if first else type(error).__name__, line, source)


def line_of(error: BaseException) -> int | None:
    """The innermost line of the program in an error's traceback."""
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
    return lines[-1] if lines else None
