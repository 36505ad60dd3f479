"""The cells of a view as one number each: what an observer sees there."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs_jax.crafter import constants as c


COLUMNS, ROWS = c.VIEW
AGENT = (COLUMNS // 2, ROWS // 2)
"""The player's cell in a view."""
SPRITE_OFFSET = len(c.MATERIALS)
"""Code of an object is this plus its code in plane 1; codes of materials are those of plane 0, 0 is outside."""
OBJECTS = {"zombie": (1,), "skeleton": (2,), "cow": (3,), "arrow": (4, 5, 6, 7), "plant": (8, 9)}
"""Objects that an observer can see on a cell except for the player, by the name of their kind: codes of plane 1."""
CODES = {
    **{name: (i,) for i, name in enumerate(c.MATERIALS, 1)},
    **{name: tuple(SPRITE_OFFSET + code for code in codes) for name, codes in OBJECTS.items()},
}
"""The codes of every material and kind of object, by name."""
AHEAD = np.array([(AGENT[0] + dx) * ROWS + AGENT[1] + dy for dx, dy in c.DIRECTIONS], np.int32)
"""The cell that the player faces, by direction, in a view as one row."""


def cell_codes(view: UInt8[Array, "9 7 2"]) -> Int[Array, "63"]:
    """The visible code of each cell, int32, in the order `x * 7 + y`: an object hides the material under it."""
    cells = view.reshape(COLUMNS * ROWS, 2).astype(jnp.int32)
    return jnp.where(cells[:, 1] > 0, SPRITE_OFFSET + cells[:, 1], cells[:, 0])


def present(codes: Int[Array, "63"]) -> UInt32[Array, ""]:
    """One bit for each code that occurs in a view: bit `code`."""
    bits = jnp.uint32(1) << codes.astype(jnp.uint32)
    return jax.lax.reduce(bits, np.uint32(0), jax.lax.bitwise_or, (0,))


def any_of(word: UInt32[Array, ""], names: Sequence[str]) -> Bool[Array, " names"]:
    """Return whether each of the named materials or objects is among the codes of `present`."""
    masks = [sum(1 << code for code in CODES[name]) for name in names]
    return (word & np.array(masks, np.uint32)) != 0


def faced(codes: Int[Array, "63"], facing: Int[Array, ""]) -> Int[Array, ""]:
    """The code of the cell that the player faces; `facing` is an index into `constants.DIRECTIONS`."""
    return codes[AHEAD][facing]
