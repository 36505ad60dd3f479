"""The effects of actions (`minigrid.minigrid_env`, `MiniGridEnv.step`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import (
    BOX,
    CLOSED,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    KEY,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
)
from envs_jax.babyai.state import EMPTY_CELL, STATE_MASK, STATE_SHIFT, State, color_of, id_of, state_of, type_of
from envs_jax.babyai.view import front


def act(state: State, action: jax.Array) -> tuple[State, jax.Array, jax.Array]:
    """Apply one action, without judging the mission.

    **Arguments:** `state`; `action`, int32 `[]`, an index into `constants.ACTIONS`.
    **Returns:** `(state, front, front_cell)`: the new state with `step_count` advanced and `tracked` refreshed if
    the action was a drop; the cell in front of the new pose, int32 `[2]`; its packed content, int32 `[]`.
    """
    width, height = state.grid.shape
    flat = state.grid.reshape(-1)
    ahead = front(state.position, state.direction)
    index = ahead[0] * height + ahead[1]
    target = jnp.take(flat, index, mode="clip").astype(jnp.int32)
    kind, carrying = type_of(target), state.carrying.astype(jnp.int32)

    picks = (action == PICKUP) & (kind >= KEY) & (kind <= BOX) & (carrying == 0)
    drops = (action == DROP) & (kind == EMPTY) & (carrying > 0)
    unboxes = (action == TOGGLE) & (kind == BOX)
    turns_door = (action == TOGGLE) & (kind == DOOR)

    fits = (type_of(carrying) == KEY) & (color_of(carrying) == color_of(target))
    door = state_of(target)
    opened = jnp.where(door == LOCKED, jnp.where(fits, OPEN, LOCKED), jnp.where(door == OPEN, CLOSED, OPEN))
    ids = np.arange(state.cell.shape[0])
    is_target, hand = ids == id_of(target), ids == id_of(carrying)
    content = jnp.sum(jnp.where(is_target, state.content, 0), dtype=jnp.int32)

    new = jnp.where(picks, EMPTY_CELL, target)
    new = jnp.where(drops, carrying, new)
    new = jnp.where(unboxes, jnp.where(content > 0, content, EMPTY_CELL), new)
    new = jnp.where(turns_door, target & ~(STATE_MASK << STATE_SHIFT) | opened << STATE_SHIFT, new)
    carrying = jnp.where(picks, target, jnp.where(drops, 0, carrying))

    target_cell = index.astype(jnp.int16)
    cell = jnp.where((picks | unboxes) & is_target, jnp.int16(-1), state.cell)
    cell = jnp.where((drops & hand) | (unboxes & (ids == id_of(content))), target_cell, cell)
    tracked = jnp.where(action == DROP, cell, state.tracked)

    free = (kind == EMPTY) | (kind == DOOR) & (door == OPEN)
    position = jnp.where((action == FORWARD) & free, ahead, state.position)
    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    direction = state.direction + turn & 3

    grid = jnp.where(np.arange(width * height) == index, new.astype(jnp.int16), flat)
    state = state.replace(
        grid=grid.reshape(width, height),
        cell=cell,
        tracked=tracked,
        carrying=carrying.astype(jnp.int16),
        position=position,
        direction=direction,
        step_count=state.step_count + 1,
    )
    ahead = front(position, direction)
    return state, ahead, jnp.take(grid, ahead[0] * height + ahead[1], mode="clip").astype(jnp.int32)
