"""Has the mission succeeded? BabyAI's verifiers, their memories included (glam reference, section 6.5)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import DOOR, DROP, OPEN, PICKUP, TOGGLE
from envs_jax.babyai.mission import AFTER, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT, SINGLE
from envs_jax.babyai.state import State, id_of, state_of, type_of


def object_set(mask: jax.Array) -> jax.Array:
    """A bool mask `[..., O]` over objects as bits of a uint32 `[...]`."""
    bits = np.uint32(1) << np.arange(mask.shape[-1], dtype=np.uint32)
    return jnp.where(mask, bits, np.uint32(0)).sum(-1, dtype=jnp.uint32)


def member(objects: jax.Array, id: jax.Array) -> jax.Array:
    """Whether the object `id` (-1: none) is in a set of bits."""
    bit = objects >> jnp.maximum(id, 0).astype(jnp.uint32) & 1
    return (bit == 1) & (id >= 0)


def verify(
    state: State,
    action: jax.Array,
    front: jax.Array,
    front_cell: jax.Array,
    clauses: tuple[int, ...],
    kinds: frozenset[int],
) -> tuple[State, jax.Array, jax.Array]:
    """Judge the mission after an action.

    **Arguments:** `state`, after the action, with `tracked` refreshed where the action was a drop; `action`, int32
    `[]`; `front`, int32 `[2]`, the cell in front of the agent now; `front_cell`, its packed content; `clauses` and
    `kinds`, the clauses and kinds of clause that missions of this level may have (others are never looked at).
    **Returns:** `(state, success, failure)`, the state with its memories written.

    A clause is consulted only while it matters: the second half of a sequence from the step on which the first one
    succeeded (that step included), and neither half once it has succeeded. Its memory of the carried object is
    written only when it is consulted, as in minigrid.
    """
    height = state.grid.shape[1]
    front_index = front[0] * height + front[1]
    hand = id_of(state.carrying)
    at_front = beside_front = jnp.uint32(0)
    if GO_TO in kinds:
        at_front = object_set(state.tracked == front_index)
    if PUT_NEXT in kinds:
        x, y = state.tracked // height, state.tracked % height
        near = jnp.abs(x - front[0]) + jnp.abs(y - front[1]) == 1
        beside_front = object_set(near & (state.tracked >= 0))

    def judge(c: int):
        """Whether clause `c` succeeds or fails, if it is consulted."""
        kind, held, strict = state.mission.kind[c], state.held[c], state.mission.strict[c]
        success, failure = jnp.bool_(False), jnp.bool_(False)
        if GO_TO in kinds:
            success |= (kind == GO_TO) & (at_front & state.mover[c] != 0)
        if OPEN_DOOR in kinds:
            asked = (kind == OPEN_DOOR) & (action == TOGGLE)
            right = member(state.mover[c], id_of(front_cell)) & (state_of(front_cell) == OPEN)
            success |= asked & right
            failure |= asked & ~right & strict & (type_of(front_cell) == DOOR)
        if PICK_UP in kinds:
            asked = (kind == PICK_UP) & (action == PICKUP)
            right = (held < 0) & member(state.mover[c], hand)
            success |= asked & right
            failure |= asked & ~right & strict & (hand >= 0)
        if PUT_NEXT in kinds:
            put = (kind == PUT_NEXT) & (action == DROP) & (hand < 0)
            success |= put & member(state.mover[c], held) & (beside_front & state.fixed[c] != 0)
            failure |= (kind == PUT_NEXT) & (action == PICKUP) & strict & (hand >= 0)
        return success, failure

    verdicts = {c: judge(c) for c in clauses}
    halves = [[c for c in clauses if c // 2 == h] for h in (0, 1)]
    absent = {c: state.mission.kind[c] == NO_CLAUSE for c in clauses}

    def done(half: list[int]):
        each = [state.met[c] | verdicts[c][0] | (absent[c] if c % 2 else False) for c in half]
        return functools.reduce(jnp.logical_and, each)

    # A half counts as done with what this action did. Whichever half comes later is consulted only then; as a clause
    # depends on no other one, the two need not be judged in their order in time.
    order = state.mission.order
    active, success = [jnp.bool_(True), jnp.bool_(False)], done(halves[0])
    if halves[1]:
        first, second = success, done(halves[1])
        active = [(order != AFTER) | second, (order == AFTER) | (order == BEFORE) & first]
        success = first & (second | (order == SINGLE))

    met, held, failure = list(state.met), list(state.held), jnp.bool_(False)
    for c in clauses:
        consulted = active[c // 2] & ~state.met[c]
        ok, bad = verdicts[c]
        met[c] = met[c] | consulted & ok
        if {PICK_UP, PUT_NEXT} & kinds:
            held[c] = jnp.where(consulted, hand.astype(jnp.int8), held[c])
        # a failed arm of an `and` fails nothing
        paired = [other for other in clauses if other == (c ^ 1)]
        alone = absent[paired[0]] if paired and c % 2 == 0 else jnp.bool_(c % 2 == 0)
        failure |= consulted & bad & alone
    return state.replace(met=jnp.stack(met), held=jnp.stack(held)), success, failure
