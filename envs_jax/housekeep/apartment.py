"""The apartment: five rooms, and the receptacles in them. One plan, made by hand; nothing about it is random.

It has the footprint, the rooms and the number of receptacles of the scene that ELLM uses (iGibson's Rs_int),
whose plan is not available. Receptacles have the names of Housekeep's annotations, so that these apply to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs_jax.housekeep.constants import BANDS, HEIGHT, WIDTH


Rectangle = tuple[int, int, int, int]
"""Top row, left column, rows, columns."""

ROOMS: dict[str, Rectangle] = {
    "kitchen": (1, 1, 10, 12),
    "bathroom": (1, 14, 10, 9),
    "lobby": (12, 14, 6, 9),
    "bedroom": (19, 14, 10, 9),
    "living_room": (12, 1, 17, 12),
}

OPENINGS: tuple[Rectangle, ...] = ((11, 6, 1, 2), (11, 17, 1, 2), (18, 17, 1, 2), (14, 13, 2, 1))
"""Gaps in the walls: kitchen and living room, lobby and bathroom, lobby and bedroom, lobby and living room."""

DISTRACTORS = ("door", "picture", "window")
"""Kinds of receptacles that are a correct place for nothing. Windows have a sill, the others hold nothing."""


@dataclass(frozen=True)
class Receptacle:
    """A piece of furniture, or what else objects might be put on."""

    room: str
    kind: str
    cells: tuple[Rectangle, ...]
    holds: str
    """The bands at which objects can lie, as the letters `l`, `m`, `h`."""
    blocks: str = ""
    """Further bands that it fills without holding anything there."""
    flat: bool = False
    """Whether the agent can walk on it."""

    @property
    def key(self) -> str:
        """The name that preferences use: `living_room|coffee_table`."""
        return f"{self.room}|{self.kind}"

    @property
    def name(self) -> str:
        """The name in texts: `living room coffee table`."""
        return f"{self.room} {self.kind}".replace("_", " ")

    @property
    def is_distractor(self) -> bool:
        return self.kind in DISTRACTORS


def _receptacles(room: str, *items: tuple) -> list[Receptacle]:
    receptacles = []
    for kind, cells, holds, *options in items:
        rectangles = cells if isinstance(cells[0], tuple) else (cells,)
        flat = "flat" in options
        blocks = next((text for text in options if text != "flat"), "")
        receptacles.append(Receptacle(room, kind, tuple(rectangles), holds, blocks, flat))
    return receptacles


RECEPTACLES: tuple[Receptacle, ...] = (
    *_receptacles(
        "kitchen",
        ("fridge", (1, 1, 2, 2), "lmh"),
        ("bottom_cabinet", ((1, 3, 2, 2), (1, 7, 2, 2), (1, 11, 2, 2)), "l"),
        ("counter", ((1, 3, 2, 2), (1, 7, 2, 2)), "m"),
        ("top_cabinet", ((1, 3, 1, 2), (1, 7, 1, 2)), "h"),
        ("dishwasher", (1, 5, 2, 2), "l"),
        ("sink", (1, 5, 2, 2), "m"),
        ("oven", (1, 9, 2, 2), "l"),
        ("stove", (1, 9, 2, 2), "m"),
        ("microwave", (1, 9, 1, 2), "h"),
        ("coffee_machine", (1, 11, 2, 2), "m"),
        ("table", (6, 5, 2, 4), "m"),
        ("chair", (8, 6, 1, 2), "l"),
        ("carpet", (4, 5, 1, 4), "l", "flat"),
        ("window", (0, 5, 1, 2), "h"),
        ("door", (11, 8, 1, 1), "", "lmh"),
    ),
    *_receptacles(
        "bathroom",
        ("bathtub", (1, 14, 2, 6), "l"),
        ("toilet", (5, 14, 2, 2), "l"),
        ("sink", (4, 21, 2, 2), "m"),
        ("counter", (6, 21, 2, 2), "m"),
        ("bottom_cabinet", (4, 21, 4, 2), "l"),
        ("top_cabinet", (4, 22, 4, 1), "h"),
        ("shelf", (9, 14, 2, 1), "lmh"),
        ("window", (0, 16, 1, 2), "m", "h"),
        ("door", (11, 19, 1, 1), "", "lmh"),
    ),
    *_receptacles(
        "lobby",
        ("bottom_cabinet", (12, 14, 1, 3), "l"),
        ("chair", (12, 20, 1, 2), "l"),
        ("table", (17, 20, 1, 3), "m"),
        ("piano", (17, 14, 1, 3), "m", "l"),
        ("carpet", (14, 16, 2, 4), "l", "flat"),
        ("door", (14, 23, 2, 1), "", "lmh"),
    ),
    *_receptacles(
        "bedroom",
        ("bed", (22, 17, 4, 6), "l"),
        ("table", (20, 21, 2, 2), "m"),
        ("chest", (28, 20, 1, 3), "l"),
        ("bottom_cabinet", (28, 14, 1, 4), "l"),
        ("shelf", (24, 14, 3, 1), "lmh"),
        ("console_table", (20, 14, 3, 1), "m"),
        ("office_chair", (21, 15, 1, 1), "l"),
        ("basket", (19, 22, 1, 1), "l"),
        ("window", (29, 20, 1, 3), "m", "h"),
        ("picture", (20, 23, 2, 1), "", "mh"),
    ),
    *_receptacles(
        "living_room",
        ("sofa", (27, 3, 2, 6), "l"),
        ("coffee_table", (22, 4, 2, 4), "l"),
        ("sofa_chair", (22, 11, 2, 2), "l"),
        ("console_table", (17, 1, 4, 1), "m"),
        ("bottom_cabinet", (17, 1, 4, 1), "l"),
        ("shelf", (12, 9, 1, 4), "lmh"),
        ("table", (15, 5, 2, 4), "m"),
        ("chair", (17, 6, 1, 2), "l"),
        ("carpet", (20, 3, 6, 6), "l", "flat"),
        ("window", (23, 0, 2, 1), "m", "h"),
        ("picture", (13, 0, 2, 1), "", "mh"),
    ),
)
"""The receptacles, in the order of their numbers. A name occurs once."""

NAMES = tuple(receptacle.name for receptacle in RECEPTACLES)
KEYS = tuple(receptacle.key for receptacle in RECEPTACLES)

NOTHING, SOLID = -1, -2
"""Contents of a cell at one height that are no receptacle: air, and a wall."""


def cells_of(rectangle: Rectangle) -> list[int]:
    """The numbers of the cells of a rectangle, row by row."""
    top, left, rows, columns = rectangle
    return [y * WIDTH + x for y in range(top, top + rows) for x in range(left, left + columns)]


def content() -> np.ndarray:
    """The content of each cell at each height: int16 `[3, CELLS]`, the number of a receptacle, `NOTHING` or `SOLID`.

    **Raises:** `ValueError` if two receptacles fill the same place, or one lies outside of its room.
    """
    contents = np.full((len(BANDS), HEIGHT * WIDTH), SOLID, np.int16)
    inside = {room: cells_of(rectangle) for room, rectangle in ROOMS.items()}
    for cell in [c for cells in inside.values() for c in cells] + [c for o in OPENINGS for c in cells_of(o)]:
        contents[:, cell] = NOTHING
    for number, receptacle in sorted(enumerate(RECEPTACLES), key=lambda item: item[1].flat):
        in_wall = receptacle.is_distractor
        for cell in (c for rectangle in receptacle.cells for c in cells_of(rectangle)):
            if not in_wall and cell not in inside[receptacle.room]:
                raise ValueError(f"{receptacle.name} lies at {divmod(cell, WIDTH)}, outside of its room")
            for letter in receptacle.holds + receptacle.blocks:
                band = "lmh".index(letter)
                if receptacle.flat and contents[band, cell] >= 0:
                    continue  # a carpet lies below furniture
                if contents[band, cell] != (SOLID if in_wall else NOTHING):
                    raise ValueError(f"{receptacle.name} fills {divmod(cell, WIDTH)} at {BANDS[band]}, as another does")
                contents[band, cell] = number
    return contents


def walkable() -> np.ndarray:
    """The cells that the agent can enter: bool `[CELLS]`."""
    free = content()[0] != SOLID
    for receptacle in RECEPTACLES:
        if not receptacle.flat:
            for rectangle in receptacle.cells:
                free[cells_of(rectangle)] = False
    return free


def rooms() -> np.ndarray:
    """The room of each cell: int8 `[CELLS]`, an index into `ROOMS`; -1 for walls and openings."""
    room_of = np.full(HEIGHT * WIDTH, -1, np.int8)
    for number, rectangle in enumerate(ROOMS.values()):
        room_of[cells_of(rectangle)] = number
    return room_of
