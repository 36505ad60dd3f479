"""Functions as accelerators compute them: the factors of matrix products are rounded to TF32 or bfloat16, unless the
product asks for the highest precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal


BITS = {"bfloat16": 7, "tensorfloat32": 10}
"""Bits of the mantissa of a factor."""


def rounded(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """`function`, with the float32 factors of its products rounded as in `kind`, inside calls and loops too."""

    def narrow(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_precision(x, 8, BITS[kind]) if x.dtype == jnp.float32 else x

    def run(jaxpr: ClosedJaxpr, args: Any) -> list[Any]:
        values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts)) | dict(zip(jaxpr.jaxpr.invars, args, strict=True))

        def read(x: Any) -> Any:
            return x.val if isinstance(x, Literal) else values[x]

        for equation in jaxpr.jaxpr.eqns:
            given, params, name = [read(x) for x in equation.invars], equation.params, equation.primitive.name
            if name == "dot_general":
                if not is_exact(equation):
                    given = [narrow(x) for x in given]
                out: Any = equation.primitive.bind(*given, **params)
            elif name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
                out = run(params["jaxpr"] if name in ("jit", "pjit") else params["call_jaxpr"], given)
            elif name == "scan":
                out = scan(params, given)
            elif name == "while":
                out = loop(params, given)
            elif name == "cond":
                branches = [functools.partial(run, branch) for branch in params["branches"]]
                out = jax.lax.switch(given[0], branches, given[1:])
            else:
                out = equation.primitive.bind(*given, **params)
            outs = out if equation.primitive.multiple_results else [out]
            values |= dict(zip(equation.outvars, outs, strict=True))
        return [read(x) for x in jaxpr.jaxpr.outvars]

    def scan(params: Any, given: list[Any]) -> list[Any]:
        consts, carries = params["num_consts"], params["num_carry"]
        fixed, start, xs = given[:consts], given[consts : consts + carries], given[consts + carries :]

        def body(carry: Any, x: Any) -> Any:
            out = run(params["jaxpr"], [*fixed, *carry, *x])
            return out[:carries], out[carries:]

        after, ys = jax.lax.scan(body, start, xs, params["length"])
        return [*after, *ys]

    def loop(params: Any, given: list[Any]) -> list[Any]:
        tests, steps = params["cond_nconsts"], params["body_nconsts"]
        tested, fixed, start = given[:tests], given[tests : tests + steps], given[tests + steps :]
        goes_on = lambda carry: run(params["cond_jaxpr"], [*tested, *carry])[0]  # noqa: E731
        return jax.lax.while_loop(goes_on, lambda carry: run(params["body_jaxpr"], [*fixed, *carry]), start)

    def call(*args: Any) -> Any:
        jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        return jax.tree.unflatten(jax.tree.structure(shape), run(jaxpr, jax.tree.leaves(args)))

    return call


def is_exact(equation: Any) -> bool:
    """Return whether a product asks for the highest precision of both factors."""
    precision = equation.params["precision"]
    return precision is not None and all(p == jax.lax.Precision.HIGHEST for p in precision)


def products(jaxpr: Any) -> Iterator[Any]:
    """Every product of float32 matrices in a program, inside calls, loops and branches too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            if all(x.aval.dtype == jnp.float32 for x in equation.invars):
                yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from products(inner)
