"""Shapes on a tile, in vector form, for images of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


SIDE = 14.0
"""Side of a tile in the units of this module."""
SAMPLES = 96
"""Least number of samples per side of a tile; pixels are means of samples."""

Color = tuple[int, int, int]


class Canvas:
    """A square of samples with colour and opacity, drawn on from back to front."""

    def __init__(self, size: int) -> None:
        """**Arguments:** `size`, pixels per side of the tile."""
        self.size, self.fine = size, -(-SAMPLES // size)
        grid = (np.arange(size * self.fine) + 0.5) * SIDE / (size * self.fine)
        self.x, self.y = grid[None, :], grid[:, None]
        self.color = np.zeros((grid.size, grid.size, 3))
        self.alpha = np.zeros((grid.size, grid.size))

    def _paint(self, inside: np.ndarray, color: Color) -> None:
        self.color[inside], self.alpha[inside] = color, 1.0

    def rect(self, x0: float, y0: float, x1: float, y1: float, color: Color) -> None:
        self._paint((self.x >= x0) & (self.x < x1) & (self.y >= y0) & (self.y < y1), color)

    def oval(self, x: float, y: float, rx: float, ry: float, color: Color) -> None:
        self._paint(((self.x - x) / rx) ** 2 + ((self.y - y) / ry) ** 2 <= 1, color)

    def disc(self, x: float, y: float, r: float, color: Color) -> None:
        self.oval(x, y, r, r, color)

    def poly(self, color: Color, *corners: tuple[float, float]) -> None:
        """A polygon, by the number of its edges to the right of a sample."""
        inside = np.zeros(self.alpha.shape, bool)
        for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0])):
            if y0 != y1:
                right = self.x < x0 + (self.y - y0) * (x1 - x0) / (y1 - y0)
                inside ^= ((self.y >= min(y0, y1)) & (self.y < max(y0, y1))) & right
        self._paint(inside, color)

    def line(self, width: float, color: Color, *points: tuple[float, float]) -> None:
        """Straight strokes with round ends."""
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            dx, dy = x1 - x0, y1 - y0
            t = np.clip(((self.x - x0) * dx + (self.y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            self._paint((self.x - x0 - t * dx) ** 2 + (self.y - y0 - t * dy) ** 2 <= (width / 2) ** 2, color)

    def pixels(self) -> np.ndarray:
        """The tile: uint8 `[size, size, 4]`, red, green, blue and opacity."""
        n, k = self.size, self.fine
        alpha = self.alpha.reshape(n, k, n, k).mean((1, 3))
        color = (self.color * self.alpha[..., None]).reshape(n, k, n, k, 3).mean((1, 3))
        color = color / np.maximum(alpha, 1e-9)[..., None]
        return np.rint(np.concatenate([color, 255 * alpha[..., None]], -1)).astype(np.uint8)


Draw = Callable[[Canvas], None]
"""A drawing of one thing."""

GRASS, BLADE, SPROUT = (110, 172, 84), (84, 146, 66), (142, 200, 106)
STONE, STONE_LIGHT, STONE_DARK = (136, 140, 150), (154, 158, 168), (114, 118, 128)
WOOD, WOOD_LIGHT, WOOD_DARK = (164, 114, 68), (194, 144, 94), (112, 74, 44)
SKIN, HAIR, TUNIC, DARK = (246, 208, 170), (92, 56, 34), (214, 52, 60), (32, 28, 36)
BONE, LEAF, IRON, GEM = (236, 232, 218), (66, 152, 60), (226, 164, 116), (128, 226, 240)
