"""Pictures and texts of boards of cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs_jax.checks import nearest


TEXTS = {"grid": ("", "\n"), "spaced": ("  ", " \n "), "tabs": (" \t ", " \t\n ")}
"""The separators between two cells of a row, and between two rows, in the published texts of boards. `grid` is that of
RAGEN's paper and of ROLL, `spaced` that of RAGEN's Sokoban of 2026, and `tabs` VAGEN's; the last two are without the
white space at either end."""


def separators(text: str | None) -> tuple[str, str] | None:
    """The entry of `TEXTS` for an option `text`; None for None. **Raises:** `ValueError` for any other value."""
    if text is not None and text not in TEXTS:
        raise ValueError(f"text is {text!r}{nearest(str(text), ['none', *TEXTS])}; it is none, {', '.join(TEXTS)}")
    return TEXTS[text] if text else None


TILE = 32
"""Side of a cell in pixels."""

Color = tuple[int, int, int]
WHITE, BLACK, GRAY = (255, 255, 255), (0, 0, 0), (150, 150, 150)
RED, GREEN, BLUE, YELLOW = (214, 60, 48), (60, 160, 72), (52, 94, 190), (240, 196, 48)


def draw(cells: Sequence[Sequence[Color]], side: int = TILE) -> np.ndarray:
    """A board of coloured cells of `side` pixels, with lines between: uint8 `[side R, side C, 3]`."""
    picture = np.kron(np.array(cells, np.uint8), np.ones((side, side, 1), np.uint8))
    picture[::side] = picture[:, ::side] = GRAY
    return picture


def disc(picture: np.ndarray, cell: int, color: Color, radius: float = 0.31) -> None:
    """Draw a disc, its `radius` in units of the cell, into a cell of a board."""
    row, column = divmod(cell, picture.shape[1] // TILE)
    y, x = (np.mgrid[:TILE, :TILE] + 0.5) / TILE - 0.5
    picture[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE][x * x + y * y <= radius**2] = color


def wall(picture: np.ndarray, cell: int, move: tuple[int, int]) -> None:
    """Draw a thick line on the side of a cell that a move would cross."""
    row, column = divmod(cell, picture.shape[1] // TILE)
    top, left = row * TILE, column * TILE
    bottom, right = top + TILE, left + TILE
    if move[0]:
        edge = bottom if move[0] > 0 else top
        picture[max(edge - 2, 0) : edge + 2, left:right] = BLACK
    else:
        edge = right if move[1] > 0 else left
        picture[top:bottom, max(edge - 2, 0) : edge + 2] = BLACK


GLYPHS = dict(
    zip("0123456789A*", "75557 26227 71747 71717 55711 74717 74757 71122 75757 75717 25755 05250".split(), strict=True)
)
"""Letters of five rows by three columns: the bits of an octal digit are a row."""


def write(picture: np.ndarray, text: str, top: int, middle: int, color: Color, scale: int = 6) -> None:
    """Write digits, A and * on a picture, centered on a column, `scale` pixels per dot of a letter."""
    rows = ["0".join(f"{int(GLYPHS[letter][row]):03b}" for letter in text) for row in range(5)]
    dots = np.kron(np.array([list(map(int, row)) for row in rows], bool), np.ones((scale, scale), bool))
    left = middle - dots.shape[1] // 2
    picture[top : top + dots.shape[0], left : left + dots.shape[1]][dots] = color
