"""Crafter in a terminal: the view as characters, and keys for playing."""

from __future__ import annotations

import numpy as np

from envs_jax.crafter import constants as c


_GROUND = " ~.#:_T!o*$+&"
"""A character for each material, by number: outside, water, grass, stone, path, sand, tree, lava, coal, iron, diamond,
table, furnace."""
_SPRITES = " ZKC<>^vpP@@@@z"
"""A character for each code of `constants.SPRITES`; the player is `@`, asleep `z`."""
LEGEND = (
    "~ water  . grass  # stone  : path  _ sand  T tree  ! lava  o coal  * iron  $ diamond  + table  & furnace",
    "Z zombie  K skeleton  C cow  <>^v arrow  p plant  P ripe plant  @ you, z asleep",
)
KEYS = {
    "left": "move_left",
    "right": "move_right",
    "up": "move_up",
    "down": "move_down",
    "space": "do",
    "n": "noop",
    "z": "sleep",
    "s": "place_stone",
    "t": "place_table",
    "f": "place_furnace",
    "p": "place_plant",
    **{str(i): f"make_{x}_pickaxe" for i, x in enumerate(("wood", "stone", "iron"), 1)},
    **{str(i): f"make_{x}_sword" for i, x in enumerate(("wood", "stone", "iron"), 4)},
}
"""Keys for the package's actions."""


def letters(view: np.ndarray, inventory: np.ndarray) -> str:
    """The view and what is held, as lines of characters.

    **Arguments:** `view`, uint8 `[9, 7, 2]`; `inventory`, int `[16]`."""
    ground = np.array(list(_GROUND))[view[..., 0]]
    cells = np.where(view[..., 1] > 0, np.array(list(_SPRITES))[view[..., 1]], ground)
    facing = int(view[4, 3, 1]) - c.SPRITE_PLAYER
    lines = [" ".join(row) for row in cells.T]
    if 0 <= facing < len(c.DIRECTIONS):
        lines[-1] += f"   facing {('left', 'right', 'up', 'down')[facing]}"
    counts = [
        f"{name.replace('_', ' ')} {n}" for name, n in zip(c.ITEMS, inventory) if n or name in c.ITEMS[: c.VITALS]
    ]
    return "\n".join([*lines, "", ", ".join(counts), "", *LEGEND])
