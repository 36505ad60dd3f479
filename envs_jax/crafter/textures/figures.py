"""Drawings of what stands on a material: creatures, arrows, plants, the player."""

from __future__ import annotations

from envs_jax.crafter import constants as c
from envs_jax.crafter.textures.canvas import BONE, DARK, HAIR, SIDE, SKIN, TUNIC, WOOD, WOOD_LIGHT, Canvas, Draw


def zombie(p: Canvas) -> None:
    p.rect(4, 12, 6.6, 14, (44, 40, 64))
    p.rect(7.4, 12, 10, 14, (44, 40, 64))
    p.rect(0, 6, 14, 8, (112, 160, 146))
    p.rect(3.6, 6, 10.4, 12, (98, 76, 140))
    p.poly((112, 160, 146), (5, 12), (6, 9.8), (7, 12))
    p.line(0.7, (70, 54, 104), (7.6, 6.6), (7.6, 10))
    p.rect(3.6, 0, 10.4, 6, (146, 196, 178))
    p.rect(3.6, 0, 10.4, 1.6, (62, 84, 78))
    p.poly((62, 84, 78), (3.6, 1.6), (5.6, 1.6), (4.4, 2.6))
    p.rect(4, 2.2, 6, 4, (255, 244, 190))
    p.rect(8, 2.2, 10, 4, (255, 244, 190))
    p.rect(4.6, 2.4, 6, 4, (190, 20, 30))
    p.rect(8, 2.4, 9.4, 4, (190, 20, 30))
    p.rect(5, 4.8, 9, 5.4, (52, 74, 68))


def skeleton(p: Canvas) -> None:
    p.line(1, (132, 90, 52), (11.4, 2.6), (13.4, 5.6), (13.4, 8.6), (11.4, 11.6))  # its bow
    p.line(0.5, (220, 220, 220), (11.4, 2.6), (11.4, 11.6))
    p.rect(4, 11, 6, 14, BONE)
    p.rect(8, 11, 10, 14, BONE)
    p.rect(1.6, 6.4, 12, 7.8, BONE)
    p.rect(4, 7.8, 10, 11.4, (58, 54, 60))
    p.rect(6, 6, 8, 11.6, BONE)
    for y in (8.6, 10):
        p.rect(4, y, 10, y + 0.9, BONE)
    p.rect(3.6, 0.4, 10.4, 4.4, BONE)
    p.rect(4.8, 0, 9.2, 6, BONE)
    p.rect(4.2, 2, 6.2, 4, DARK)
    p.rect(7.8, 2, 9.8, 4, DARK)
    for x in (5.6, 6.8, 8):
        p.rect(x, 5, x + 0.5, 6, (120, 116, 108))


def cow(p: Canvas) -> None:
    for x in (4.6, 8.2):
        p.rect(x, 9, x + 1.4, 12.6, (176, 168, 160))
    for x in (2.4, 10.4):
        p.rect(x, 9, x + 1.8, 13.6, (226, 218, 208))
        p.rect(x, 12.4, x + 1.8, 13.6, DARK)
    p.rect(2, 4.6, 12.8, 10, (246, 242, 234))
    p.oval(8, 7.6, 5.4, 3.4, (246, 242, 234))
    p.oval(8.4, 5.8, 2.3, 1.6, (78, 52, 42))
    p.oval(12, 8, 1.5, 1.9, (78, 52, 42))
    p.line(0.8, (78, 52, 42), (13.2, 5), (13.6, 9.6))
    p.rect(0.4, 2.4, 5, 7, (78, 52, 42))
    p.rect(2, 2.4, 3.4, 6, (246, 242, 234))
    p.rect(0.2, 6, 5.2, 8.4, (250, 178, 172))
    p.rect(1.2, 7, 1.9, 7.7, (150, 84, 84))
    p.rect(3.6, 7, 4.3, 7.7, (150, 84, 84))
    for x in (0.8, 3.6):
        p.rect(x, 3.6, x + 1, 5, (255, 255, 255))
        p.rect(x + 0.3, 4, x + 0.9, 5, DARK)
    p.line(0.9, BONE, (0.9, 2.4), (0.4, 0.9))
    p.line(0.9, BONE, (4.5, 2.4), (5, 0.9))


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
    p.rect(6.2, 5, 7.8, 12, (40, 104, 42))
    p.poly((34, 98, 44), (7, 9.4), (1.4, 8.4), (1.2, 3.6), (6, 5))
    p.poly((34, 98, 44), (7, 7.4), (8, 3), (12.8, 1.4), (12.6, 6.4))
    p.poly((190, 240, 118), (6.4, 8.4), (2, 7.8), (2, 4.4), (5.6, 5.8))
    p.poly((190, 240, 118), (7.8, 6.6), (8.6, 3.6), (12, 2.4), (11.8, 5.8))


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
    p.rect(10, 6, 12, 10.8, WOOD)
    _body(p)
    p.rect(2, 6.2, 7, 8, (176, 36, 46))
    p.rect(0, 6, 2, 8.2, SKIN)
    p.rect(3.6, 0, 10, 6, SKIN)
    p.rect(3.6, 0, 10.4, 1.8, HAIR)
    p.rect(7.8, 0, 10.4, 5.4, HAIR)
    p.rect(4, 2.2, 5.8, 4, DARK)
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


SPRITES: dict[str, Draw] = {
    "zombie": zombie,
    "skeleton": skeleton,
    "cow": cow,
    **{name: _turned(arrow, i) for i, name in enumerate(c.SPRITES[3:7])},
    "plant": plant,
    "plant-ripe": plant_ripe,
    "player-left": player_left,
    "player-right": _turned(player_left, 1),
    "player-up": player_up,
    "player-down": player_down,
    "player-sleep": player_sleep,
}
"""A drawing for each of `constants.SPRITES`."""
