"""From checked text to a jaxpr: the program is executed once, on shapes, and what it became is inspected."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from llmrl_jax.advice.sandbox.budget import Refused
from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.gate import MAIN, check
from llmrl_jax.advice.sandbox.guards import Guards
from llmrl_jax.advice.sandbox.hints import translated
from llmrl_jax.advice.sandbox.limits import DEFAULT, Limits
from llmrl_jax.advice.sandbox.rewrite import FILE, compiled
from llmrl_jax.advice.sandbox.spec import Spec
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


def _scalar(what: str, x: Any) -> jax.Array:
    if not isinstance(x, bool | int | float | jax.Array | np.ndarray | np.generic):
        raise Refused(f"{what} is not a number; a scalar array is needed")
    shape = jnp.shape(x)
    if shape != ():
        raise Refused(f"{what} has the shape {shape}; a scalar is needed: reduce it by jnp.sum, jnp.mean or jnp.max")
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
            raise SandboxError(f"the operation {name} is not allowed{_why(name)}", line, source)
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
    made = sum(_size(v) for v in eqn.outvars)
    largest = max((_size(v) for v in eqn.invars), default=0)
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return made * max(1, math.prod(eqn.invars[0].aval.shape[i] for i in contracted))
    if name.startswith("cum"):  # a window as long as the axis at every place, if no pass of XLA takes it apart
        return made * eqn.invars[0].aval.shape[eqn.params["axis"]]
    if name in ("sort", "top_k"):  # accelerators sort by a network
        axis = eqn.params["dimension" if name == "sort" else "axis"]
        levels = max(eqn.invars[0].aval.shape[axis] - 1, 1).bit_length()
        return sum(_size(v) for v in eqn.invars) * levels * (levels + 1) // 2
    if name.startswith(("reduce", "arg", "scatter")):
        return max(made, largest)
    if name == "integer_pow":
        return made * 2 * max(abs(eqn.params["y"]).bit_length(), 1)
    return made


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _why(name: str) -> str:
    if "callback" in name or name in ("infeed", "outfeed", "debug_print"):
        return ": a program cannot call Python or leave the device"
    if name in ("while", "scan"):
        return ": loops on the device are not allowed, so that every program ends"
    if "random" in name or "rng" in name or name == "threefry2x32":
        return ": a potential is not random"
    return ""


def _subjaxprs(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr | Jaxpr):
                yield each


def _equations(jaxpr: Jaxpr, outer: int | None) -> Iterator[tuple[Any, int | None]]:
    """Every operation with its line, those of inner functions once for each of their calls."""
    for eqn in jaxpr.eqns:
        line = outer or _line(eqn)
        yield eqn, line
        for each in _subjaxprs(eqn):
            yield from _equations(each.jaxpr if isinstance(each, ClosedJaxpr) else each, line)


def _jaxprs(jaxpr: Any) -> Iterator[Any]:
    yield jaxpr
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        for each in _subjaxprs(eqn):
            yield from _jaxprs(each)


def _line(eqn: Any) -> int | None:
    """The program's line that an operation comes from, if JAX kept it."""
    trace = getattr(eqn.source_info, "traceback", None)
    frames = getattr(trace, "frames", ()) if trace is not None else ()
    return next((frame.line_num for frame in frames if frame.file_name == FILE), None)
