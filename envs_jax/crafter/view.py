"""What the player sees: the 9 x 7 cells around it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from envs_jax.crafter import constants as c
from envs_jax.crafter.state import State, cell_of, counter_of, kind_of, xy


_ACROSS, _DOWN = c.VIEW
_MIDDLE = (_ACROSS // 2, _DOWN // 2)
_CODES = np.array([0, c.SEEN_ZOMBIE, c.SEEN_SKELETON, c.SEEN_COW, c.SEEN_ARROW, c.SEEN_PLANT, 0, 0], np.int32)


def look(state: State) -> UInt8[Array, "9 7 2"]:
    """The cells around the player, `[x, y, plane]`: the material (0 outside the world), and what is on it, a code of
    `constants.SEEN` (0 for nothing). The player is at `[4, 3]`."""
    x, y = (state.position[axis] - _MIDDLE[axis] + jnp.arange(c.VIEW[axis]) for axis in range(2))
    inside = ((x >= 0) & (x < c.AREA))[:, None] & ((y >= 0) & (y < c.AREA))[None]
    cells = jnp.clip(x, 0, c.AREA - 1)[:, None] * c.AREA + jnp.clip(y, 0, c.AREA - 1)[None]
    ground = jnp.where(inside, state.material[cells], 0).reshape(-1)
    kind, cell, counter = kind_of(state.slots), cell_of(state.slots), counter_of(state.slots)
    code = jnp.asarray(_CODES)[kind]
    code += jnp.where(kind == c.ARROW, counter & 3, 0) + ((kind == c.PLANT) & (counter > c.RIPE))
    column, row = xy(cell)
    across, down = column - x[0], row - y[0]
    shown = (kind > 0) & (across >= 0) & (across < _ACROSS) & (down >= 0) & (down < _DOWN)
    place = jnp.where(shown, across * _DOWN + down, _ACROSS * _DOWN)
    on = jnp.zeros(_ACROSS * _DOWN, jnp.uint8).at[place].set(code.astype(jnp.uint8), mode="drop")
    player = jnp.where(state.sleeping, c.SEEN_ASLEEP, c.SEEN_PLAYER + state.facing)
    on = on.at[_MIDDLE[0] * _DOWN + _MIDDLE[1]].set(player.astype(jnp.uint8))
    return jnp.stack([ground, on], axis=-1).reshape(_ACROSS, _DOWN, 2)
