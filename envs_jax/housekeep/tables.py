"""Tables computed from the plan: where steps lead, what the crosshair hits, what is seen.

All of it is computed once, on the host; a step of the environment only looks it up.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from envs_jax.housekeep import apartment
from envs_jax.housekeep.apartment import RECEPTACLES, SOLID
from envs_jax.housekeep.constants import (
    BANDS,
    BREADTH,
    CELLS,
    DEPTH,
    FREE,
    FURNITURE,
    HEADINGS,
    HEIGHT,
    HIGH,
    LOW,
    MIDDLE,
    POSES,
    REACH,
    SIGHT,
    UNSEEN,
    WALL,
    WIDTH,
)


@dataclass(frozen=True)
class Spots:
    """The places of objects: `S` spots, each of which holds one. A spot is a cell of a receptacle at a height that the
    crosshair can hit. Spots are numbered by receptacle, row, column and height."""

    receptacle: np.ndarray
    """int16 `[S]`."""
    cell: np.ndarray
    """int16 `[S]`."""
    band: np.ndarray
    """int8 `[S]`."""

    def __len__(self) -> int:
        return len(self.cell)

    def of_receptacle(self, receptacle: int) -> np.ndarray:
        """The spots of one receptacle, as many as its capacity."""
        return np.flatnonzero(self.receptacle == receptacle)


@dataclass(frozen=True)
class Tables:
    """Tables over poses (`cell * 4 + heading`) and heights."""

    walkable: np.ndarray
    """bool `[CELLS]`: where the agent can stand."""
    ahead: np.ndarray
    """int16 `[POSES]`: the cell that a step forward leads to; the same cell if the way is blocked."""
    hit_receptacle: np.ndarray
    """int8 `[POSES * 3]`, by `pose * 3 + pitch`: the receptacle that the crosshair hits, -1 for none."""
    hit_spot: np.ndarray
    """int16 `[POSES * 3]`: the spot that it hits, -1 for none."""
    spots: Spots
    sees_cell: np.ndarray
    """bool `[POSES, CELLS]`."""
    sees_spot: np.ndarray
    """bool `[POSES, S]`."""
    sees_receptacle: np.ndarray
    """uint32 `[POSES, words]`, bit `r % 32` of word `r // 32` for receptacle `r`."""
    image: np.ndarray
    """uint8 `[POSES, DEPTH * BREADTH * 3]`: the observed image without objects."""
    window: np.ndarray
    """int16 `[POSES, S]`: the index of a visible spot in that image, or its size if it is not in it."""


def words(bits: np.ndarray) -> np.ndarray:
    """The last axis of a bool array as words of 32 bits: uint32 `[..., ceil(n / 32)]`."""
    count = -(-bits.shape[-1] // 32)
    padded = np.zeros((*bits.shape[:-1], count * 32), bool)
    padded[..., : bits.shape[-1]] = bits
    weights = np.uint32(1) << np.arange(32, dtype=np.uint32)
    return (padded.reshape(*bits.shape[:-1], count, 32) * weights).sum(-1).astype(np.uint32)


def _cells_ahead(distance: int) -> tuple[np.ndarray, np.ndarray]:
    """The cell at a distance ahead of each pose, and whether it lies in the grid: `[POSES]` each."""
    y, x = np.divmod(np.repeat(np.arange(CELLS), len(HEADINGS)), WIDTH)
    step = np.tile(np.array(HEADINGS), (CELLS, 1))
    y, x = y + distance * step[:, 0], x + distance * step[:, 1]
    inside = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    return np.where(inside, y * WIDTH + x, 0), inside


def _rays(content: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first hit of the crosshair along a row or a column of cells at one height: the receptacle (-1 for none)
    and its cell, `[POSES, 3]` each."""
    receptacle, hit_cell = np.full((POSES, len(BANDS)), -1), np.full((POSES, len(BANDS)), -1)
    open_ = np.ones((POSES, len(BANDS)), bool)
    for distance in range(1, REACH + 1):
        cell, inside = _cells_ahead(distance)
        filled = np.where(inside[:, None], content[:, cell].T, SOLID)
        hit = open_ & (filled >= 0)
        receptacle, hit_cell = np.where(hit, filled, receptacle), np.where(hit, cell[:, None], hit_cell)
        open_ &= filled == apartment.NOTHING
    return receptacle, hit_cell


