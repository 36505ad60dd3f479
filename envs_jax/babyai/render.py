"""Pictures of a state as MiniGrid draws them: 32 pixels to a cell, the agent's field of view lightened."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from envs_jax.babyai.constants import (
    BALL,
    BLUE,
    BOX,
    CLOSED,
    COLORS,
    DOOR,
    DX,
    DY,
    EMPTY,
    GREEN,
    GREY,
    KEY,
    LOCKED,
    OPEN,
    PURPLE,
    RED,
    UNSEEN,
    VIEW,
    WALL,
    YELLOW,
)
from envs_jax.babyai.state import State, color_of, state_of, type_of
from envs_jax.babyai.view import view


TILE = 32
"""Side of a cell in pixels."""

FINE = 3
"""Side of a pixel in samples."""

RGB = {
    RED: (255, 0, 0),
    GREEN: (0, 255, 0),
    BLUE: (0, 0, 255),
    PURPLE: (112, 39, 195),
    YELLOW: (255, 255, 0),
    GREY: (100, 100, 100),
}

BLACK, LINE = (0, 0, 0), (100, 100, 100)


class _Canvas:
    """One tile, in samples; shapes are in units of the tile, y downwards."""

    def __init__(self) -> None:
        size = TILE * FINE
        self.pixels = np.zeros((size, size, 3), np.uint8)
        self.y, self.x = np.meshgrid((np.arange(size) + 0.5) / size, (np.arange(size) + 0.5) / size, indexing="ij")

    def rect(self, x0: float, x1: float, y0: float, y1: float, color: Any) -> None:
        self.pixels[(self.x >= x0) & (self.x <= x1) & (self.y >= y0) & (self.y <= y1)] = color

    def circle(self, x: float, y: float, r: float, color: Any) -> None:
        self.pixels[(self.x - x) ** 2 + (self.y - y) ** 2 <= r * r] = color

    def agent(self, direction: int) -> None:
        """A triangle that points in a direction."""
        angle = -0.5 * math.pi * direction
        x, y = self.x - 0.5, self.y - 0.5
        x, y = (
            0.5 + x * math.cos(angle) - y * math.sin(angle),
            0.5 + y * math.cos(angle) + x * math.sin(angle),
        )
        inside = np.ones(x.shape, bool)
        corners = ((0.12, 0.19), (0.87, 0.50), (0.12, 0.81))
        for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1]):
            inside &= (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) >= 0
        self.pixels[inside] = RGB[RED]


def _draw(canvas: _Canvas, kind: int, color: int, state: int) -> None:
    c: Any = RGB[color]
    if kind == WALL:
        canvas.rect(0, 1, 0, 1, c)
    elif kind == DOOR and state == OPEN:
        canvas.rect(0.88, 1, 0, 1, c)
        canvas.rect(0.92, 0.96, 0.04, 0.96, BLACK)
    elif kind == DOOR and state == LOCKED:
        canvas.rect(0, 1, 0, 1, c)
        canvas.rect(0.06, 0.94, 0.06, 0.94, (0.45 * np.array(c)).astype(np.uint8))
        canvas.rect(0.52, 0.75, 0.50, 0.56, c)
    elif kind == DOOR and state == CLOSED:
        canvas.rect(0, 1, 0, 1, c)
        canvas.rect(0.04, 0.96, 0.04, 0.96, BLACK)
        canvas.rect(0.08, 0.92, 0.08, 0.92, c)
        canvas.rect(0.12, 0.88, 0.12, 0.88, BLACK)
        canvas.circle(0.75, 0.50, 0.08, c)
    elif kind == KEY:
        canvas.rect(0.50, 0.63, 0.31, 0.88, c)
        canvas.rect(0.38, 0.50, 0.59, 0.66, c)
        canvas.rect(0.38, 0.50, 0.81, 0.88, c)
        canvas.circle(0.56, 0.28, 0.190, c)
        canvas.circle(0.56, 0.28, 0.064, BLACK)
    elif kind == BALL:
        canvas.circle(0.5, 0.5, 0.31, c)
    elif kind == BOX:
        canvas.rect(0.12, 0.88, 0.12, 0.88, c)
        canvas.rect(0.18, 0.82, 0.18, 0.82, BLACK)
        canvas.rect(0.16, 0.84, 0.47, 0.53, c)


@functools.cache
def tile(kind: int, color: int, state: int, heading: int | None, lit: bool) -> np.ndarray:
    """One cell: uint8 `[32, 32, 3]`; `heading` is the agent's if it is in this cell, else None; `lit`, whether the
    agent sees the cell."""
    canvas = _Canvas()
    canvas.rect(0, 0.031, 0, 1, LINE)
    canvas.rect(0, 1, 0, 0.031, LINE)
    if kind != EMPTY:
        _draw(canvas, kind, color, state)
    if heading is not None:
        canvas.agent(heading)
    fine = canvas.pixels
    if lit:
        fine = (fine + 0.30 * (255 - fine)).clip(0, 255).astype(np.uint8)
    return fine.reshape(TILE, FINE, TILE, FINE, 3).mean(axis=3).mean(axis=1).astype(np.uint8)


@functools.cache
def _view():
    return jax.jit(view)


def sees(state: State) -> np.ndarray:
    """The cells that the agent sees: bool `[W, H]`, on the host."""
    width, height = state.grid.shape
    in_view = np.asarray(_view()(state.grid, state.position, state.direction, state.carrying))[..., 0] != UNSEEN
    (x, y), direction = np.asarray(state.position), int(state.direction)
    visible = np.zeros((width, height), bool)
    for i, j in zip(*np.nonzero(in_view)):
        ahead, aside = VIEW - 1 - j, i - VIEW // 2
        u, v = x + DX[direction] * ahead - DY[direction] * aside, y + DY[direction] * ahead + DX[direction] * aside
        if 0 <= u < width and 0 <= v < height:
            visible[u, v] = True
    return visible


def render(state: State) -> np.ndarray:
    """The picture of one state: uint8 `[32 H, 32 W, 3]`, on the host."""
    cells = np.asarray(state.grid).astype(int)
    position, direction = np.asarray(state.position), int(state.direction)
    lit = sees(state)
    picture = np.zeros((cells.shape[1] * TILE, cells.shape[0] * TILE, 3), np.uint8)
    for (x, y), cell in np.ndenumerate(cells):
        heading = direction if (x, y) == tuple(position) else None
        drawn = tile(int(type_of(cell)), int(color_of(cell)), int(state_of(cell)), heading, bool(lit[x, y]))
        picture[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE] = drawn
    return picture


LETTERS = {WALL: "W", KEY: "K", BALL: "A", BOX: "B"}
DOOR_LETTERS = {CLOSED: "D", LOCKED: "L"}
HEADINGS = (">>", "VV", "<<", "^^")


def letters(state: State) -> str:
    """The state in letters, as MiniGrid prints it: two per cell, for type and colour, on the host.

    An open door is two underscores, the agent two arrowheads.
    """
    cells = np.asarray(state.grid).astype(int)
    names = {(x, y): HEADINGS[int(state.direction)] for x, y in [np.asarray(state.position).tolist()]}
    for (x, y), cell in np.ndenumerate(cells):
        kind, door = int(type_of(cell)), int(state_of(cell))
        letter = DOOR_LETTERS.get(door, "__") if kind == DOOR else LETTERS.get(kind, "  ")
        name = letter if len(letter) > 1 else letter + COLORS[int(color_of(cell))][0].upper()
        names.setdefault((x, y), name)
    return "\n".join("".join(names[x, y] for x in range(cells.shape[0])) for y in range(cells.shape[1]))
