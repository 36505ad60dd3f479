"""Operations of arrays and numbers, each with its bounds: a rewritten program calls these."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from llmrl_jax.advice.sandbox.budget import NUMBERS, Budget, Refused, is_array, is_dtype, shape
from llmrl_jax.advice.sandbox.tables import DATA, METHODS, SIZED, UPDATES


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "@": operator.matmul,
}  # fmt: skip
_SIZE_AT = {"linspace": (2, "num"), "full": (0, "shape"), "one_hot": (1, "num_classes"), "pad": (1, "pad_width")}
"""Where the size of a function of `SIZED` stands, if not every integer is one."""
_FEW = {"diff": (1, "n"), "round": (1, "decimals")}
"""Where a number stands that some function repeats its work by."""
DIGITS = 16
"""The largest of these, and of the digits of round()."""


class _At:
    """`x.at` and `x.at[index]`."""

    __slots__ = ("array", "index")

    def __init__(self, array: Any, index: Any = None):
        self.array, self.index = array, index


class Operations(Budget):
    """What stands behind operators, items, attributes, methods and functions of arrays."""

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
        return self.kept(_BINARY[symbol](left, right))

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
            return self.made(left + right)
        if symbol == "*" and isinstance(left, int) != isinstance(right, int):
            one, number = (right, left) if isinstance(left, int) else (left, right)
            self.length(len(one) * number)
            return self.made(one * number)
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
        return self.known(slice(lower, upper, step))

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
        self.known(index)
        if isinstance(x, _At):
            return _At(x.array, (index,))
        if isinstance(x, tuple | list | range):
            if not isinstance(index, int | slice):
                raise Refused("a tuple or list is indexed by a plain integer; make an array of it by jnp.array")
            return self.kept(x[index])
        if not is_array(x):
            raise Refused("this value cannot be indexed")
        self.size(index if isinstance(index, tuple | list) else ())
        return self.kept(
            x[tuple(index) if isinstance(index, tuple) else jnp.asarray(index) if isinstance(index, list) else index]
        )

    def attribute(self, x: Any, name: str) -> Any:
        assert name in DATA
        self.spend()
        if not is_array(x):
            raise Refused(f"only arrays have .{name}")
        return _At(x) if name == "at" else self.kept(getattr(x, name))

    def method(self, x: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        self.spend()
        self.arguments(method, args if isinstance(x, _At) else (x, *args), kwargs)
        if isinstance(x, _At):
            if method not in UPDATES or x.index is None:
                raise Refused(f"x.at[index] has no method {method}; it has {', '.join(sorted(UPDATES))}")
            return self.kept(getattr(x.array.at[x.index[0]], method)(*args, **kwargs))
        if not is_array(x):
            raise Refused(f"only arrays have the method {method}")
        if method not in METHODS:
            raise Refused(f"the method {method} belongs to x.at[index]")
        return self.kept(getattr(x, method)(*args, **kwargs))

    def arguments(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Arguments of a function of arrays. Sizes are checked before the call, since some functions make their
        numbers at once."""
        for value in (*args, *kwargs.values()):
            self.known(value)
            self.spend(self.size(value))
        last = name.rsplit(".", 1)[-1]
        if last in _FEW:
            at, keyword = _FEW[last]
            for value in (*args[at : at + 1], kwargs.get(keyword)):
                if any(abs(x) > DIGITS for x in _integers(value)):
                    raise Refused(f"{name} is given {keyword}={value}; at most {DIGITS} is allowed")
        if last in SIZED:
            values = (*args, *kwargs.values())
            if last in _SIZE_AT:
                at, keyword = _SIZE_AT[last]
                values = (*args[at : at + 1], kwargs.get(keyword))
            for value in values:
                product = math.prod(max(abs(x), 1) for x in _integers(value))
                if product > self.limits.elements:
                    raise Refused(f"{name} is given a size of {product:,}; at most {self.limits.elements:,} is allowed")

    def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A function of arrays."""
        self.arguments(name, args, kwargs)
        if name == "jnp.arange" and any(isinstance(x, float) for x in (*args, *kwargs.values())):
            raise Refused("jnp.arange takes integers here; multiply its result")
        return self.kept(_plain(function(*args, **kwargs)))


def _plain(x: Any) -> Any:
    """Named tuples of JAX's functions, as tuples."""
    return tuple(x) if isinstance(x, tuple) else x


def _integers(x: Any) -> list[int]:
    if isinstance(x, tuple | list):
        return [number for part in x for number in _integers(part)]
    return [int(x)] if isinstance(x, int | np.integer) else []
