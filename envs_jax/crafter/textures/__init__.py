"""Images of Crafter's materials, creatures and items, drawn at any size.

Coordinates are halves of a pixel at the size of an observation: 14 to a tile of 7 pixels, x to the right, y down. Edges
on even coordinates stay sharp there.
"""

from __future__ import annotations

import functools

import numpy as np

from envs_jax.crafter.textures.canvas import Canvas, Draw
from envs_jax.crafter.textures.figures import SPRITES
from envs_jax.crafter.textures.ground import GROUND
from envs_jax.crafter.textures.items import counted


def _drawn(draw: Draw, size: int) -> np.ndarray:
    canvas = Canvas(size)
    draw(canvas)
    return canvas.pixels()


@functools.cache
def ground(name: str, size: int) -> np.ndarray:
    """The image of a material: uint8 `[size, size, 4]`."""
    return _drawn(GROUND[name], size)


@functools.cache
def sprite(name: str, size: int) -> np.ndarray:
    """The image of what stands on a material, one of `constants.SPRITES`: uint8 `[size, size, 4]`."""
    return _drawn(SPRITES[name], size)


@functools.cache
def item(name: str, count: int, size: int) -> np.ndarray:
    """The image of an item and its count, 1 to 9: uint8 `[size, size, 4]`."""
    return _drawn(counted(name, count), size)
