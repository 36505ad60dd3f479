"""What a rewritten program may call, by name: JAX's functions and Python's, each with its bounds.

The guards run while the program is traced, where arrays have shapes and no values. They bound the steps of tracing, the
sizes of arrays, containers and numbers, and they refuse a value of any kind that the program has no business with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from llmrl_jax.advice.sandbox.budget import NUMBERS, Refused, is_array
from llmrl_jax.advice.sandbox.operations import DIGITS, Operations
from llmrl_jax.advice.sandbox.syntax import LARGEST
from llmrl_jax.advice.sandbox.tables import BUILTINS, CONSTANTS, DTYPES, FUNCTIONS, VALUE_TYPES


DEPTH = 16
"""Functions of a program that call one another."""
_GUARDS = "binary operand item slice attribute method made loop unpack store function".split()


class Guards(Operations):
    """The guards of one tracing, with what it has used."""

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

    def loop(self, x: Any) -> Any:
        """What a loop runs over."""
        if is_array(x):
            raise Refused(
                "a loop over an array: loop over range(number) and take items, or use operations on the whole"
            )
        if not isinstance(x, tuple | list | range):
            raise Refused("a loop runs over range(number), a tuple, enumerate or zip")
        if len(x) > self.limits.loop:
            raise Refused(f"a loop of {len(x):,} rounds; at most {self.limits.loop} are allowed")
        self.spend(len(x))
        return x

    def unpack(self, x: Any, number: int) -> Any:
        if not isinstance(x, tuple | list) and not (is_array(x) and x.ndim):
            raise Refused("this value cannot be unpacked into several names")
        if len(x) != number:
            raise Refused(f"{len(x)} values cannot be unpacked into {number} names")
        return [x[i] for i in range(number)]

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
        return self.kept(abs(x))

    def py_round(self, x: Any, digits: int = 0) -> Any:
        if is_array(x):
            raise Refused("round of an array: use jnp.round")
        if not isinstance(x, NUMBERS) or not isinstance(digits, int) or abs(digits) > DIGITS:
            raise Refused(f"round takes a number, and at most {DIGITS} digits")
        return self.kept(round(x, digits) if digits else round(x))

    def _number(self, name: str, kind: type, remedy: str, x: Any) -> Any:
        if is_array(x):
            raise Refused(f"{name}() of an array, whose values are not known while it is traced: {remedy}")
        if not isinstance(x, NUMBERS):
            raise Refused(f"{name}() takes a number")
        return self.kept(kind(x))

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
        made = range(*args)
        if len(made) > self.limits.loop:
            raise Refused(f"a range of {len(made):,} numbers; at most {self.limits.loop} are allowed")
        return made

    def _listed(self, x: Any) -> list[Any]:
        return list(self.loop(x))

    def py_enumerate(self, x: Any, start: int = 0) -> list[Any]:
        return self.made([(start + i, each) for i, each in enumerate(self._listed(x))])

    def py_zip(self, *args: Any) -> list[Any]:
        return self.made(list(zip(*map(self._listed, args), strict=False)))

    def py_reversed(self, x: Any) -> list[Any]:
        return self._listed(x)[::-1]

    def py_list(self, x: Any = ()) -> list[Any]:
        return self.made(self._listed(x))

    def py_tuple(self, x: Any = ()) -> tuple[Any, ...]:
        return self.made(tuple(self._listed(x)))

    def py_dict(self, **values: Any) -> Mapping[str, Any]:
        return self.made(values)
