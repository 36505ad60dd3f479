"""The player's view: the 9 x 7 cells around it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from envs_jax.crafter import constants as c
from envs_jax.crafter.state import State, cell_of, counter_of, kind_of, xy


_COLUMNS, _ROWS = c.VIEW
_MIDDLE = (_COLUMNS // 2, _ROWS // 2)
_CODES = np.array([0, c.SPRITE_ZOMBIE, c.SPRITE_SKELETON, c.SPRITE_COW, c.SPRITE_ARROW, c.SPRITE_PLANT, 0, 0], np.int32)


def look(state: State) -> UInt8[Array, "9 7 2"]:
    """The cells around the player, `[x, y, plane]`: the material (0 outside the world), and what is on it, a code of
    `constants.SPRITES` (0 for nothing). The player is at `[4, 3]`."""
    x, y = (state.position[axis] - _MIDDLE[axis] + jnp.arange(c.VIEW[axis]) for axis in range(2))
    inside = ((x >= 0) & (x < c.AREA))[:, None] & ((y >= 0) & (y < c.AREA))[None]
    cells = jnp.clip(x, 0, c.AREA - 1)[:, None] * c.AREA + jnp.clip(y, 0, c.AREA - 1)[None]
    ground = jnp.where(inside, state.material[cells], 0).reshape(-1)
    kind, cell, counter = kind_of(state.slots), cell_of(state.slots), counter_of(state.slots)
    code = jnp.asarray(_CODES)[kind]
    code += jnp.where(kind == c.ARROW, counter & 3, 0) + ((kind == c.PLANT) & (counter > c.RIPE))
    column, row = xy(cell)
    dx, dy = column - x[0], row - y[0]
    visible = (kind > 0) & (dx >= 0) & (dx < _COLUMNS) & (dy >= 0) & (dy < _ROWS)
    index = jnp.where(visible, dx * _ROWS + dy, _COLUMNS * _ROWS)
    objects = jnp.zeros(_COLUMNS * _ROWS, jnp.uint8).at[index].set(code.astype(jnp.uint8), mode="drop")
    player = jnp.where(state.sleeping, c.SPRITE_ASLEEP, c.SPRITE_PLAYER + state.facing)
    objects = objects.at[_MIDDLE[0] * _ROWS + _MIDDLE[1]].set(player.astype(jnp.uint8))
    return jnp.stack([ground, objects], axis=-1).reshape(_COLUMNS, _ROWS, 2)
