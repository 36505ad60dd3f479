"""Drawings of the items of an inventory, and of their counts.

Items stand on black, in the upper left of their cell; the digit of their count has the lower right.
"""

from __future__ import annotations

from envs_jax.crafter.textures.canvas import (
    BONE,
    GEM,
    IRON,
    SIDE,
    STONE,
    STONE_DARK,
    STONE_LIGHT,
    WOOD,
    WOOD_DARK,
    Canvas,
    Color,
    Draw,
)


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


HANDLE = (134, 88, 50)
TOOLS: dict[str, tuple[Color, Color]] = {
    "wood": ((164, 110, 60), (206, 156, 102)),
    "stone": ((146, 150, 164), (206, 210, 220)),
    "iron": ((244, 186, 138), (255, 232, 208)),
}
"""Colours of what tools are made of, and of their bright edges."""


def _pickaxe(kind: str) -> Draw:
    color, light = TOOLS[kind]

    def draw(p: Canvas) -> None:
        p.line(1.8, HANDLE, (1.2, 9), (6.4, 3.4))
        p.line(2.4, color, (1.8, 1.4), (6.6, 2), (8.2, 3.8), (8.6, 8.2))
        p.line(0.8, light, (1.6, 0.8), (6.6, 1.3), (8.8, 3.6))

    return draw


def _sword(kind: str) -> Draw:
    color, light = TOOLS[kind]

    def draw(p: Canvas) -> None:
        p.line(2.6, color, (3.6, 6.2), (8.6, 1.2))
        p.line(0.9, light, (3.4, 5.4), (8.2, 0.6))
        p.line(1.7, HANDLE, (0.9, 8.9), (3, 6.8))
        p.line(1.5, (250, 208, 84), (1.4, 4.8), (5, 8.4))

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


def _digit(p: Canvas, count: int, dot: float) -> None:
    """A count in the lower right, with a black rim; `dot`, the side of its dots."""
    left, top, rim = SIDE - 3 * dot, SIDE - 5 * dot, 0.4 * dot
    dots = [
        (left + dot * x, top + dot * y)
        for y, row in enumerate(DIGITS[count])
        for x in range(3)
        if int(row) >> 2 - x & 1
    ]
    for x, y in dots:
        p.rect(x - rim, y - rim, x + dot + rim, y + dot + rim, (0, 0, 0))
    for x, y in dots:
        p.rect(x, y, x + dot, y + dot, (250, 250, 250))


def counted(name: str, count: int) -> Draw:
    """An item with its count, 1 to 9."""

    def draw(p: Canvas) -> None:
        if p.size < 14:  # a digit of whole pixels, and the item beside it
            ITEMS[name](p)
            _digit(p, count, SIDE / 7)
            return
        x, y = p.x, p.y
        p.x, p.y = (x - 1) / 1.16, (y - 1) / 1.16
        ITEMS[name](p)
        p.x, p.y = x, y
        _digit(p, count, SIDE / 11)

    return draw
