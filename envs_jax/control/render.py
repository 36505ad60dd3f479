"""Pictures made of rods and discs. Positions are `(column, row)` in pixels; row 0 is at the top."""

from __future__ import annotations

from typing import Any

import numpy as np


Color = tuple[int, int, int]

WHITE, BLACK, GRAY = (255, 255, 255), (0, 0, 0), (190, 190, 190)
YELLOW, RED, BLUE, TEAL = (204, 204, 0), (204, 77, 77), (60, 90, 200), (0, 204, 204)


def blank(height: int, width: int, color: Color = WHITE) -> np.ndarray:
    """A picture of one color, uint8 `[height, width, 3]`."""
    return np.full((height, width, 3), color, np.uint8)


def rod(picture: np.ndarray, start: Any, end: Any, width: float, color: Color) -> None:
    """Draw a straight rod from `start` to `end`, which must differ; its ends are cut square."""
    rows, columns = np.mgrid[: picture.shape[0], : picture.shape[1]]
    dx, dy = np.subtract(end, start, dtype=np.float64)
    length = np.hypot(dx, dy)
    along = ((columns - start[0]) * dx + (rows - start[1]) * dy) / length
    offset = ((columns - start[0]) * dy - (rows - start[1]) * dx) / length
    picture[(along >= 0) & (along <= length) & (np.abs(offset) <= width / 2)] = color


def disc(picture: np.ndarray, center: Any, radius: float, color: Color) -> None:
    """Draw a filled disc."""
    rows, columns = np.mgrid[: picture.shape[0], : picture.shape[1]]
    picture[np.hypot(columns - center[0], rows - center[1]) <= radius] = color
