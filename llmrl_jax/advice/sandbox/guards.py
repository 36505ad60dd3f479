"""Guards: the functions that a rewritten program calls, by name; JAX's and Python's, each with its bounds.

They run while the program is traced, where arrays have shapes and no values. They bound the steps of tracing and the
sizes of arrays, containers and numbers, and refuse a value of any other kind.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.advice.sandbox.gate import LARGEST
from llmrl_jax.advice.sandbox.spec import Limits
from llmrl_jax.advice.sandbox.tables import (
    BUILTINS,
    CONSTANTS,
    DATA,
    DTYPES,
    FUNCTIONS,
    METHODS,
    SIZED,
    UPDATES,
    VALUE_TYPES,
)


NUMBERS = (bool, int, float)
"""Python's numbers, which programs may hold."""


class Refused(Exception):
    """A guard's refusal, at the line of the program where it was raised."""


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def shape(x: Any) -> str:
    return str(tuple(x.shape))


def is_dtype(x: Any) -> bool:
    return isinstance(x, np.dtype) or any(x is kind for kind in (*DTYPES.values(), *VALUE_TYPES.values()))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "@": operator.matmul,
}  # fmt: skip
_SIZE_AT = {"linspace": (2, "num"), "full": (0, "shape"), "one_hot": (1, "num_classes"), "pad": (1, "pad_width")}
"""The size argument of functions of `SIZED`: position and keyword. Of the others, every integer is one."""
_REPEATS_AT = {"array": (4, "ndmin"), "diff": (1, "n"), "round": (1, "decimals")}
"""The argument, position and keyword, that is a number of repetitions, digits or dimensions."""
DIGITS = 16
"""The largest of these, and of the digits of round()."""
DEPTH = 16
"""Functions of a program that call one another."""
_GUARDS = "binary operand item slice attribute method container loop unpack store function".split()


class _AtProperty:
    """`x.at` and `x.at[index]`."""

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any = None):
        self.array, self.index = array, index


