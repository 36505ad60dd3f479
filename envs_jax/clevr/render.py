"""Images of a state from above: shaded balls on a table, and the instruction below."""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from envs_jax.clevr.constants import BALLS, HIGH, LOW, PUSHER_RADIUS, RADIUS


if TYPE_CHECKING:
    from envs_jax.clevr.env import ClevrRobot
    from envs_jax.clevr.state import State

SCALE = 360
"""Pixels per metre."""
MARGIN, STRIP = 24, 60
"""Width of the frame around the table, and height of the strip with the instruction, in pixels."""
FINE = 2
"""The image is drawn this many times larger and averaged, which smooths edges."""

TABLE, FRAME, INK, PAPER = (198, 190, 178), (112, 92, 74), (40, 40, 44), (250, 249, 246)
PAINTS = ((202, 52, 46), (46, 88, 204), (48, 148, 68), (134, 66, 172), (48, 178, 196))
"""Red, blue, green, purple, cyan."""
STEEL = (70, 72, 78)
LIGHT = np.array([-0.45, 0.55, 0.7]) / np.linalg.norm([-0.45, 0.55, 0.7])
"""The direction to the light: from the upper left."""
SHADOW = np.array([0.035, -0.045])
"""The shift of a ball's shadow, in metres."""


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """The x and y of each pixel of the table's image, in metres; the first row is at the back."""
    (left, front), (right, back) = LOW - MARGIN / SCALE, HIGH + MARGIN / SCALE
    columns, rows = (round((high - low) * SCALE * FINE) for low, high in ((left, right), (front, back)))
    x = left + (np.arange(columns) + 0.5) / (SCALE * FINE)
    y = back - (np.arange(rows) + 0.5) / (SCALE * FINE)
    return x, y


def _around(x: np.ndarray, y: np.ndarray, centre: np.ndarray, reach: float) -> tuple[slice, slice]:
    """The rows and columns within `reach` of a centre."""
    columns = np.flatnonzero(np.abs(x - centre[0]) <= reach)
    rows = np.flatnonzero(np.abs(y - centre[1]) <= reach)
    empty = slice(0, 0)
    return (
        slice(rows[0], rows[-1] + 1) if len(rows) else empty,
        slice(columns[0], columns[-1] + 1) if len(columns) else empty,
    )


def _sphere(picture: np.ndarray, x: np.ndarray, y: np.ndarray, centre: np.ndarray, radius: float, paint: Any) -> None:
    """Draw a shaded sphere, seen from above."""
    rows, columns = _around(x, y, centre, radius)
    dx, dy = (x[None, columns] - centre[0]) / radius, (y[rows, None] - centre[1]) / radius
    height = 1 - dx**2 - dy**2
    inside = height > 0
    dz = np.sqrt(np.maximum(height, 0))
    facing = np.clip(dx * LIGHT[0] + dy * LIGHT[1] + dz * LIGHT[2], 0, 1)
    gloss = np.clip(2 * facing * dz - LIGHT[2], 0, 1) ** 24
    color = np.asarray(paint) * (0.35 + 0.75 * facing)[..., None] + 150 * gloss[..., None]
    part = picture[rows, columns]
    part[inside] = np.clip(color, 0, 255)[inside]


def _shade(picture: np.ndarray, x: np.ndarray, y: np.ndarray, centre: np.ndarray, radius: float) -> None:
    """Darken the table under a ball, softly towards the edge."""
    rows, columns = _around(x, y, centre + SHADOW, 1.15 * radius)
    away = np.hypot(x[None, columns] - centre[0] - SHADOW[0], y[rows, None] - centre[1] - SHADOW[1]) / radius
    picture[rows, columns] *= 1 - 0.45 * np.clip((1.15 - away) / 0.3, 0, 1)[..., None]


@functools.cache
def _ground() -> np.ndarray:
    x, y = _grid()
    on_table = (LOW[0] <= x) & (x <= HIGH[0]) & ((LOW[1] <= y) & (y <= HIGH[1]))[:, None]
    return np.where(on_table[..., None], np.array(TABLE, np.float32), np.array(FRAME, np.float32))


def _written(text: str, width: int) -> np.ndarray:
    """The strip with the instruction: uint8 `[STRIP, width, 3]`."""
    from PIL import Image, ImageDraw, ImageFont

    strip = Image.new("RGB", (width, STRIP), PAPER)
    draw = ImageDraw.Draw(strip)
    for size in (15, 13, 11, 9):
        font: Any = ImageFont.load_default(size)
        columns = int((width - 16) / font.getlength("abcdefghij klmnop qrstu vwxyz") * 29)
        lines = textwrap.wrap(text, columns)
        if len(lines) * (size + 3) <= STRIP - 8 and all(font.getlength(line) <= width - 16 for line in lines):
            break
    top = (STRIP - len(lines) * (size + 3)) // 2
    for i, line in enumerate(lines):
        draw.text((8, top + i * (size + 3)), line, INK, font)
    return np.asarray(strip)


def render(env: ClevrRobot, state: State) -> np.ndarray:
    """The image of one state, on the host: behind is up, left is left, and the small dark ball is the pusher.

    **Arguments:** `env`; `state`, one of its states.
    **Returns:** uint8 `[468, 480, 3]`.
    """
    x, y = _grid()
    picture = _ground().copy()
    balls = np.asarray(state.balls, np.float64).reshape(BALLS, 2)
    for centre in balls:
        _shade(picture, x, y, centre, RADIUS)
    if int(state.step_count):  # before the first push it waits below the middle of the table
        _sphere(picture, x, y, np.asarray(state.pusher, np.float64), PUSHER_RADIUS, STEEL)
    for centre, paint in zip(balls, PAINTS):
        _sphere(picture, x, y, centre, RADIUS, paint)
    rows, columns = (n // FINE for n in picture.shape[:2])
    small = picture.reshape(rows, FINE, columns, FINE, 3).mean((1, 3)).astype(np.uint8)
    return np.concatenate([small, _written(env.level.book.phrases[int(state.instruction)], columns)])
