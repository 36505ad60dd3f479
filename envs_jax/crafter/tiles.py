"""Tables of finished tiles for `envs_jax.crafter.render`: every material under every object, every item with its count.

The tiles are this package's own (`textures`), or those of the installed package `crafter`, which are read from its
folder and composed as it composes them.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from flax import struct

from envs_jax.checks import at_least, nearest
from envs_jax.crafter import constants as c, textures as own_textures


SETS = ("own", "crafter")
GRID = 9
"""Tiles per side of an image: 9 x 7 cells of the world, and two rows of items."""
OUTSIDE = 127
"""Gray level of cells outside the world."""


@struct.dataclass
class Tiles:
    """Finished tiles of one size. A pixel is a uint32: red in its lowest byte, then green, then blue."""

    cells: Any
    """uint32 `[13 * 15, unit, unit]`, at `material * 15 + seen`: rows of pixels."""
    items: Any
    """uint32 `[16 * 10, unit, unit]`, at `item * 10 + count`; count 0 is black."""
    size: int = struct.field(pytree_node=False, default=64)
    """Pixels per side of an image."""

    @property
    def unit(self) -> int:
        """Pixels per side of a tile."""
        return self.size // GRID


def pack(rgb: np.ndarray) -> np.ndarray:
    """Pixels uint8 `[..., 3]` as uint32 `[...]`."""
    red, green, blue = (rgb[..., i].astype(np.uint32) for i in range(3))
    return red | green << 8 | blue << 16


def composite(ground: np.ndarray, texture: np.ndarray) -> np.ndarray:
    """A texture, uint8 `[h, w, 3 or 4]`, drawn over pixels uint8 `[h, w, 3]`, in the package's arithmetic: float32, cut
    off to integers."""
    if texture.shape[-1] == 3:
        return texture
    alpha, color = texture[..., 3:].astype(np.float32) / 255, texture[..., :3].astype(np.float32) / 255
    return (255 * (alpha * color + (1 - alpha) * (ground.astype(np.float32) / 255))).astype(np.uint8)


def _folder() -> Path:
    """The images of the installed package.

    **Raises:** `ModuleNotFoundError` where it is not installed.
    """
    spec = importlib.util.find_spec("crafter")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            'textures="crafter" takes the pictures of the package crafter, which is not installed (pip install '
            'crafter==1.8.3, or use textures="own")'
        )
    return Path(spec.origin).parent / "assets"


@functools.cache
def _picture(name: str, size: int) -> np.ndarray:
    """An image of the package, its nearest pixels at a size: uint8 `[size, size, 3 or 4]`."""
    from PIL import Image

    with Image.open(_folder() / f"{name}.png") as image:
        return np.asarray(image.resize((size, size), resample=Image.Resampling.NEAREST))


def _crafter_item(name: str, count: int, unit: int) -> np.ndarray:
    """A cell of the package's inventory: the item at a tenth of the cell, its digit at four tenths; uint8
    `[unit, unit, 3]`."""
    cell = np.zeros((unit, unit, 3), np.uint8)
    for texture, start, size in ((name, 0.1, 0.8), (str(count), 0.4, 0.6)):
        first, side = int(start * unit), int(size * unit)
        part = cell[first : first + side, first : first + side]
        part[...] = composite(part, _picture(texture, side))
    return cell


@functools.lru_cache(maxsize=8)
def tiles(textures: str = "own", size: int = 64) -> Tiles:
    """The tables of a set of textures, on the host.

    **Arguments:** `textures`, `"own"` or `"crafter"`; `size`, pixels per side of an image, at least 18: a tile has
    `size // 9`, and what is left over is a black border, as in the package.
    **Returns:** the tables, NumPy arrays.
    **Raises:** `ValueError` for another name or size, `ModuleNotFoundError` if the package is not installed.
    """
    if textures not in SETS:
        raise ValueError(f"textures is {textures!r}{nearest(str(textures), list(SETS))}; it can be {' or '.join(SETS)}")
    at_least("size", size, 2 * GRID, remedy="a tile needs two pixels per side")
    unit = size // GRID
    cells = np.full((len(c.MATERIALS) + 1, len(c.SPRITES) + 1, unit, unit, 3), OUTSIDE, np.uint8)
    items = np.zeros((len(c.ITEMS), c.MAX_COUNT + 1, unit, unit, 3), np.uint8)
    for i, material in enumerate(c.MATERIALS, 1):
        ground = own_textures.ground(material, unit) if textures == "own" else _picture(material, unit)
        cells[i] = ground[..., :3]
    for k, name in enumerate(c.SPRITES, 1):
        texture = own_textures.sprite(name, unit) if textures == "own" else _picture(name, unit)
        for i in range(len(cells)):
            cells[i, k] = composite(cells[i, 0], texture)
    for i, name in enumerate(c.ITEMS):
        for count in range(1, c.MAX_COUNT + 1):
            if textures == "own":
                items[i, count] = composite(items[i, 0], own_textures.item(name, count, unit))
            else:
                items[i, count] = _crafter_item(name, count, unit)
    packed = [pack(table).reshape(-1, unit, unit) for table in (cells, items)]
    return Tiles(cells=packed[0], items=packed[1], size=size)
