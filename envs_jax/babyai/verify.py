"""Success and failure of missions: BabyAI's verifiers with their memories (`minigrid.envs.babyai.core.verifier`)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import DONE, DOOR, DROP, OPEN, PICKUP, TOGGLE
from envs_jax.babyai.mission import AFTER, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT, SINGLE
from envs_jax.babyai.state import State, id_of, state_of, type_of


WORD = 32


def object_set(mask: jax.Array) -> jax.Array:
    """A bool mask `[..., O]` over objects as words of bits: uint32 `[..., S]`, `S = ceil(O / 32)`."""
    count = -(-mask.shape[-1] // WORD)
    padded = jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, count * WORD - mask.shape[-1])])
    bits = np.uint32(1) << np.arange(WORD, dtype=np.uint32)
    return jnp.where(padded.reshape(*mask.shape[:-1], count, WORD), bits, np.uint32(0)).sum(-1, dtype=jnp.uint32)


def members(objects: jax.Array, n: int) -> jax.Array:
    """A set uint32 `[..., S]` as a mask over the first `n` objects: bool `[..., n]`."""
    ids = np.arange(n)
    return objects[..., ids // WORD] >> (ids % WORD).astype(np.uint32) & 1 == 1


def member(objects: jax.Array, id: jax.Array) -> jax.Array:
    """Return whether the object `id` `[...]` (-1: none) is in a set uint32 `[S]`: bool `[...]`."""
    value, word = jnp.zeros(jnp.shape(id), jnp.uint32), jnp.asarray(id) // WORD
    for k in range(objects.shape[-1]):
        value = jnp.where(word == k, objects[..., k], value)
    return (value >> (jnp.asarray(id) % WORD).astype(jnp.uint32) & 1 == 1) & (id >= 0)


Verdict = tuple[jax.Array, jax.Array]
"""Whether a clause succeeds, and whether it fails: bool `[]` each."""


def _holds(state: State, action, front, front_cell, clauses: tuple[int, ...], kinds: frozenset[int]):
    """The verdicts of the clauses on a state and an action, if they are checked: `{clause: Verdict}`.

    **Arguments:** as of `verify`."""
    height = state.grid.shape[1]
    hand = id_of(state.carrying)
    at_front = beside_front = jnp.zeros_like(state.mover[0])
    if GO_TO in kinds:
        at_front = object_set(state.tracked == front[0] * height + front[1])
    if PUT_NEXT in kinds:
        x, y = state.tracked // height, state.tracked % height
        adjacent = jnp.abs(x - front[0]) + jnp.abs(y - front[1]) == 1
        beside_front = object_set(adjacent & (state.tracked >= 0))

    def judge(c: int) -> Verdict:
        kind, held_id, strict = state.mission.kind[c], state.held[c], state.mission.strict[c]
        success, failure = jnp.bool_(False), jnp.bool_(False)
        if GO_TO in kinds:
            success |= (kind == GO_TO) & jnp.any(at_front & state.mover[c] != 0)
        if OPEN_DOOR in kinds:
            attempted = (kind == OPEN_DOOR) & (action == TOGGLE)
            right = member(state.mover[c], id_of(front_cell)) & (state_of(front_cell) == OPEN)
            success |= attempted & right
            failure |= attempted & ~right & strict & (type_of(front_cell) == DOOR)
        if PICK_UP in kinds:
            attempted = (kind == PICK_UP) & (action == PICKUP)
            right = (held_id < 0) & member(state.mover[c], hand)
            success |= attempted & right
            failure |= attempted & ~right & strict & (hand >= 0)
        if PUT_NEXT in kinds:
            dropped = (kind == PUT_NEXT) & (action == DROP) & (hand < 0)
            success |= dropped & member(state.mover[c], held_id) & jnp.any(beside_front & state.fixed[c] != 0)
            failure |= (kind == PUT_NEXT) & (action == PICKUP) & strict & (hand >= 0)
        return success, failure

    return {c: judge(c) for c in clauses}


def _sequence(state: State, halves: list[list[int]], verdicts: dict[int, Verdict], absent: dict[int, jax.Array]):
    """Evaluate the order of the halves.

    **Returns:** whether the mission has succeeded, bool `[]`; and for each half whether it is checked, and whether it
    cannot fail yet, because this very action completes the other one."""
    order = state.mission.order

    def completed(half: list[int], now: bool = True):
        results = [state.met[c] | (verdicts[c][0] if now else False) | (absent[c] if c % 2 else False) for c in half]
        return functools.reduce(jnp.logical_and, results)

    # A half counts as done including the effect of this action, and the later half is checked only then. As clauses are
    # independent, the two halves can be judged in any order.
    first, never = completed(halves[0]), jnp.bool_(False)
    if not halves[1]:
        return first, [jnp.bool_(True), never], [never, never]
    second = completed(halves[1])
    active = [(order != AFTER) | second, (order == AFTER) | (order == BEFORE) & first]
    lenient = [(order == AFTER) & ~completed(halves[1], False), (order == BEFORE) & ~completed(halves[0], False)]
    return first & (second | (order == SINGLE)), active, lenient


def verify(
    state: State,
    action: jax.Array,
    front: jax.Array,
    front_cell: jax.Array,
    clauses: tuple[int, ...],
    kinds: frozenset[int],
    *,
    done_actions: bool = False,
    compat: bool = False,
) -> tuple[State, jax.Array, jax.Array]:
    """Judge the mission after an action.

    **Arguments:** `state`, after the action, with `tracked` refreshed if the action was a drop; `action`, int32 `[]`;
    `front`, int32 `[2]`, the cell in front of the agent now; `front_cell`, its packed content; `clauses` and `kinds`,
    the clauses and clause kinds that missions of this level may have (others are not computed); `done_actions`, whether
    a clause only succeeds by the action `done` on the step after its condition held, while any other `done` fails it;
    `compat`, minigrid's way of failing sequences, see below.
    **Returns:** `(state, success, failure)`, the state with updated memories.

    A clause is checked only while it is active: the second half of a sequence from the step on which the first one
    succeeds (this step included), and neither half after it has succeeded. Its memory of the carried object is updated
    only when it is checked, as in minigrid.

    The action that completes the first half of a sequence does not fail the second. In minigrid it does: a strict "open
    A, then open B" fails when A opens, and so does every sequence of `done_actions`; there, a premature `done` never
    fails an `and` either.
    """
    hand = id_of(state.carrying)
    holds = _holds(state, action, front, front_cell, clauses, kinds)
    claims = action == DONE
    verdicts = holds
    if done_actions:
        verdicts = {c: (claims & state.matched[c], claims & ~state.matched[c]) for c in clauses}
    halves = [[c for c in clauses if c // 2 == h] for h in (0, 1)]
    absent = {c: state.mission.kind[c] == NO_CLAUSE for c in clauses}
    success, active, lenient = _sequence(state, halves, verdicts, absent)
    completed, held_ids, matched, failure = list(state.met), list(state.held), list(state.matched), jnp.bool_(False)
    bad = {}
    for c in clauses:
        consulted = active[c // 2] & ~state.met[c]
        ok, wrong = verdicts[c]
        completed[c] = completed[c] | consulted & ok
        if {PICK_UP, PUT_NEXT} & kinds:
            held_ids[c] = jnp.where(consulted, hand.astype(jnp.int8), held_ids[c])
        if done_actions:
            matched[c] = jnp.where(consulted & ~claims, holds[c][0], matched[c])
        bad[c] = consulted & wrong if compat else consulted & wrong & ~lenient[c // 2]
    for half in halves:
        # a failed side of an `and` does not fail the mission, unless both sides fail on a `done` action
        both_failed = (
            bad[half[0]] & bad[half[1]] if len(half) == 2 and done_actions and not compat else jnp.bool_(False)
        )
        if half:
            single = absent[half[1]] if len(half) == 2 else jnp.bool_(True)
            failure |= bad[half[0]] & single | both_failed
    state = state.replace(met=jnp.stack(completed), held=jnp.stack(held_ids), matched=jnp.stack(matched))
    return state, success, failure
