"""Programs that trace under each of JAX's settings: loops inside `jax.shard_map`, 64-bit numbers, and NumPy's promotion
of dtypes and ranks where a process forbids it; and the platform that a program is traced for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np


Function = TypeVar("Function", bound=Callable[..., Any])

_PLATFORM: ContextVar[str | None] = ContextVar("_PLATFORM", default=None)


def platform() -> str:
    """The platform that programs are traced for, `cpu`, `gpu` or `tpu`: that of `tracing_for`, else of the default
    device. What depends on the device is to ask here, so that it is right for devices that are absent too."""
    return _PLATFORM.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """In this context programs are traced for a platform, whose devices may be absent; nothing can be run for it.

    JAX's caches, which do not know of the platform, are cleared at both ends.
    """
    token = _PLATFORM.set(platform)
    jax.clear_caches()
    try:
        yield
    finally:
        _PLATFORM.reset(token)
        jax.clear_caches()


def standard_promotion(function: Function) -> Function:
    """A function that runs under JAX's default rules for mixed dtypes and ranks, whatever the process has set.

    `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` check a user's own code. This package
    and its dependencies, such as Adam of optax, rely on the defaults. The settings of the process hold again when the
    function returns.
    """

    @functools.wraps(function)
    def scoped(*args, **kwargs):
        config: Any = jax.config
        if config.jax_numpy_rank_promotion == "allow" and config.jax_numpy_dtype_promotion == "standard":
            return function(*args, **kwargs)
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return scoped  # type: ignore[return-value]


def default_types(function: Function) -> Function:
    """A function that computes as in a process with JAX's default settings: `standard_promotion`, and 32 bits.

    Under `jax_enable_x64` numbers without a dtype would have 64 bits, and draws without one other values. 64-bit arrays
    among the arguments become 32-bit ones, as they are without the setting.
    """

    @functools.wraps(function)
    def narrow(*args, **kwargs):
        return call_with_default_types(function, *args, **kwargs)

    return narrow  # type: ignore[return-value]


def call_with_default_types(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` as by `default_types`."""
    function = standard_promotion(function)
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return function(*args, **kwargs)
    args, kwargs = jax.tree.map(_in_32_bits, (args, kwargs))
    with jax.enable_x64(False):
        return function(*args, **kwargs)


WIDE = {np.dtype(f"{kind}64"): np.dtype(f"{kind}32") for kind in ("int", "uint", "float")}
WIDE[np.dtype("complex128")] = np.dtype("complex64")


def _in_32_bits(x: Any) -> Any:
    if isinstance(x, jax.Array | np.ndarray) and x.dtype in WIDE:
        return x.astype(WIDE[x.dtype])
    return x


RUNS = "runs"
"""The axis of several runs of a learner in one program (`llmrl_jax.rl.seeds`)."""


def largest_of_runs(x: Any) -> Any:
    """The largest value of `x` over the runs that one program computes; `x` itself in the program of a single run.

    `jax.vmap` computes all branches of a choice that differs between runs. A choice whose larger values serve the
    smaller ones too, such as a padded length, is made once for all of them by this.
    """
    try:
        jax.lax.axis_size(RUNS)
    except NameError:  # there is no such axis
        return x
    return jax.lax.pmax(x, RUNS)


def _varying(x: Any) -> frozenset[str]:
    """The axes of a `shard_map` over which a value differs between devices."""
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    return aval.manual_axis_type.varying


def _vary(tree: Any, like: Any) -> Any:
    """A tree whose leaves vary over the axes of those of `like` too."""

    def vary(x, y):
        axes = tuple(sorted(_varying(y) - _varying(x)))
        return jax.lax.pcast(x, axes, to="varying") if axes else x

    return jax.tree.map(vary, tree, like)


def _same_structure(a: Any, b: Any) -> bool:
    structure: Any = jax.tree.structure(a)
    return structure == jax.tree.structure(b)


def cotangents(gradients: Any, primals: Any) -> Any:
    """The gradients of a rule of `jax.custom_vjp`, with the types that `jax.shard_map` demands: that of an argument
    that all devices share is summed over them, as by JAX's own rules.

    **Arguments:** `gradients`, a tree of arrays; `primals`, the arguments, a tree of the same structure.
    """

    def settle(gradient, x):
        axes = tuple(sorted(_varying(gradient) - _varying(x)))
        return jax.lax.psum(gradient, axes) if axes else gradient

    return _vary(jax.tree.map(settle, gradients, primals), primals)


def _in_shard_map() -> bool:
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _carry(body: Callable[[Any], Any], init: Any) -> Any:
    """The start of a loop, varying over devices as it does after the iterations.

    Inside `jax.shard_map` a loop must return a carry of the type it got, and whether the devices hold different values
    is a part of the type: a constant at the start does not have the type of a result computed from sharded rows.
    """
    if not _in_shard_map():
        return init
    while True:
        after = jax.eval_shape(body, init)
        if not _same_structure(after, init):
            return init  # which `jax.lax` refuses with its own message
        varied = _vary(init, after)
        if all(x is y for x, y in zip(jax.tree.leaves(varied), jax.tree.leaves(init))):
            return init
        init = varied


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """`jax.lax.while_loop`, whose carry may start as a constant inside `jax.shard_map`."""
    return jax.lax.while_loop(cond, body, _carry(body, init))


def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, **options: Any) -> Any:
    """`jax.lax.fori_loop`, whose index is int32, and whose carry may start as a constant inside `jax.shard_map`."""
    lower, upper = (np.int32(x) if isinstance(x, int) else x for x in (lower, upper))
    return jax.lax.fori_loop(lower, upper, body, _carry(functools.partial(body, lower), init), **options)


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """`jax.lax.scan`, whose carry may start as a constant inside `jax.shard_map`."""

    def first_step(carry):
        return body(carry, jax.tree.map(lambda x: jnp.asarray(x)[0], xs))[0]

    return jax.lax.scan(body, _carry(first_step, init), xs, length, **options)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`jax.lax.switch`, of whose branches some may return constants inside `jax.shard_map`."""
    return jax.lax.switch(index, _alike(branches, operands), *operands)


def cond(pred: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *operands: Any) -> Any:
    """`jax.lax.cond`, of whose branches one may return constants inside `jax.shard_map`."""
    return jax.lax.cond(pred, *_alike((on_true, on_false), operands), *operands)


def _alike(branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Sequence[Callable[..., Any]]:
    """Branches whose results vary over the same axes."""
    if not _in_shard_map():
        return branches
    results = [jax.eval_shape(branch, *operands) for branch in branches]
    if not all(_same_structure(result, results[0]) for result in results):
        return branches  # which `jax.lax` refuses with its own message

    def varied(branch):
        return lambda *operands: functools.reduce(_vary, results, branch(*operands))

    return [varied(branch) for branch in branches]
