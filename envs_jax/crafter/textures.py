"""This package's own pictures of Crafter's materials, creatures and items: shapes in vector form, drawn at any size.

Coordinates are halves of a pixel at the size of an observation: 14 to a tile of 7 pixels, x to the right, y down. Edges
on even coordinates stay sharp there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from envs_jax.crafter import constants as c


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
        for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0])):
            if ay != by:
                right = self.x < ax + (self.y - ay) * (bx - ax) / (by - ay)
                inside ^= ((self.y >= min(ay, by)) & (self.y < max(ay, by))) & right
        self._paint(inside, color)

    def line(self, width: float, color: Color, *points: tuple[float, float]) -> None:
        """Straight strokes with round ends."""
        for (ax, ay), (bx, by) in zip(points, points[1:]):
            dx, dy = bx - ax, by - ay
            t = np.clip(((self.x - ax) * dx + (self.y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
            self._paint((self.x - ax - t * dx) ** 2 + (self.y - ay - t * dy) ** 2 <= (width / 2) ** 2, color)

    def pixels(self) -> np.ndarray:
        """The tile: uint8 `[size, size, 4]`, red, green, blue and opacity."""
        n, k = self.size, self.fine
        alpha = self.alpha.reshape(n, k, n, k).mean((1, 3))
        color = (self.color * self.alpha[..., None]).reshape(n, k, n, k, 3).mean((1, 3))
        color = color / np.maximum(alpha, 1e-9)[..., None]
        return np.rint(np.concatenate([color, 255 * alpha[..., None]], -1)).astype(np.uint8)


Draw = Callable[[Canvas], None]

GRASS, BLADE, SPROUT = (110, 172, 84), (84, 146, 66), (142, 200, 106)
STONE, STONE_LIGHT, STONE_DARK = (134, 138, 148), (158, 162, 172), (104, 108, 118)
WOOD, WOOD_LIGHT, WOOD_DARK = (164, 114, 68), (194, 144, 94), (112, 74, 44)
SKIN, HAIR, TUNIC, DARK = (246, 208, 170), (92, 56, 34), (214, 52, 60), (32, 28, 36)
BONE, LEAF, IRON, GEM = (236, 232, 218), (66, 152, 60), (226, 164, 116), (128, 226, 240)


def water(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, (56, 118, 198))
    for x, y in ((1, 4), (7, 10)):
        p.line(1.2, (134, 188, 238), (x, y), (x + 1.5, y - 1.2), (x + 3, y), (x + 4.5, y - 1.2))
    p.line(0.9, (82, 146, 216), (9, 3.5), (12.5, 3.5))
    p.line(0.9, (82, 146, 216), (1, 11), (4, 11))


def grass(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, GRASS)
    for x, y, color in ((2, 3, BLADE), (9, 2, SPROUT), (5, 8, SPROUT), (11, 9, BLADE), (3, 12, BLADE), (8, 12, SPROUT)):
        p.poly(color, (x, y + 1.4), (x - 0.2, y - 1.4), (x + 0.9, y + 0.4), (x + 2, y - 1.4), (x + 1.8, y + 1.4))


def stone(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, STONE)
    p.poly(STONE_LIGHT, (0, 0), (7, 0), (4.5, 4), (0, 5))
    p.poly(STONE_LIGHT, (8, 6), (12, 5), (11, 9))
    p.poly(STONE_DARK, (14, 14), (5, 14), (9, 10), (14, 9))
    p.line(0.8, STONE_DARK, (3, 8), (5, 10), (4, 12))
    p.line(0.8, STONE_DARK, (9, 1), (11, 3))


def path(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, (104, 90, 80))
    for x, y, r in ((3, 3, 1.4), (10, 5, 1.6), (5, 10, 1.5), (12, 12, 1.1)):
        p.oval(x, y + 0.4, r, r * 0.7, (78, 67, 60))
        p.oval(x, y, r, r * 0.7, (130, 114, 102))


def sand(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, (232, 212, 154))
    p.line(0.9, (212, 188, 128), (1, 4), (3.5, 3), (6, 4), (8, 3.4))
    p.line(0.9, (212, 188, 128), (6, 10.5), (8.5, 9.5), (11, 10.5), (13, 9.9))
    for x, y in ((11, 3), (3, 8), (4, 12)):
        p.disc(x, y, 0.6, (248, 234, 190))


def tree(p: Canvas) -> None:
    grass(p)
    p.oval(7, 12.6, 4, 1.2, BLADE)
    p.rect(6, 9, 8, 13, WOOD_DARK)
    for x, y, r in ((4.2, 6.4, 3.6), (9.8, 6.4, 3.6), (7, 4, 4)):
        p.disc(x, y, r, (28, 88, 50))
    for x, y, r in ((4.2, 5.8, 2.6), (9.6, 5.8, 2.6), (7, 3.6, 3)):
        p.disc(x, y, r, (44, 118, 62))
    for x, y in ((5.6, 2.6), (3.4, 5.2), (8.8, 4.8)):
        p.disc(x, y, 1, (86, 164, 84))


def lava(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, (214, 62, 24))
    p.oval(4, 4, 3.4, 2.2, (250, 140, 32))
    p.oval(10, 10, 3.2, 2.4, (250, 140, 32))
    p.oval(4.4, 4, 1.8, 1.1, (255, 224, 108))
    p.oval(9.8, 10, 1.8, 1.2, (255, 224, 108))
    p.line(1.1, (140, 28, 22), (8, 1), (10, 3), (13, 3.4))
    p.line(1.1, (140, 28, 22), (0.6, 9.6), (3, 10.6), (4.6, 13))


def _lumps(p: Canvas, color: Color, light: Color) -> None:
    stone(p)
    for x, y, r in ((4, 4, 2), (10, 5, 1.7), (5, 10.4, 1.8), (10.4, 10.4, 1.6)):
        p.disc(x + 0.3, y + 0.4, r + 0.3, STONE_DARK)
        p.disc(x, y, r, color)
        p.disc(x - r * 0.3, y - r * 0.3, r * 0.45, light)


def coal(p: Canvas) -> None:
    _lumps(p, (36, 36, 42), (84, 84, 96))


def iron(p: Canvas) -> None:
    _lumps(p, (214, 142, 88), (250, 208, 166))


def _gem(p: Canvas, x: float, y: float, r: float) -> None:
    p.poly((92, 186, 214), (x - r, y), (x, y - r), (x + r, y), (x, y + r))
    p.poly(GEM, (x - r, y), (x, y - r), (x + r * 0.4, y), (x, y + r))
    p.poly((240, 254, 255), (x - r * 0.6, y - r * 0.1), (x, y - r * 0.7), (x + r * 0.1, y - r * 0.1))


def diamond(p: Canvas) -> None:
    stone(p)
    for x, y, r in ((4.4, 4.6, 3.2), (10.2, 9.4, 3.2)):
        _gem(p, x, y, r)


def table(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, WOOD_DARK)
    p.rect(0.8, 0.8, 13.2, 11.4, WOOD)
    for y in (3.2, 6, 8.8):
        p.rect(0.8, y, 13.2, y + 0.6, WOOD_DARK)
    p.rect(0.8, 0.8, 13.2, 1.6, WOOD_LIGHT)
    p.rect(3, 12.2, 11, 14, (76, 48, 30))
    p.line(1.2, (92, 56, 34), (3, 9.5), (6.4, 5))  # a hammer and a saw
    p.poly((196, 200, 208), (4.6, 3.6), (6.6, 2.4), (8.8, 5.2), (7, 6.4))
    p.poly((214, 218, 226), (8.6, 9.8), (12.4, 5), (12.6, 7.6), (10.4, 10))


def furnace(p: Canvas) -> None:
    p.rect(0, 0, 14, 14, (88, 88, 98))
    for y, xs in ((0, (4, 10)), (4, (1.6, 12)), (8, (1.2, 12.4)), (11, (2, 12))):
        p.rect(0, y, 14, y + 0.6, (62, 62, 72))
        for x in xs:
            p.rect(x, y, x + 0.6, y + 4, (62, 62, 72))
    p.rect(0, 0, 14, 1.6, (122, 122, 134))
    p.disc(7, 7.4, 4, (30, 24, 28))
    p.rect(3, 7.4, 11, 13, (30, 24, 28))
    p.poly((246, 112, 30), (4, 13), (4.4, 8.6), (6, 10), (7.2, 6), (8.8, 10), (9.8, 8.4), (10, 13))
    p.poly((255, 214, 92), (5.4, 13), (6, 11), (7.2, 9.2), (8.4, 11), (8.8, 13))


def zombie(p: Canvas) -> None:
    p.rect(4, 12, 6.4, 14, (48, 44, 70))
    p.rect(7.6, 12, 10, 14, (48, 44, 70))
    p.rect(0, 6.2, 14, 8.6, (84, 140, 70))
    p.rect(3.6, 6, 10.4, 12, (92, 78, 132))
    p.poly((84, 140, 70), (5, 12), (6, 9.8), (7, 12))
    p.rect(3.6, 0, 10.4, 6, (112, 172, 88))
    p.rect(3.6, 0, 10.4, 1.2, (66, 112, 58))
    p.rect(4, 2, 6, 4, (236, 232, 120))
    p.rect(8, 2, 10, 4, (236, 232, 120))
    p.rect(4.8, 2.6, 6, 4, (176, 24, 30))
    p.rect(8, 2.6, 9.2, 4, (176, 24, 30))
    p.rect(5, 4.8, 9, 5.4, (44, 64, 40))


def skeleton(p: Canvas) -> None:
    p.line(1, (132, 90, 52), (11.4, 2.6), (13.2, 5.6), (13.2, 8.6), (11.4, 11.6))  # its bow
    p.line(0.5, (220, 220, 220), (11.4, 2.6), (11.4, 11.6))
    p.rect(4.4, 11, 5.8, 14, BONE)
    p.rect(8.2, 11, 9.6, 14, BONE)
    p.rect(1.6, 6.4, 12, 7.6, BONE)
    p.rect(6.2, 6, 7.8, 11.6, BONE)
    p.rect(4, 8.4, 10, 9.2, BONE)
    p.rect(4.4, 10, 9.6, 11.4, (206, 202, 188))
    p.rect(4, 0.6, 10, 4.4, BONE)
    p.rect(5, 0, 9, 6, BONE)
    p.rect(4.4, 2, 6.4, 4, DARK)
    p.rect(7.6, 2, 9.6, 4, DARK)
    for x in (5.6, 6.8, 8):
        p.rect(x, 5, x + 0.5, 6, (120, 116, 108))


def cow(p: Canvas) -> None:
    for x in (3, 5.4, 9, 11.2):
        p.rect(x, 9, x + 1.6, 13.4, (214, 206, 196))
        p.rect(x, 12.6, x + 1.6, 13.6, DARK)
    p.oval(8, 7.4, 5.6, 3.6, (246, 242, 234))
    p.rect(3, 6, 13, 9.6, (246, 242, 234))
    p.oval(8.6, 5.8, 2.4, 1.8, (72, 50, 42))
    p.oval(12, 8.4, 1.5, 1.8, (72, 50, 42))
    p.line(0.7, (72, 50, 42), (13.2, 6), (13.6, 10))
    p.rect(0.6, 3, 5, 8, (72, 50, 42))
    p.rect(2.2, 3, 3.4, 6, (246, 242, 234))
    p.rect(0.4, 6, 5.2, 8.4, (246, 176, 170))
    p.rect(1.2, 7, 1.9, 7.7, (150, 84, 84))
    p.rect(3.7, 7, 4.4, 7.7, (150, 84, 84))
    p.rect(1, 4, 1.9, 5.2, (255, 255, 255))
    p.rect(3.7, 4, 4.6, 5.2, (255, 255, 255))
    p.line(0.9, BONE, (1, 3), (0.5, 1.4))
    p.line(0.9, BONE, (4.6, 3), (5.1, 1.4))


def _turned(draw: Draw, direction: int) -> Draw:
    """A drawing that points to the left, turned to a direction."""

    def drawn(p: Canvas) -> None:
        x, y = p.x, p.y
        if direction == 1:
            p.x = SIDE - x
        elif direction > 1:
            p.x, p.y = (y, x) if direction == 2 else (SIDE - y, x)
        draw(p)
        p.x, p.y = x, y

    return drawn


def arrow(p: Canvas) -> None:
    p.rect(3, 6.2, 13, 7.8, (146, 100, 58))
    p.poly((226, 230, 238), (0.4, 7), (4.6, 4), (4.6, 10))
    p.poly((208, 60, 60), (10, 6.2), (11.6, 4.2), (14, 4.2), (12.6, 7), (14, 9.8), (11.6, 9.8), (10, 7.8))


def _soil(p: Canvas) -> None:
    p.oval(7, 12, 4.4, 1.9, (108, 74, 48))
    p.oval(7, 11.6, 3.4, 1.2, (134, 94, 62))


def plant(p: Canvas) -> None:
    _soil(p)
    p.rect(6.4, 6, 7.6, 12, (46, 112, 44))
    p.poly((38, 104, 46), (7, 9), (2.2, 7.6), (1.6, 4), (5.4, 5.2))
    p.poly((38, 104, 46), (7, 7.4), (8.6, 3.6), (12.4, 2.4), (11.8, 6))
    p.poly((168, 226, 110), (6.4, 8), (3, 7), (2.6, 5), (5, 5.8))
    p.poly((168, 226, 110), (7.8, 6.6), (9.2, 4.2), (11.4, 3.4), (11, 5.4))


def plant_ripe(p: Canvas) -> None:
    _soil(p)
    p.oval(7, 7, 5.8, 5.2, (34, 96, 44))
    p.oval(7, 6.4, 4.9, 4.2, (70, 156, 66))
    for x, y in ((4.4, 4.4), (9.6, 4.6), (7, 7.4), (4.2, 8.8), (10, 8.8)):
        p.disc(x, y, 1.5, (198, 28, 62))
        p.disc(x - 0.4, y - 0.4, 0.6, (255, 150, 160))


def _body(p: Canvas) -> None:
    p.rect(4.4, 11.6, 6.6, 14, (58, 62, 92))
    p.rect(7.4, 11.6, 9.6, 14, (58, 62, 92))
    p.rect(4, 6, 10, 12, TUNIC)
    p.rect(4, 9.8, 10, 10.8, (250, 208, 84))


def player_down(p: Canvas) -> None:
    _body(p)
    for x in (2.2, 10):
        p.rect(x, 6.2, x + 1.8, 9, (176, 36, 46))
        p.rect(x, 9, x + 1.8, 10.4, SKIN)
    p.rect(3.6, 0, 10.4, 6, SKIN)
    p.rect(3.6, 0, 10.4, 1.8, HAIR)
    p.rect(4.4, 2.4, 5.8, 4, DARK)
    p.rect(8.2, 2.4, 9.6, 4, DARK)
    p.rect(6, 4.8, 8, 5.3, (196, 112, 96))


def player_up(p: Canvas) -> None:
    _body(p)
    for x in (2.2, 10):
        p.rect(x, 6.2, x + 1.8, 9, (176, 36, 46))
        p.rect(x, 4.8, x + 1.8, 6.2, SKIN)
    p.rect(4.8, 6.8, 9.2, 11, WOOD)
    p.rect(4.8, 6.8, 9.2, 8, WOOD_LIGHT)
    p.rect(3.6, 0, 10.4, 6, HAIR)
    p.rect(4.4, 0.4, 9.6, 1.4, (124, 80, 50))


def player_left(p: Canvas) -> None:
    _body(p)
    p.rect(9.6, 6.6, 11.8, 10.8, WOOD)
    p.rect(2, 7, 7, 8.8, (176, 36, 46))
    p.rect(0.4, 7, 2, 8.8, SKIN)
    p.rect(3.6, 0, 10.4, 6, SKIN)
    p.rect(3.6, 0, 10.4, 1.8, HAIR)
    p.rect(7.6, 0, 10.4, 5, HAIR)
    p.rect(4, 2.4, 5.6, 4, DARK)
    p.rect(2.9, 3.6, 4, 4.7, SKIN)


def player_sleep(p: Canvas) -> None:
    p.rect(0.4, 5.6, 13.6, 13.6, (88, 62, 48))
    p.rect(0.8, 6, 5, 13.2, (240, 240, 244))
    p.rect(4, 6, 13.2, 13.2, (70, 92, 168))
    p.rect(4, 6, 5.6, 13.2, (150, 168, 222))
    p.rect(1, 7.2, 4.8, 12, SKIN)
    p.rect(1, 7.2, 2, 12, HAIR)
    p.rect(2.8, 8.2, 3.4, 9.4, DARK)
    p.rect(2.8, 10, 3.4, 11.2, DARK)
    for x, y, s in ((7, 1.6, 2.6), (10.6, 0.4, 3)):
        p.line(0.7, (255, 255, 255), (x, y), (x + s, y), (x, y + s), (x + s, y + s))


GROUND: dict[str, Draw] = {
    "water": water,
    "grass": grass,
    "stone": stone,
    "path": path,
    "sand": sand,
    "tree": tree,
    "lava": lava,
    "coal": coal,
    "iron": iron,
    "diamond": diamond,
    "table": table,
    "furnace": furnace,
}
"""A drawing for each of `constants.MATERIALS`."""
SEEN: dict[str, Draw] = {
    "zombie": zombie,
    "skeleton": skeleton,
    "cow": cow,
    **{name: _turned(arrow, i) for i, name in enumerate(c.SEEN[3:7])},
    "plant": plant,
    "plant-ripe": plant_ripe,
    "player-left": player_left,
    "player-right": _turned(player_left, 1),
    "player-up": player_up,
    "player-down": player_down,
    "player-sleep": player_sleep,
}
"""A drawing for each of `constants.SEEN`."""


# Items stand on black, in the upper left of their cell; the digit of their count has the lower right.


def health(p: Canvas) -> None:
    for x in (2.6, 6.4):
        p.disc(x, 3, 2.5, (226, 48, 60))
    p.poly((226, 48, 60), (0.3, 4), (8.7, 4), (4.5, 9.6))
    p.disc(2.3, 2.4, 0.9, (255, 170, 176))


def food(p: Canvas) -> None:
    p.line(1.5, BONE, (6, 6), (8.6, 8.8))
    p.disc(8.8, 8, 1, BONE)
    p.disc(8, 9, 1, BONE)
    p.oval(3.8, 3.8, 3.7, 3.3, (170, 92, 46))
    p.oval(3.2, 3, 1.7, 1.3, (220, 146, 84))


def drink(p: Canvas) -> None:
    p.disc(4.6, 6.2, 3.3, (64, 144, 232))
    p.poly((64, 144, 232), (4.6, 0), (7.6, 5), (1.6, 5))
    p.oval(3.4, 6.4, 0.9, 1.4, (190, 224, 255))


def energy(p: Canvas) -> None:
    p.poly((255, 214, 64), (5.6, 0), (1, 5.6), (4, 5.6), (2.8, 10), (8, 3.8), (5, 3.8), (7.2, 0))


def sapling(p: Canvas) -> None:
    p.rect(4, 4.6, 5.2, 9.6, (70, 140, 60))
    p.poly((132, 208, 92), (4.4, 6.4), (0.4, 4.6), (0.6, 1.4), (4, 3.4))
    p.poly((98, 180, 74), (4.8, 5.4), (6, 1.6), (9.4, 0.6), (8.6, 4))


def wood(p: Canvas) -> None:
    p.poly(WOOD_DARK, (1, 7), (6, 0.6), (9.6, 3), (5, 9.6))
    p.poly(WOOD, (1, 6.6), (5.6, 0.8), (7.6, 2), (3, 8.2))
    p.oval(2.8, 7.8, 2.2, 1.9, (226, 188, 132))
    p.oval(2.8, 7.8, 1, 0.8, WOOD)


def stone_item(p: Canvas) -> None:
    p.poly(STONE, (1, 7.4), (0.6, 4), (3.4, 1), (7.2, 1.4), (9.4, 5), (8.4, 8.6), (4, 9.4))
    p.poly(STONE_LIGHT, (1.4, 4.4), (3.6, 1.6), (6.8, 2), (5.2, 4.6))
    p.poly(STONE_DARK, (4, 9), (5.6, 6), (9, 5.4), (8, 8.4))


def coal_item(p: Canvas) -> None:
    p.poly((66, 66, 76), (1, 7.4), (0.6, 4), (3.4, 1), (7.2, 1.4), (9.4, 5), (8.4, 8.6), (4, 9.4))
    p.poly((104, 104, 118), (1.4, 4.4), (3.6, 1.6), (6.8, 2), (5.2, 4.6))
    p.poly((36, 36, 44), (4, 9), (5.6, 6), (9, 5.4), (8, 8.4))


def iron_item(p: Canvas) -> None:
    p.poly((172, 108, 66), (0.4, 8.4), (2.2, 3.4), (7.4, 3.4), (9.4, 8.4))
    p.poly(IRON, (2.2, 3.4), (4, 1.2), (9, 1.2), (7.4, 3.4))
    p.poly((252, 214, 176), (1.6, 7), (2.8, 4.2), (4, 4.2), (3, 7))


def diamond_item(p: Canvas) -> None:
    p.poly((80, 178, 212), (0.4, 3.8), (2.6, 0.8), (6.8, 0.8), (9, 3.8), (4.7, 9.6))
    p.poly(GEM, (0.4, 3.8), (2.6, 0.8), (6.8, 0.8), (6.2, 3.8), (4.7, 9.6))
    p.poly((240, 254, 255), (2.4, 3.6), (3.4, 1.4), (5.6, 1.4), (5, 3.6))


TOOLS: dict[str, tuple[Color, Color]] = {
    "wood": ((190, 136, 82), (226, 178, 124)),
    "stone": ((148, 152, 164), (198, 202, 212)),
    "iron": ((236, 170, 120), (255, 224, 194)),
}
"""Colours of what tools are made of, and of their bright edges."""


def _pickaxe(kind: str) -> Draw:
    color, light = TOOLS[kind]

    def draw(p: Canvas) -> None:
        p.line(1.7, (128, 84, 48), (1.2, 9), (6.4, 3.4))
        p.line(2, color, (2.4, 1.4), (6.4, 2), (8.4, 4), (8.8, 8))
        p.line(0.7, light, (2.6, 1), (6.4, 1.5), (8.6, 3.6))

    return draw


def _sword(kind: str) -> Draw:
    color, light = TOOLS[kind]

    def draw(p: Canvas) -> None:
        p.line(2, color, (3.6, 6.2), (8.8, 1))
        p.line(0.7, light, (3.6, 5.4), (8.4, 0.7))
        p.line(1.5, (128, 84, 48), (0.9, 8.9), (3, 6.8))
        p.line(1.3, (250, 208, 84), (1.6, 5), (4.8, 8.2))

    return draw


ITEMS: dict[str, Draw] = {
    "health": health,
    "food": food,
    "drink": drink,
    "energy": energy,
    "sapling": sapling,
    "wood": wood,
    "stone": stone_item,
    "coal": coal_item,
    "iron": iron_item,
    "diamond": diamond_item,
    **{f"{kind}_pickaxe": _pickaxe(kind) for kind in TOOLS},
    **{f"{kind}_sword": _sword(kind) for kind in TOOLS},
}
"""A drawing for each of `constants.ITEMS`."""

DIGITS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717")
"""Digits of five rows by three columns: the bits of an octal digit are a row."""


def _digit(p: Canvas, count: int) -> None:
    """A count in the lower right, with a black rim."""
    dots = [(8 + 2 * x, 4 + 2 * y) for y, row in enumerate(DIGITS[count]) for x in range(3) if int(row) >> 2 - x & 1]
    for x, y in dots:
        p.rect(x - 0.8, y - 0.8, x + 2.8, y + 2.8, (0, 0, 0))
    for x, y in dots:
        p.rect(x, y, x + 2, y + 2, (250, 250, 250))


@functools.cache
def ground(name: str, size: int) -> np.ndarray:
    """The picture of a material: uint8 `[size, size, 4]`."""
    canvas = Canvas(size)
    GROUND[name](canvas)
    return canvas.pixels()


@functools.cache
def seen(name: str, size: int) -> np.ndarray:
    """The picture of what stands on a material, one of `constants.SEEN`: uint8 `[size, size, 4]`."""
    canvas = Canvas(size)
    SEEN[name](canvas)
    return canvas.pixels()


@functools.cache
def item(name: str, count: int, size: int) -> np.ndarray:
    """The picture of an item and its count, 1 to 9: uint8 `[size, size, 4]`."""
    canvas = Canvas(size)
    ITEMS[name](canvas)
    _digit(canvas, count)
    return canvas.pixels()
