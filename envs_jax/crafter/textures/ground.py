"""Drawings of the materials of a world."""

from __future__ import annotations

from envs_jax.crafter.textures.canvas import (
    BLADE,
    GEM,
    GRASS,
    SPROUT,
    STONE,
    STONE_DARK,
    STONE_LIGHT,
    WOOD,
    WOOD_DARK,
    WOOD_LIGHT,
    Canvas,
    Color,
    Draw,
)


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
    p.poly(STONE_LIGHT, (1, 2.4), (3.4, 0.6), (6.6, 1.4), (4.6, 4), (2, 4.6))
    p.poly(STONE_LIGHT, (8, 6), (12, 5), (11, 9))
    p.poly(STONE_DARK, (2.4, 9.6), (6, 8.4), (7, 11.4), (4, 12.4))
    p.line(0.7, STONE_DARK, (9, 1.4), (11.4, 2.4), (12, 3.8))
    p.line(0.7, STONE_DARK, (9, 13), (10.4, 11.6), (13, 11.4))


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
