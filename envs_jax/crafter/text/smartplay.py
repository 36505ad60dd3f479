"""SmartPlay's captions, in the wording of BK-RL's environment: the nearest cell of everything in view.

The grammar is that of BK-RL's fork of SmartPlay (2407.03964), byte for byte: a sentence about sleep or death, the
nearest cell of every material and kind of object with its distance and direction, what the player faces, four vital
signs, and the items held. Its quirks stay: no space before "You face", "1 steps", "Your have", no period after the
items.
"""

from __future__ import annotations

from itertools import product

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int16, UInt8

from envs_jax.crafter import constants as c
from envs_jax.crafter.text.cells import AGENT, CODES, COLUMNS, ROWS, cell_codes, faced
from envs_jax.text import Counted, Phrasebook, compact


KINDS = (*c.MATERIALS, "cow", "zombie", "skeleton", "arrow", "plant")
"""Names in the captions, in their order."""
OUTSIDE = "None"
"""The published name of what is outside the world."""


def _direction(x: int, y: int) -> str:
    """The direction of a cell at an offset from the player: "up-left"."""
    vertical = "up" if y < 0 else "down" if y > 0 else ""
    horizontal = "left" if x < 0 else "right" if x > 0 else ""
    return "-".join(filter(None, (vertical, horizontal)))


_OFFSETS = [(x - AGENT[0], y - AGENT[1]) for x in range(COLUMNS) for y in range(ROWS)]
_PLACES = sorted({(abs(x) + abs(y), _direction(x, y)) for x, y in _OFFSETS if (x, y) != (0, 0)})
"""Every distance and direction that a cell of a view can have."""
_ITEMS = c.ITEMS[c.VITALS :]

VITALS = Counted(c.ITEMS[: c.VITALS - 1], 0, c.MAX_COUNT, lambda count, name: f"{name}: {count}/{c.MAX_COUNT},")
LAST_VITAL = Counted(
    c.ITEMS[c.VITALS - 1 : c.VITALS], 0, c.MAX_COUNT, lambda count, name: f"{name}: {count}/{c.MAX_COUNT}."
)
ITEM_COUNTS = Counted(_ITEMS, 1, c.MAX_COUNT, lambda count, name: f"{count} {name},")
LAST_ITEM_COUNT = Counted(_ITEMS, 1, c.MAX_COUNT)

SMARTPLAY = Phrasebook(
    [
        "You are sleeping, and will not be able take actions until energy is full.",
        "You died.",
        "You see:",
        "You see nothing away from you.You",
        "Your status:",
        "Your have",
        "You have nothing in your inventory.",
        "Error, you are out of the map.",
        *(f"face {name} at your front." for name in (OUTSIDE, *KINDS)),
        *(
            f"{name} at {distance} steps to your {direction}{end}"
            for name, (distance, direction), end in product(KINDS, _PLACES, (",", ".You"))
        ),
        VITALS,
        LAST_VITAL,
        ITEM_COUNTS,
        LAST_ITEM_COUNT,
    ],
    separator=" ",
    name="crafter.SMARTPLAY",
)
"""The pieces of SmartPlay's sentences; joined by spaces, they are the published text."""

SIZE = 1 + 1 + len(KINDS) + 1 + 1 + c.VITALS + 1 + len(_ITEMS)
"""Phrases of the longest caption."""

_SLEEPING, _DEAD, _YOU_SEE, _YOU_SEE_NOTHING, _STATUS, _YOU_HAVE, _YOU_HAVE_NOTHING, _ERROR, _FACE = range(9)
_NEAREST = SMARTPLAY.index(f"{KINDS[0]} at {_PLACES[0][0]} steps to your {_PLACES[0][1]},")
_RANK = np.array([abs(x) + abs(y) for x, y in _OFFSETS], np.int16) * 64 + np.arange(len(_OFFSETS), dtype=np.int16)
"""Distance and number of each cell: the smallest is the nearest cell, the first of several."""
_PLACE_INDEX = np.array(
    [_PLACES.index((abs(x) + abs(y), _direction(x, y))) if (x, y) != (0, 0) else 0 for x, y in _OFFSETS] + [0], np.int16
)
_KIND = np.full(1 + max(code for codes in CODES.values() for code in codes) + 5, -1, np.int16)
"""The index into `KINDS` of a code; -1 for the player and for what is outside."""
for _i, _name in enumerate(KINDS):
    _KIND[list(CODES[_name])] = _i
