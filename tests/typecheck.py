"""How the tests check annotations at run time: beartype, with the leeway that numeric code takes."""

from __future__ import annotations

import functools
import re
import typing
from types import FunctionType
from typing import Any

import jax
import jaxtyping
import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from beartype.roar import BeartypeDecorHintException


_CHECK = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int is a float
        violation_type=jaxtyping.TypeCheckError,
        hint_overrides=FrozenDict({jax.Array: jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct}),
    )
)


def check(function):
    """The function with its annotations checked; itself, where they cannot be (a protocol that is static only).

    Nor are a dataclass's own fields: a pytree is rebuilt with whatever a `jax.tree.map` makes of its leaves (shapes,
    shardings, names)."""
    if getattr(function, "__qualname__", "").endswith(".__init__"):
        return function
    try:
        return _CHECK(function)
    except BeartypeDecorHintException:
        return function


def has_shapes(function: FunctionType) -> bool:
    """Return whether an annotation of the function names an array's shape, as in `Float[Array, "rows columns"]`."""
    names = {name for hint in function.__annotations__.values() for name in re.findall(r"\w+", str(hint))}
    found = (function.__globals__.get(name) for name in names)
    return any(getattr(x, "__module__", "").startswith("jaxtyping") for x in found)


def checked(function: FunctionType) -> Any:
    """The function with its annotations checked, without the bookkeeping of shapes, which costs more than all else.

    A hint that cannot be read yet (a name that is defined below, or for type checkers only) is left out, as jaxtyping
    leaves it out."""
    hints = function.__annotations__
    readable = {}
    for name, hint in hints.items():
        try:
            readable[name] = typing.get_type_hints(_with(hint), function.__globals__, include_extras=True)["value"]
        except Exception:
            continue
    function.__annotations__ = readable
    try:
        made = check(function)
    finally:
        function.__annotations__ = hints
    made.__annotations__ = hints
    return made


def _with(hint: Any) -> Any:
    def function(value): ...

    function.__annotations__ = {"value": hint}
    return function


def jaxtyped(whole: Any = None, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped` for what has shapes, `checked` for any other function. A class stays as it is: see `check`
    on the fields of dataclasses."""
    if whole is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if isinstance(whole, type):
        return whole
    if isinstance(whole, FunctionType) and not has_shapes(whole):
        return checked(whole)
    return _JAXTYPED(whole, typechecker=typechecker)


_JAXTYPED, jaxtyping.jaxtyped = jaxtyping.jaxtyped, jaxtyped  # the decorator that the import hook writes
