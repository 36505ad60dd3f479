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
    own_frozen: bool = struct.field(pytree_node=False, default=False)
    """Whether every run has a frozen part of its own."""
    shared: tuple[str, ...] = struct.field(pytree_node=False, default=())
    """See `Learner.shared`."""


def seed_keys(key: jax.Array, seeds: int) -> jax.Array:
    """The keys of the seeds `seed`, `seed + 1`, ..., `[seeds]`, from that of `seed`; all are below 2^32, so that every
    second word of a key is its seed."""
    words = jax.random.key_data(key)
    odd = jnp.arange(words.shape[-1], dtype=words.dtype) % 2
    each = words + jnp.arange(seeds, dtype=words.dtype)[:, None] * odd
    return jax.random.wrap_key_data(each, impl=jax.random.key_impl(key))


def vmap_learners(
    learner: Learner,
    seeds: int,
    keys: Callable[[jax.Array, int], jax.Array] = seed_keys,
    *,
    one_by_one: bool = False,
) -> Learner:
    """Several runs of a learner in one program.

    **Arguments:** `seeds`, how many, at least 1; `keys`, from the key of `init` and their number to the keys of the
    runs; `one_by_one`, whether each update computes one run after another and not all at once: where a single run
    occupies the device, larger arrays are slower, and need more memory.
    **Returns:** a learner of a `VmappedState`, whose metrics have the number of the run as prefix, `0/loss`. Its steps
    are those of one run. `select_run(state, i)` is the state of one.
    **Raises:** `ValueError` for a learner that exchanges with the host.
    """
    if learner.exchange is not None:
        check_exchange(seeds)

    def init(key: jax.Array) -> VmappedState:
        states: list[Any] = []
        for one in keys(key, seeds):
            state = learner.init(one)
            if states and _equal(states[0].frozen, state.frozen):
                state = state.replace(frozen=states[0].frozen)  # so that one copy is in memory
            states.append(state)
        first, own = states[0], any(state.frozen is not states[0].frozen for state in states)
        frozen = _stacked(*(state.frozen for state in states)) if own else first.frozen
        leaves = [jax.tree.leaves(_rest(state)) for state in states]
        rest = [x[0] if one else jnp.stack(x) for one, x in zip(_is_shared(_rest(first), learner.shared), zip(*leaves))]
        rest = jax.tree.unflatten(jax.tree.structure(_rest(first)), rest)
        params = _stacked(*(state.params for state in states))
        return VmappedState(params, frozen, rest, first.update, own, learner.shared)

    def update(state: VmappedState) -> tuple[VmappedState, dict[str, jax.Array]]:
        leaves, structure = jax.tree.flatten(state.rest)
        shared = _is_shared(state.rest, state.shared)

        def one(run: tuple[Any, Any, list[Any]]) -> tuple[Any, list[Any]]:
            params, frozen, own = run
            rest = jax.tree.unflatten(structure, _merged(shared, _chosen(leaves, shared, True), own))
            frozen = frozen if state.own_frozen else state.frozen
            after, metrics = learner.update(rest.replace(params=params, frozen=frozen, update=state.update))
            leaves_after = jax.tree.leaves(_rest(after))
            return (after.params, _chosen(leaves_after, shared, False), metrics), _chosen(leaves_after, shared, True)

        runs = (state.params, state.frozen if state.own_frozen else (), _chosen(leaves, shared, False))
        if one_by_one:
            (params, own, metrics), same = jax.lax.map(one, runs)
            same = [x[0] for x in same]
        else:  # which refuses leaves that differ between runs where they are shared
            (params, own, metrics), same = jax.vmap(one, out_axes=(0, None), axis_name=RUNS)(runs)
        rest = jax.tree.unflatten(structure, _merged(shared, same, own))
        state = state.replace(params=params, rest=rest, update=state.update + 1)
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

    def own(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[run], tree)

    leaves, structure = jax.tree.flatten(state.rest)
    shared = _is_shared(state.rest, state.shared)
    rest = jax.tree.unflatten(structure, [x if same else x[run] for same, x in zip(shared, leaves)])
    frozen = own(state.frozen) if state.own_frozen else state.frozen
    return rest.replace(params=own(state.params), frozen=frozen, update=state.update)


def _rest(state: Any) -> Any:
    return state.replace(params=(), frozen=(), update=())


def _is_shared(rest: Any, parts: tuple[str, ...]) -> list[bool]:
    """Whether a leaf is in one of the `parts`, by name, for each leaf."""
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(rest))
    return [any(f"{name}.".startswith(f"{part}.") for part in parts) for name in names]


def _chosen(leaves: list[Any], shared: list[bool], which: bool) -> list[Any]:
    return [x for x, same in zip(leaves, shared, strict=True) if same is which]


def _merged(shared: list[bool], same: list[Any], own: list[Any]) -> list[Any]:
    """Leaves in their order. **Arguments:** `same`, the shared ones; `own`, the others."""
    first, other = iter(same), iter(own)
    return [next(first) if one else next(other) for one in shared]


def _stacked(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _equal(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(x is y or x.shape == y.shape and bool(np.all(np.asarray(x == y))) for x, y in pairs)
