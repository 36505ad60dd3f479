"""Success and reward as pure functions of arrays: of simulated states and of imagined ones.

Every function takes NumPy or jax arrays with any number of leading axes, which broadcast, and returns arrays of the
same package; `goal` is int32 `[..., 10]` (see `goals`), a `state` float32 `[..., 10]`, the x and y of the five balls,
an `action` int32 `[...]`. A state that is not finite satisfies no goal. Definitions: KALM's published code.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.clevr.constants import AXES, BALLS, DIRECTIONS, GREEN
from envs_jax.clevr.goals import GATHER, LINE, MAX_RELATIONS, PUSH, RELATIONS


MAX_DISTANCE = 0.391
"""A ball is on a side of another if their centres are closer than this: three radii and a millimetre."""
FLAT = 1e-3
"""A component of a difference smaller than this counts as 0."""
COSINE = np.cos(np.pi / 6)
"""A ball is right of its neighbour in a line if the direction to it is within 30 degrees of the x axis."""
GATHERED = 0.325
"""The largest distance from the green ball, in metres, of balls that are gathered around it."""
STEP = 0.15
"""The displacement along its axis of a ball that was moved one step, in metres."""
STATIONARY_TOLERANCE = 0.05
"""A ball whose x and y change by less than this stands still."""
POINT = 0.195
"""The distance from the reference of the point to which the reward of progress refers."""
ALLOWED = np.array([[k in directions for k in range(8)] for directions in ((1, 4, 5), (2, 5, 7), (3, 6, 7), (0, 4, 6))])
"""bool `[4, 8]`: the pushes that count as a step towards a side."""


@struct.dataclass
class Weights:
    """Rewards of success and progress."""

    progress: Any = 10.0
    """Per metre that the ball of a single relation comes closer to its place."""
    subgoal: Any = 10.0
    """Per part of a hard goal that begins to hold; the same is lost when one ceases to hold."""
    success: Any = 100.0
    """For the goal."""


WEIGHTS = Weights()
"""The default: those of levels real, rephrase and hard."""


def weights_of(level: str) -> Weights:
    """The weights of a level: at `easy`, whose episodes are one step, success is worth 1."""
    return Weights(success=1.0) if level == "easy" else WEIGHTS


def package(*arrays: Any) -> Any:
    """jax.numpy if any array is one of jax, else NumPy."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def balls(state: Any) -> Any:
    """A state as `[..., 5, 2]`."""
    return state.reshape(*state.shape[:-1], BALLS, 2)


def _pick(xp: Any, table: Any, index: Any) -> Any:
    """Row `index` `[...]` of `table` `[..., n, 2]`: `[..., 2]`. The sum of one row and zeros is exact, and cheaper in a
    batch than a gather."""
    chosen = index[..., None] == np.arange(table.shape[-2])
    return xp.where(chosen[..., None], table, xp.zeros((), table.dtype)).sum(axis=-2)


def _triples(goal: Any) -> Any:
    """`[..., 3, 3]`: ball, side, reference."""
    return goal[..., 1:].reshape(*goal.shape[:-1], MAX_RELATIONS, 3)


def relation_holds(state: Any, ball: Any, side: Any, reference: Any) -> Any:
    """Return whether a ball is on a side of another one, close to it: bool `[...]`.

    The plane around the reference is cut along its diagonals: behind from 45 up to but excluding 135 degrees,
    left from 135 to 225, front from 225 to 315, right the rest. Balls at one point are on no side of each other.

    **Arguments:** `state`; `ball`, `side` and `reference`, integers `[...]`.
    """
    xp = package(state, ball, side, reference)
    ball, side, reference = (xp.asarray(x) for x in (ball, side, reference))
    centres = balls(state)
    offset = _pick(xp, centres, ball) - _pick(xp, centres, reference)
    offset = xp.where(xp.abs(offset) < FLAT, xp.zeros((), offset.dtype), offset)
    x, y = offset[..., 0], offset[..., 1]
    quadrants = xp.stack([(y >= x) & (y > -x), (y <= -x) & (y > x), (y <= x) & (y < -x), (y >= -x) & (y < x)], axis=-1)
    on_side = (quadrants & (side[..., None] == np.arange(4))).any(axis=-1)
    return on_side & (xp.hypot(x, y) < MAX_DISTANCE)


def in_line(state: Any) -> Any:
    """Neighbours in the order of colours that stand from left to right, within 30 degrees: bool `[..., 4]`."""
    xp, centres = package(state), balls(state)
    offset = centres[..., 1:, :] - centres[..., :-1, :]
    length = xp.hypot(offset[..., 0], offset[..., 1])
    return (offset[..., 0] >= COSINE * length) & (length > 0)


def gathered(state: Any) -> Any:
    """Other balls that are near the green one: bool `[..., 4]`."""
    xp, centres = package(state), balls(state)
    offset = centres - centres[..., GREEN : GREEN + 1, :]
    close = xp.hypot(offset[..., 0], offset[..., 1]) <= GATHERED
    return xp.concatenate([close[..., :GREEN], close[..., GREEN + 1 :]], axis=-1)