def _cells_on_line(dy: int, dx: int) -> list[set[tuple[int, int]]]:
    """The cells that a line from the centre of a cell to that of another, `dy` and `dx` away, passes between them: for
    each row or column on the way, whichever are more, the cell there, or both where the line runs between two."""
    steps, cells = max(abs(dy), abs(dx)), []
    for step in range(1, steps):
        low = [(2 * part * step + steps) // (2 * steps) for part in (dy, dx)]
        high = [-((-2 * part * step + steps) // (2 * steps)) for part in (dy, dx)]
        cells.append({(low[0], low[1]), (high[0], high[1])})
    return cells


def _lines_of_sight(content: np.ndarray, walkable: np.ndarray) -> np.ndarray:
    """Return whether the straight line between the centres of two cells meets no wall and no high furniture between
    them: bool `[CELLS, CELLS]`, the first cell walkable. A line between two cells is free if one of them is."""
    opaque = np.ones((HEIGHT + 2 * SIGHT, WIDTH + 2 * SIGHT), bool)
    inner = slice(SIGHT, SIGHT + HEIGHT), slice(SIGHT, SIGHT + WIDTH)
    opaque[inner] = ((content[MIDDLE] >= 0) & (content[HIGH] >= 0) | (content[LOW] == SOLID)).reshape(HEIGHT, WIDTH)
    starts = np.flatnonzero(walkable)
    y, x = np.divmod(starts, WIDTH)
    clear = np.zeros((CELLS, CELLS), bool)
    for dy, dx in itertools.product(range(-SIGHT, SIGHT + 1), repeat=2):
        inside = (y + dy >= 0) & (y + dy < HEIGHT) & (x + dx >= 0) & (x + dx < WIDTH)
        if dy**2 + dx**2 > SIGHT**2 or not inside.any():
            continue
        from_y, from_x = y[inside] + SIGHT, x[inside] + SIGHT
        free = np.ones(len(from_y), bool)
        for cells in _cells_on_line(dy, dx):
            free &= ~np.logical_and.reduce([opaque[from_y + v, from_x + u] for v, u in cells])
        clear[starts[inside], starts[inside] + dy * WIDTH + dx] = free
    return clear


def _sight(clear: np.ndarray, field_of_view: float) -> np.ndarray:
    """The cells that each pose sees, bool `[POSES, CELLS]`: those in the line of sight within the field of view."""
    y, x = np.divmod(np.arange(CELLS), WIDTH)
    dy, dx = y[None] - y[:, None], x[None] - x[:, None]
    sees = np.zeros((CELLS, len(HEADINGS), CELLS), bool)
    for heading, (sy, sx) in enumerate(HEADINGS):
        forward, aside = dy * sy + dx * sx, np.abs(dy * sx) + np.abs(dx * sy)
        in_view = np.arctan2(aside, forward) <= np.deg2rad(field_of_view / 2) + 1e-6
        sees[:, heading] = clear & in_view
    return sees.reshape(POSES, CELLS)


def _windows() -> np.ndarray:
    """The cell at each place of the observed image, int16 `[POSES, DEPTH * BREADTH]`, -1 outside of the grid: rows from
    the farthest to the agent's own, columns from left to right."""
    ahead, aside = np.meshgrid(DEPTH - 1 - np.arange(DEPTH), np.arange(BREADTH) - BREADTH // 2, indexing="ij")
    y, x = np.divmod(np.arange(CELLS), WIDTH)
    cells = np.empty((CELLS, len(HEADINGS), DEPTH * BREADTH), np.int16)
    for heading, (sy, sx) in enumerate(HEADINGS):
        v = y[:, None] + (sy * ahead + sx * aside).reshape(1, -1)
        u = x[:, None] + (sx * ahead - sy * aside).reshape(1, -1)
        inside = (v >= 0) & (v < HEIGHT) & (u >= 0) & (u < WIDTH)
        cells[:, heading] = np.where(inside, v * WIDTH + u, -1)
    return cells.reshape(POSES, -1)


@functools.cache
def _plan() -> tuple[np.ndarray, ...]:
    """The part that does not depend on the field of view."""
    content, walkable = apartment.content(), apartment.walkable()
    return content, walkable, *_rays(content), _lines_of_sight(content, walkable), _windows()


@functools.cache
def tables(field_of_view: float = 180.0) -> Tables:
    """The tables of the apartment.

    **Arguments:** `field_of_view`, the horizontal angle that the agent sees, in degrees.
    """
    content, walkable, hit, hit_cell, clear, window = _plan()
    cell, inside = _cells_ahead(1)
    current = np.repeat(np.arange(CELLS), len(HEADINGS))
    ahead = np.where(inside & walkable[cell], cell, current)

    standing = np.repeat(walkable, len(HEADINGS))[:, None]
    holds = np.array([[letter in receptacle.holds for letter in "lmh"] for receptacle in RECEPTACLES])
    hits = zip(*np.nonzero(standing & (hit >= 0)))
    places = sorted({(int(hit[i, b]), int(hit_cell[i, b]), int(b)) for i, b in hits if holds[hit[i, b], b]})
    receptacle, cells, band = (np.array(part) for part in zip(*places))
    number = np.full((CELLS, len(BANDS)), -1, np.int16)
    number[cells, band] = np.arange(len(places))
    hit_spot = np.where(hit >= 0, number[hit_cell, np.arange(len(BANDS))], -1)

    sees = _sight(clear, field_of_view)
    sees_receptacle = np.zeros((POSES, len(RECEPTACLES)), bool)
    for r in range(len(RECEPTACLES)):
        sees_receptacle[:, r] = sees[:, (content == r).any(0)].any(1)

    code = np.where(content == apartment.NOTHING, FREE, np.where(content == SOLID, WALL, FURNITURE + content))
    codes = np.where((window >= 0)[..., None], code.T[window], UNSEEN)
    visible = np.take_along_axis(sees, np.maximum(window, 0).astype(np.int64), axis=1) & (window >= 0)
    image = np.where(visible[..., None], codes, UNSEEN).astype(np.uint8).reshape(POSES, -1)
    places_in_window = np.full((POSES, CELLS), -1)
    pose, position = np.nonzero(visible)
    places_in_window[pose, window[pose, position]] = position
    index = places_in_window[:, cells]
    return Tables(
        walkable=walkable,
        ahead=ahead.astype(np.int16),
        hit_receptacle=hit.astype(np.int8).reshape(-1),
        hit_spot=hit_spot.astype(np.int16).reshape(-1),
        spots=Spots(receptacle.astype(np.int16), cells.astype(np.int16), band.astype(np.int8)),
        sees_cell=sees,
        sees_spot=sees[:, cells],
        sees_receptacle=words(sees_receptacle),
        image=image,
        window=np.where(index >= 0, index * len(BANDS) + band, image.shape[1]).astype(np.int16),
    )
