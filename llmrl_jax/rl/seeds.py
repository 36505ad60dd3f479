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

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.tracing import RUNS
from llmrl_jax.core.learner import Learner
from llmrl_jax.parallel.memory import available, nbytes


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
    is_seed_word = jnp.arange(words.shape[-1], dtype=words.dtype) % 2
    seed_words = words + jnp.arange(seeds, dtype=words.dtype)[:, None] * is_seed_word
    return jax.random.wrap_key_data(seed_words, impl=jax.random.key_impl(key))


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
    **Raises:** `ValueError` for several runs of a learner that exchanges with the host; a
    single one loses its exchange.
    """
    if learner.exchange is not None:
        check_exchange(seeds)

    def init(key: jax.Array) -> VmappedState:
        states: list[Any] = []
        for run_key in keys(key, seeds):
            state = learner.init(run_key)
            if states and _equal(states[0].frozen, state.frozen):
                state = state.replace(frozen=states[0].frozen)  # so that one copy is in memory
            if not states:
                _check_room(state.replace(frozen=()), seeds)
            states.append(state)
        return stack_runs(states, learner.shared)

    def update(state: VmappedState) -> tuple[VmappedState, dict[str, jax.Array]]:
        leaves, structure = jax.tree.flatten(state.rest)
        shared = _is_shared(state.rest, state.shared)

        def update_run(run: tuple[Any, Any, list[Any]]) -> tuple[Any, list[Any]]:
            params, frozen, run_leaves = run
            remaining = jax.tree.unflatten(structure, _merged(shared, _chosen(leaves, shared, True), run_leaves))
            frozen = frozen if state.own_frozen else state.frozen
            after, metrics = learner.update(remaining.replace(params=params, frozen=frozen, update=state.update))
            leaves_after = jax.tree.leaves(_remaining(after))
            return (after.params, _chosen(leaves_after, shared, False), metrics), _chosen(leaves_after, shared, True)

        runs = (state.params, state.frozen if state.own_frozen else (), _chosen(leaves, shared, False))
        if one_by_one:
            (params, run_leaves, metrics), shared_leaves = jax.lax.map(update_run, runs)
            shared_leaves = [x[0] for x in shared_leaves]
        else:  # which refuses leaves that differ between runs where they are shared
            (params, run_leaves, metrics), shared_leaves = jax.vmap(update_run, out_axes=(0, None), axis_name=RUNS)(
                runs
            )
        remaining = jax.tree.unflatten(structure, _merged(shared, shared_leaves, run_leaves))
        state = state.replace(params=params, rest=remaining, update=state.update + 1)
        return state, {f"{i}/{name}": x[i] for name, x in metrics.items() for i in range(seeds)}

    return Learner(
        init,
        update,
        learner.steps_per_update,
        {f"{i}/{name}": bound for name, bound in learner.bounds.items() for i in range(seeds)},
        {f"{i}/{name}": meaning for name, meaning in learner.alarms.items() for i in range(seeds)},
        unit=learner.unit,
        compiler_options=learner.compiler_options,
    )


def stack_runs(states: Sequence[Any], shared: tuple[str, ...] = ()) -> VmappedState:
    """States of one learner after as many updates as one state. **Arguments:** `shared`, see `Learner.shared`."""
    first, rest = states[0], [_remaining(state) for state in states]
    own_frozen = not all(_equal(first.frozen, state.frozen) for state in states)
    frozen = _stacked(*(state.frozen for state in states)) if own_frozen else first.frozen
    leaves = zip(_is_shared(rest[0], shared), zip(*map(jax.tree.leaves, rest)))
    remaining = [x[0] if is_shared else jnp.stack(x) for is_shared, x in leaves]
    remaining = jax.tree.unflatten(jax.tree.structure(rest[0]), remaining)
    params = _stacked(*(state.params for state in states))
    return VmappedState(params, frozen, remaining, first.update, own_frozen, shared)


def equal_parts(states: Sequence[Any], parts: tuple[str, ...]) -> tuple[str, ...]:
    """The leaves of `parts` that are equal in all states, by their dotted names."""
    named = [jax.tree.leaves_with_path(_remaining(state)) for state in states]
    chosen = _is_shared(_remaining(states[0]), parts)
    return tuple(
        _name(leaves[0][0])
        for is_part, leaves in zip(chosen, zip(*named))
        if is_part and all(_equal(leaves[0][1], x) for _, x in leaves)
    )


def _check_room(state: Any, seeds: int) -> None:
    """**Raises** `ValueError` if so many states are larger than the memory: replay buffers are there for each."""
    needed, free = seeds * nbytes(state), available()
    if free is not None and needed > free:
        raise ValueError(
            f"the states of {seeds} seeds take {needed / 1e9:.1f} GB, but there are {free / 1e9:.1f} GB: lower --seeds "
            "or the size of the replay buffer"
        )


def check_exchange(seeds: int) -> None:
    """**Raises** `ValueError` for several seeds of a learner that exchanges with the host."""
    if seeds > 1:
        raise ValueError(
            f"seeds is {seeds}, but a learner that asks a chat model between updates learns with one seed at a time: "
            "leave --seeds out, and start a run for each --run.seed"
        )


def select_run(state: VmappedState, run: int) -> Any:
    """State of one of several runs."""

    def select(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[run], tree)

    leaves, structure = jax.tree.flatten(state.rest)
    shared = _is_shared(state.rest, state.shared)
    remaining = jax.tree.unflatten(structure, [x if is_shared else x[run] for is_shared, x in zip(shared, leaves)])
    frozen = select(state.frozen) if state.own_frozen else state.frozen
    return remaining.replace(params=select(state.params), frozen=frozen, update=state.update)


def _remaining(state: Any) -> Any:
    return state.replace(params=(), frozen=(), update=())


def _is_shared(state: Any, parts: tuple[str, ...]) -> list[bool]:
    """Return whether a leaf is in one of the `parts`, by name, for each leaf."""
    names = (_name(path) for path, _ in jax.tree.leaves_with_path(state))
    return [any(f"{name}.".startswith(f"{part}.") for part in parts) for name in names]


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _chosen(leaves: list[Any], shared: list[bool], value: bool) -> list[Any]:
    return [x for x, is_shared in zip(leaves, shared, strict=True) if is_shared is value]


def _merged(shared: list[bool], shared_leaves: list[Any], run_leaves: list[Any]) -> list[Any]:
    """Leaves in their order. **Arguments:** `shared_leaves`, the shared ones; `run_leaves`, the others."""
    from_shared, from_run = iter(shared_leaves), iter(run_leaves)
    return [next(from_shared) if is_shared else next(from_run) for is_shared in shared]


def _stacked(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _equal(a: Any, b: Any) -> bool:
    """Return whether two trees of arrays are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x is y or x.shape == y.shape and bool(np.all(np.asarray(x == y))) for x, y in pairs)