def subgoals(goal: Any, state: Any) -> tuple[Any, Any]:
    """The parts of a goal that concern a state.

    **Returns:** `(holds, counts)`, bool `[..., 4]`: which parts hold, and which there are: one to three relations, or
    four pairs of a line, or four balls to gather; none for `PUSH`, which is judged by a step.
    """
    xp = package(goal, state)
    triples, kind = _triples(goal), goal[..., 0][..., None]
    relation = relation_holds(state[..., None, :], triples[..., 0], triples[..., 1], triples[..., 2])
    present = triples[..., 0] >= 0
    padding = xp.zeros_like(relation[..., :1])
    relation = xp.concatenate([relation, padding], axis=-1)
    present = xp.concatenate([present, xp.zeros_like(present[..., :1])], axis=-1)
    holds = xp.where(kind == LINE, in_line(state), xp.where(kind == GATHER, gathered(state), relation))
    counts = xp.where(kind == RELATIONS, present, kind != PUSH)
    return holds & counts, xp.broadcast_to(counts, holds.shape)


def holds(goal: Any, state: Any) -> Any:
    """Return whether a state satisfies a goal: bool `[...]`; False for `PUSH`."""
    parts, counts = subgoals(goal, state)
    return (parts == counts).all(axis=-1) & counts.any(axis=-1)


def push_by_action(goal: Any, action: Any) -> Any:
    """Return whether an action pushes the ball of a `PUSH` goal in a direction that counts, as 3 of 40 do: bool
    `[...]`."""
    xp = package(goal, action)
    action = xp.asarray(action)
    ball, direction = action // len(DIRECTIONS), action % len(DIRECTIONS)
    allowed = (direction[..., None] == np.arange(len(DIRECTIONS))) & xp.asarray(ALLOWED)[goal[..., 2]]
    return (ball == goal[..., 1]) & allowed.any(axis=-1)


def push_by_state(goal: Any, state: Any, next_state: Any, *, compat: bool = False) -> Any:
    """Return whether the ball of a `PUSH` goal has moved at least 0.15 m towards its place: bool `[...]`.

    With `compat`, any ball counts, as in KALM's published code.
    """
    xp = package(goal, state, next_state)
    axis = _pick(xp, xp.asarray(AXES.astype(np.float32)), goal[..., 2])
    along = ((balls(next_state) - balls(state)) * axis[..., None, :]).sum(axis=-1)
    right = along >= STEP
    chosen = right if compat else right & (goal[..., 1:2] == np.arange(BALLS))
    return chosen.any(axis=-1)


def stationary(state: Any, next_state: Any) -> Any:
    """Balls that stand still in a step: bool `[..., 5]`."""
    xp = package(state, next_state)
    return (xp.abs(balls(next_state) - balls(state)) < STATIONARY_TOLERANCE).all(axis=-1)


def succeeds(
    goal: Any, state: Any, next_state: Any, action: Any, *, push_test: str = "action", compat: bool = False
) -> Any:
    """Return whether a step reaches its goal: bool `[...]`.

    **Arguments:** `goal`, `state`, `next_state`, `action`; `push_test`, `"action"` or `"state"`, how a step of level
    easy is judged; `compat`, see `push_by_state`.
    """
    xp = package(goal, state, next_state, action)
    by_action = push_by_action(goal, action)
    pushed = by_action if push_test == "action" else push_by_state(goal, state, next_state, compat=compat)
    return xp.where(goal[..., 0] == PUSH, pushed, holds(goal, next_state))


def _potential(goal: Any, state: Any, weights: Weights, compat: bool) -> Any:
    xp = package(goal, state)
    centres = balls(state)
    ball, side, reference = (goal[..., i] for i in (1, 2, 3))
    target = _pick(xp, centres, reference)
    if not compat:
        target = target + POINT * _pick(xp, xp.asarray(AXES.astype(np.float32)), side)
    away = _pick(xp, centres, ball) - target
    parts, _ = subgoals(goal, state)
    single = (goal[..., 0] == RELATIONS) & (goal[..., 4] < 0)
    hard = (goal[..., 0] != PUSH) & ~single
    progress = -weights.progress * xp.hypot(away[..., 0], away[..., 1])
    reached = weights.subgoal * parts.sum(axis=-1)
    zero = xp.zeros((), centres.dtype)
    return xp.where(single, progress, zero) + xp.where(hard, reached, zero)


def label(
    goal: Any,
    state: Any,
    next_state: Any,
    action: Any,
    weights: Weights = WEIGHTS,
    *,
    push_test: str = "action",
    compat: bool = False,
) -> tuple[Any, Any]:
    """Reward and success of steps, simulated or imagined.

    A single relation pays `weights.progress` per metre that the ball comes closer to the point 0.195 m from its
    reference, on the right side; a hard goal pays `weights.subgoal` per part that begins to hold, and takes it back
    when the part ceases to hold; every goal pays `weights.success` when it is reached. Progress sums to a difference of
    potentials, so no circle of states gains anything.

    **Arguments:** `goal`, int32 `[..., 10]`; `state` and `next_state`, float32 `[..., 10]`; `action`, int32 `[...]`;
    `weights`; `push_test` and `compat`, see `succeeds`. With `compat`, progress refers to the reference's centre, on
    whichever side.
    **Returns:** `(reward float32 [...], success bool [...])`.
    """
    success = succeeds(goal, state, next_state, action, push_test=push_test, compat=compat)
    gain = _potential(goal, next_state, weights, compat) - _potential(goal, state, weights, compat)
    reward = gain + weights.success * success
    return reward.astype(np.float32), success