_NO_CELL = np.int16(8 * 64 + len(_OFFSETS))
"""Larger than every rank; its last digits are the place of no cell."""


def caption(
    view: UInt8[Array, "9 7 2"],
    inventory: Int[Array, "16"],
    facing: Int[Array, ""],
    sleeping: Bool[Array, ""],
    *,
    errors: bool = False,
) -> Int16[Array, "38"]:
    """SmartPlay's caption of a state, inside jit.

    **Arguments:** `view`, uint8 `[9, 7, 2]`; `inventory`, counts in the order of `constants.ITEMS`; `facing`, an index
    into `constants.DIRECTIONS`; `sleeping`; `errors`, static: near the left and upper border of the world, and
    where the player faces the outside, the published code fails, and its caption is the error; true reproduces that.
    **Returns:** a caption of `SMARTPLAY`, int16 `[SIZE]`.
    """
    codes = cell_codes(view)
    kinds = jnp.asarray(_KIND)[codes]
    ranks = jnp.where(kinds[None, :] == np.arange(len(KINDS), dtype=np.int16)[:, None], _RANK, _NO_CELL)
    nearest = jnp.min(ranks, axis=1)
    visible = nearest < _NO_CELL
    place_index = jnp.asarray(_PLACE_INDEX)[nearest & 63]
    last = visible & (jnp.arange(len(KINDS)) == jnp.max(jnp.where(visible, np.arange(len(KINDS)), -1)))
    first = _NEAREST + 2 * len(_PLACES) * np.arange(len(KINDS), dtype=np.int16)
    nearest_ids = jnp.where(visible, first + 2 * place_index + last.astype(jnp.int16), -1).astype(jnp.int16)

    counts = inventory[c.VITALS :]
    item = np.arange(len(_ITEMS))
    final = item == jnp.max(jnp.where(counts > 0, item, -1))
    items = jnp.where(
        final,
        LAST_ITEM_COUNT.ids(counts, SMARTPLAY.first(LAST_ITEM_COUNT)),
        ITEM_COUNTS.ids(counts, SMARTPLAY.first(ITEM_COUNTS)),
    )
    state = jnp.where(sleeping, _SLEEPING, jnp.where(inventory[c.HEALTH] <= 0, _DEAD, -1))
    ids = jnp.concatenate(
        [
            nearest_ids,
            (_FACE + 1 + jnp.asarray(_KIND)[faced(codes, facing)])[None].astype(jnp.int16),
            jnp.array([_STATUS], jnp.int16),
            VITALS.ids(inventory[: c.VITALS - 1], SMARTPLAY.first(VITALS)),
            LAST_VITAL.ids(inventory[c.VITALS - 1 : c.VITALS], SMARTPLAY.first(LAST_VITAL)),
            jnp.where(jnp.any(counts > 0), _YOU_HAVE, _YOU_HAVE_NOTHING)[None].astype(jnp.int16),
            items,
        ]
    )
    head = [state.astype(jnp.int16), jnp.where(jnp.any(visible), _YOU_SEE, _YOU_SEE_NOTHING).astype(jnp.int16)]
    text = compact(ids, SIZE, head)
    if not errors:
        return text
    outside = (view[0, AGENT[1], 0] == 0) | (view[AGENT[0], 0, 0] == 0) | (faced(codes, facing) == 0)
    error = jnp.full(SIZE, -1, jnp.int16).at[0].set(_ERROR)
    return jnp.where(outside, error, text)
