"""Several seeds of a learner in one program, by vmap.

`vmap_learners` makes one `Learner` of several runs of another: run `i` begins with the key of `seed + i` and computes
what it would alone, up to rounding. Neither the learner nor the loop knows of it. Some of the state exists once:

* the frozen part, where it is the same for all keys, as loaded weights and recorded data are;
* the counter of updates, and what `Learner.shared` names. They are not batched, so that a branch that depends on them
  stays a branch: `jax.vmap` computes both sides of others.

A branch whose sides are equal up to rounding, such as a padded length, is chosen for all runs by
`envs_jax.tracing.largest_of_runs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.tracing import RUNS
from llmrl_jax.core.learner import Learner


@struct.dataclass
class VmappedState:
    """The states of several runs, leaves `[R, ...]`, except for what is the same in all."""

    params: Any
    frozen: Any
    rest: Any
    """The runs' states without parameters, frozen part and counter."""
    update: jax.Array
    """int32 `[]`."""
    frozen_axis: int | None = struct.field(pytree_node=False, default=None)
    """0 if every run has a frozen part of its own; None if they share it."""
    shared: tuple[str, ...] = struct.field(pytree_node=False, default=())
    """See `Learner.shared`."""


def seed_keys(key: jax.Array, seeds: int) -> jax.Array:
    """The keys of the seeds `seed`, `seed + 1`, ..., `[seeds]`, from that of `seed`; all are below 2^32, so that every
    second word of a key is its seed."""
    words = jax.random.key_data(key)
    odd = jnp.arange(words.shape[-1], dtype=words.dtype) % 2
    each = words + jnp.arange(seeds, dtype=words.dtype)[:, None] * odd
    return jax.random.wrap_key_data(each, impl=jax.random.key_impl(key))


def vmap_learners(learner: Learner, seeds: int, keys: Callable[[jax.Array, int], jax.Array] = seed_keys) -> Learner:
    """Several runs of a learner in one program.

    **Arguments:** `seeds`, how many, at least 1; `keys`, from the key of `init` and their number to the keys of the
    runs.
    **Returns:** a learner of a `VmappedState`, whose metrics have the number of the run as prefix, `0/loss`. Its steps
    are those of one run. `select_run(state, i)` is the state of one.
    **Raises:** `ValueError` for a learner that exchanges with the host.
    """
    if learner.exchange is not None:
        check_exchange(seeds)

    def init(key: jax.Array) -> VmappedState:
        first, *others = (learner.init(one) for one in keys(key, seeds))
        own = not all(_equal(first.frozen, other.frozen) for other in others)
        frozen = _stacked([first.frozen, *(other.frozen for other in others)]) if own else first.frozen
        params = _stacked([first.params, *(other.params for other in others)])
        rest = [_rest(state) for state in (first, *others)]
        axes = iter(_axes(rest[0], learner.shared))
        stacked = jax.tree.map(lambda x, *xs: x if next(axes) is None else _stack(x, *xs), *rest)
        return VmappedState(params, frozen, stacked, first.update, 0 if own else None, learner.shared)

    def update(state: VmappedState) -> tuple[VmappedState, dict[str, jax.Array]]:
        leaves, structure = jax.tree.flatten(state.rest)
        axes = _axes(state.rest, state.shared)

        def one(params: Any, frozen: Any, leaves: list[Any]) -> tuple[Any, list[Any], dict[str, jax.Array]]:
            own = structure.unflatten(leaves).replace(params=params, frozen=frozen, update=state.update)
            after, metrics = learner.update(own)
            return after.params, jax.tree.leaves(_rest(after)), metrics

        params, leaves, metrics = jax.vmap(
            one, in_axes=(0, state.frozen_axis, axes), out_axes=(0, axes, 0), axis_name=RUNS, axis_size=seeds
        )(state.params, state.frozen, leaves)
        state = state.replace(params=params, rest=structure.unflatten(leaves), update=state.update + 1)
        return state, {f"{i}/{name}": x[i] for name, x in metrics.items() for i in range(seeds)}

    return Learner(
        init,
        update,
        learner.steps_per_update,
        {f"{i}/{name}": bound for name, bound in learner.bounds.items() for i in range(seeds)},
        unit=learner.unit,
        compiler_options=learner.compiler_options,
    )


def check_exchange(seeds: int) -> None:
    """**Raises** `ValueError` for several seeds of a learner that exchanges with the host."""
    if seeds > 1:
        raise ValueError(
            f"seeds is {seeds}, but a learner that asks a chat model between updates learns with one seed at a time: "
            "leave --seeds out, and start a run for each --run.seed"
        )


def select_run(state: VmappedState, run: int) -> Any:
    """The state of one of several runs."""
    frozen = state.frozen if state.frozen_axis is None else jax.tree.map(lambda x: x[run], state.frozen)
    axes = iter(_axes(state.rest, state.shared))
    rest = jax.tree.map(lambda x: x if next(axes) is None else x[run], state.rest)
    params = jax.tree.map(lambda x: x[run], state.params)
    return rest.replace(params=params, frozen=frozen, update=state.update)


def _rest(state: Any) -> Any:
    return state.replace(params=(), frozen=(), update=())


def _axes(rest: Any, shared: tuple[str, ...]) -> list[int | None]:
    """The axis of runs of each leaf; None for those that are shared."""
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(rest))
    return [None if any(f"{name}.".startswith(f"{part}.") for part in shared) else 0 for name in names]


def _stack(*leaves: Any) -> jax.Array:
    return jnp.stack(leaves)


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(_stack, *trees)


def _equal(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(x is y or x.shape == y.shape and bool(np.all(np.asarray(x == y))) for x, y in pairs)