class Guards:
    """Guards and resource counters of one trace."""

    def __init__(self, limits: Limits):
        self.limits, self.steps, self.depth = limits, 0, 0

    def namespace(self) -> dict[str, Any]:
        """The free names of a rewritten program. It has no builtins."""
        names: dict[str, Any] = {"__builtins__": {}}
        for name in _GUARDS:
            names[f"guard.{name}"] = getattr(self, name)
        names |= {f"value.{name}": value for name, value in (CONSTANTS | DTYPES | VALUE_TYPES).items()}
        for name, function in (FUNCTIONS | DTYPES).items():
            names[f"function.{name}"] = functools.partial(self.call, name, function)
        for name in BUILTINS:
            names[f"function.{name}"] = getattr(self, f"py_{name}")
        return names

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > self.limits.steps:
            raise Refused(
                f"it takes more than {self.limits.steps:,} steps: use operations on whole arrays instead of loops"
            )

    def bounded(self, x: Any) -> Any:
        """A result, within the bounds of its size."""
        self.spend()
        if is_array(x):
            if x.size > self.limits.elements:
                raise Refused(
                    f"an array of shape {shape(x)} has {x.size:,} elements; at most {self.limits.elements:,} may be"
                )
            if x.ndim > self.limits.dimensions:
                raise Refused(f"an array has {x.ndim} dimensions; at most {self.limits.dimensions} are allowed")
        elif isinstance(x, int) and abs(x) > 2**63:
            raise Refused("a number becomes larger than 2^63")
        elif isinstance(x, tuple | list | dict):
            return self.container(x)
        return x

    def size(self, x: Any, level: int = 0) -> int:
        """Elements of a container, with those of its parts; a part that occurs twice counts twice."""
        if not isinstance(x, tuple | list | dict | range):
            return 1
        if level > 6:
            raise Refused("tuples, lists and dicts are nested more than 6 levels deep")
        total = 1
        for part in x.values() if isinstance(x, dict) else x:
            total += self.size(part, level + 1)
            self.length(total)
        return total

    def container(self, x: Any) -> Any:
        """A container that the program has written."""
        self.spend(self.size(x))
        return x

    def plain(self, x: Any) -> Any:
        """A number, array, type, or a container of these; anything else is refused."""
        if isinstance(x, tuple | list):
            for part in x:
                self.plain(part)
        elif isinstance(x, slice):
            self.plain((x.start, x.stop, x.step))
        elif not (x is None or x is ... or isinstance(x, NUMBERS) or is_array(x) or is_dtype(x)):
            kind = "a dict" if isinstance(x, dict) else "a range" if isinstance(x, range) else "a value of this kind"
            raise Refused(f"{kind} cannot be used here; arrays, numbers, tuples and lists can")
        return x

    def length(self, number: int) -> None:
        if number > self.limits.sequence:
            raise Refused(f"a tuple, list or dict has more than {self.limits.sequence:,} elements")

    # --- operators, items, attributes, methods and functions of arrays ------------------------------------------------

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        sides = (left, right)
        if any(isinstance(x, tuple | list) for x in sides):
            return self._sequence(symbol, left, right)
        for x in sides:
            if not isinstance(x, NUMBERS) and not is_array(x):
                raise Refused(f"the operator {symbol} takes numbers and arrays")
        if all(isinstance(x, int) for x in sides):
            bits = int(left).bit_length() * (right if symbol == "**" else 1)
            bits += right if symbol == "<<" else 0
            if symbol in ("**", "<<") and bits > 63:
                raise Refused("a number becomes larger than 2^63")
        if symbol == "**" and isinstance(right, int) and abs(right) > 64:
            raise Refused("an exponent is too large; at most 64 is allowed")
        if all(is_array(x) for x in sides):
            self._broadcast(symbol, left, right)
        return self.bounded(_BINARY[symbol](left, right))

    def _broadcast(self, symbol: str, left: Any, right: Any) -> None:
        if symbol == "@":
            return
        try:
            np.broadcast_shapes(left.shape, right.shape)
        except ValueError:
            raise Refused(
                f"the shapes {shape(left)} and {shape(right)} do not fit together in the operator {symbol}"
            ) from None

    def _sequence(self, symbol: str, left: Any, right: Any) -> Any:
        if symbol == "+" and any(isinstance(left, kind) and isinstance(right, kind) for kind in (tuple, list)):
            self.length(len(left) + len(right))
            return self.container(left + right)
        if symbol == "*" and isinstance(left, int) != isinstance(right, int):
            sequence, number = (right, left) if isinstance(left, int) else (left, right)
            self.length(len(sequence) * number)
            return self.container(sequence * number)
        if any(map(is_array, (left, right))):
            raise Refused(
                f"the operator {symbol} does not take a list and an array: make an array of the list by jnp.array"
            )
        raise Refused(f"the operator {symbol} does not take these tuples or lists")

    def operand(self, x: Any) -> Any:
        """A side of a comparison."""
        self.spend()
        if isinstance(x, tuple | list):
            for part in x:
                self.operand(part)
        elif x is not None and not isinstance(x, NUMBERS) and not is_array(x) and not is_dtype(x):
            raise Refused("only numbers and arrays are compared")
        return x

    def slice(self, lower: Any, upper: Any, step: Any) -> slice:
        return self.plain(slice(lower, upper, step))

    def item(self, x: Any, index: Any) -> Any:
        self.spend()
        if isinstance(x, dict):
            if not isinstance(index, str):
                raise Refused("a dict is indexed by a literal name")
            if index not in x:
                raise Refused(f"there is no {index!r} in this dict; there is {', '.join(map(repr, x)) or 'nothing'}")
            return x[index]
        if isinstance(index, str):
            raise Refused("only a dict is indexed by a name")
        self.plain(index)
        if isinstance(x, _AtProperty):
            return _AtProperty(x.array, (index,))
        if isinstance(x, tuple | list | range):
            if not isinstance(index, int | slice):
                raise Refused("a tuple or list is indexed by a plain integer; make an array of it by jnp.array")
            return self.bounded(x[index])
        if not is_array(x):
            raise Refused("this value cannot be indexed")
        self.size(index if isinstance(index, tuple | list) else ())
        return self.bounded(
            x[tuple(index) if isinstance(index, tuple) else jnp.asarray(index) if isinstance(index, list) else index]
        )

    def attribute(self, x: Any, name: str) -> Any:
        assert name in DATA
        self.spend()
        if not is_array(x):
            raise Refused(f"only arrays have .{name}")
        return _AtProperty(x) if name == "at" else self.bounded(getattr(x, name))

    def method(self, x: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        self.spend()
        self.arguments(method, args if isinstance(x, _AtProperty) else (x, *args), kwargs)
        if isinstance(x, _AtProperty):
            if method not in UPDATES or x.index is None:
                raise Refused(f"x.at[index] has no method {method}; it has {', '.join(sorted(UPDATES))}")
            return self.bounded(getattr(x.array.at[x.index[0]], method)(*args, **kwargs))
        if not is_array(x):
            raise Refused(f"only arrays have the method {method}")
        if method not in METHODS:
            raise Refused(f"the method {method} belongs to x.at[index]")
        return self.bounded(getattr(x, method)(*args, **kwargs))

    def arguments(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Arguments of a function of arrays. Sizes are checked before the call, since some functions make their
        numbers at once."""
        for value in (*args, *kwargs.values()):
            self.plain(value)
            self.spend(self.size(value))
        last = name.rsplit(".", 1)[-1]
        if last in _REPEATS_AT:
            index, keyword = _REPEATS_AT[last]
            for value in (*args[index : index + 1], kwargs.get(keyword)):
                if any(abs(x) > DIGITS for x in _integers(value)):
                    raise Refused(f"{name} is given {keyword}={value}; at most {DIGITS} is allowed")
        if last in SIZED:
            values = (*args, *kwargs.values())
            if last in _SIZE_AT:
                index, keyword = _SIZE_AT[last]
                values = (*args[index : index + 1], kwargs.get(keyword))
            for value in values:
                product = math.prod(max(abs(x), 1) for x in _integers(value))
                if product > self.limits.elements:
                    raise Refused(f"{name} is given a size of {product:,}; at most {self.limits.elements:,} is allowed")

    def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A function of arrays."""
        self.arguments(name, args, kwargs)
        if name == "jnp.arange" and any(isinstance(x, float) for x in (*args, *kwargs.values())):
            raise Refused("jnp.arange takes integers here; multiply its result")
        return self.bounded(_as_tuple(function(*args, **kwargs)))

    # --- functions of the program, loops, dicts -----------------------------------------------------------------------

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the program."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.spend()
            self.depth += 1
            if self.depth > DEPTH:
                raise Refused(f"functions call one another more than {DEPTH} levels deep; there is no recursion")
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1

        return called

    def loop(self, x: Any, pattern: Any = None) -> Any:
        """The sequence of a loop, whose items fit the pattern that they are assigned to."""
        if is_array(x):
            raise Refused(
                "a loop over an array: loop over range(number) and take items, or use operations on the whole"
            )
        if not isinstance(x, tuple | list | range):
            raise Refused("a loop runs over range(number), a tuple, enumerate or zip")
        if len(x) > self.limits.loop:
            raise Refused(f"a loop of {len(x):,} rounds; at most {self.limits.loop} are allowed")
        self.spend(len(x))
        for item in x if pattern else ():
            self.match(item, pattern)
        return x

    def match(self, x: Any, pattern: tuple[Any, ...] | None) -> None:
        """Refuse a value that is not a sequence as long as a pattern: None for a name, else a tuple of patterns. Python
        would unpack a dict into its keys, which are strings."""
        if pattern is not None:
            self.check_unpackable(x, len(pattern))
            for part, inner in zip(x, pattern) if isinstance(x, tuple | list) else ():
                self.match(part, inner)

    def unpack(self, x: Any, number: int) -> Any:
        self.check_unpackable(x, number)
        return [x[i] for i in range(number)]

    def check_unpackable(self, x: Any, number: int) -> None:
        if not isinstance(x, tuple | list) and not (is_array(x) and x.ndim):
            raise Refused("this value cannot be unpacked into several names")
        if len(x) != number:
            raise Refused(f"{len(x)} values cannot be unpacked into {number} names")

    def store(self, x: Any, key: Any, value: Any) -> None:
        self.spend()
        if not isinstance(x, dict) or not isinstance(key, str):
            raise Refused("arrays and lists cannot be changed in place: use x = x.at[index].set(value)")
        if not isinstance(value, NUMBERS) and not is_array(value):
            raise Refused("a dict is given numbers and arrays")
        self.length(len(x) + 1)
        x[key] = value

    # --- Python's functions -------------------------------------------------------------------------------------------

    def _values(self, name: str, args: tuple[Any, ...]) -> list[Any]:
        """The arguments of `max` and its like: several values, or a sequence of them."""
        values = list(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list | range) else list(args)
        if len(args) == 1 and is_array(args[0]):
            raise Refused(f"{name} of an array: use jnp.{name}")
        if not values:
            raise Refused(f"{name} of nothing")
        for value in values:
            if is_array(value) and name in ("max", "min", "all", "any"):
                remedy = {"max": "jnp.maximum", "min": "jnp.minimum", "all": "&", "any": "|"}[name]
                raise Refused(f"{name} of arrays: use {remedy}")
            self.operand(value)
        return values

    def py_max(self, *args: Any) -> Any:
        return max(self._values("max", args))

    def py_min(self, *args: Any) -> Any:
        return min(self._values("min", args))

    def py_all(self, x: Any) -> Any:
        return all(self._values("all", (x,)))

    def py_any(self, x: Any) -> Any:
        return any(self._values("any", (x,)))

    def py_sum(self, x: Any, start: Any = 0) -> Any:
        if is_array(x):
            raise Refused("sum of an array: use jnp.sum")
        if not isinstance(x, tuple | list | range):
            raise Refused("sum takes a list")
        return functools.reduce(lambda a, b: self.binary("+", a, b), x, start)

    def py_abs(self, x: Any) -> Any:
        if not isinstance(x, NUMBERS) and not is_array(x):
            raise Refused("abs takes a number or an array")
        return self.bounded(abs(x))

    def py_round(self, x: Any, digits: int = 0) -> Any:
        if is_array(x):
            raise Refused("round of an array: use jnp.round")
        if not isinstance(x, NUMBERS) or not isinstance(digits, int) or abs(digits) > DIGITS:
            raise Refused(f"round takes a number, and at most {DIGITS} digits")
        return self.bounded(round(x, digits) if digits else round(x))

    def _number(self, name: str, kind: type, remedy: str, x: Any) -> Any:
        if is_array(x):
            raise Refused(f"{name}() of an array, whose values are not known while it is traced: {remedy}")
        if not isinstance(x, NUMBERS):
            raise Refused(f"{name}() takes a number")
        return self.bounded(kind(x))

    def py_int(self, x: Any) -> Any:
        return self._number("int", int, "use x.astype(jnp.int32)", x)

    def py_float(self, x: Any) -> Any:
        return self._number("float", float, "use x.astype(jnp.float32)", x)

    def py_bool(self, x: Any) -> Any:
        return self._number("bool", bool, "compare it, or use x.astype(jnp.bool_)", x)

    def py_len(self, x: Any) -> int:
        if not isinstance(x, tuple | list | dict | range) and not (is_array(x) and x.ndim):
            raise Refused("this value has no length")
        return len(x)

    def py_range(self, *args: Any) -> range:
        if not 1 <= len(args) <= 3 or not all(isinstance(x, int) and abs(x) <= LARGEST for x in args):
            raise Refused(
                "range takes one to three plain integers; the values of arrays are not known while it is traced"
            )
        numbers = range(*args)
        if len(numbers) > self.limits.loop:
            raise Refused(f"a range of {len(numbers):,} numbers; at most {self.limits.loop} are allowed")
        return numbers

    def _listed(self, x: Any) -> list[Any]:
        return list(self.loop(x))

    def py_enumerate(self, x: Any, start: int = 0) -> list[Any]:
        return self.container([(start + i, item) for i, item in enumerate(self._listed(x))])

    def py_zip(self, *args: Any) -> list[Any]:
        return self.container(list(zip(*map(self._listed, args), strict=False)))

    def py_reversed(self, x: Any) -> list[Any]:
        return self._listed(x)[::-1]

    def py_list(self, x: Any = ()) -> list[Any]:
        return self.container(self._listed(x))

    def py_tuple(self, x: Any = ()) -> tuple[Any, ...]:
        return self.container(tuple(self._listed(x)))

    def py_dict(self, **values: Any) -> Mapping[str, Any]:
        return self.container(values)


def _as_tuple(x: Any) -> Any:
    """Named tuples of JAX's functions, as tuples."""
    return tuple(x) if isinstance(x, tuple) else x


def _integers(x: Any) -> list[int]:
    if isinstance(x, tuple | list):
        return [number for part in x for number in _integers(part)]
    return [int(x)] if isinstance(x, int | np.integer) else []
