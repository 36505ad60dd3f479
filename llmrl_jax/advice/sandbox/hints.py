"""Errors of a program, as one hint with the line of its source: they are sent back to the model that wrote it."""

from __future__ import annotations

import re
import traceback

import jax

from llmrl_jax.advice.sandbox.budget import Refused
from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.advice.sandbox.rewrite import FILE


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
        found = _UNBOUND.search(str(error))
        name = next(filter(None, found.groups()), "a name") if found else "a name"
        return SandboxError(f"{name} has no value here: assign it before, on every path", line, source)
    first = str(error).strip().split("\n")[0][:240]
    if "incompatible shapes" in first or "broadcast" in first or "must have equal shapes" in first:
        return SandboxError(f"shapes do not fit together: {first}", line, source)
    return SandboxError(f"{type(error).__name__}: {first}" if first else type(error).__name__, line, source)


def line_of(error: BaseException) -> int | None:
    """The innermost line of the program in an error's traceback."""
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
    return lines[-1] if lines else None
