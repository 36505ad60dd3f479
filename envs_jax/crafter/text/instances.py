"""Everything in view with its exact offset, nearest first: "cow 2 steps left and 1 step up".

ELLM names what is in view and SmartPlay the nearest of each kind; here every visible cell is a line of its own, except
for materials that are ignored. Ripe plants and the direction of arrows have names of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int16, UInt8

from envs_jax.checks import at_least, nearest
from envs_jax.crafter import constants as c
from envs_jax.crafter.text.cells import AGENT, COLUMNS, ROWS, SPRITE_OFFSET, cell_codes, faced
from envs_jax.text import Counted, Phrasebook, compact


NAMES = (
    *c.MATERIALS,
    "zombie",
    "skeleton",
    "cow",
    "arrow flying left",
    "arrow flying right",
    "arrow flying up",
    "arrow flying down",
    "plant",
    "ripe plant",
)
"""Names of lines: `NAMES[i]` is code `i + 1` of `cells.cell_codes`."""


def _steps(count: int, direction: str) -> str:
    return f"{count} step{'s' if count > 1 else ''} {direction}"


def _offset(x: int, y: int) -> str:
    parts = [_steps(abs(x), "left" if x < 0 else "right")] if x else []
    return " and ".join(parts + ([_steps(abs(y), "up" if y < 0 else "down")] if y else []))


_OFFSETS = [(x - AGENT[0], y - AGENT[1]) for x in range(COLUMNS) for y in range(ROWS)]
_ORDER = np.array(
    sorted((i for i, o in enumerate(_OFFSETS) if o != (0, 0)), key=lambda i: abs(_OFFSETS[i][0]) + abs(_OFFSETS[i][1])),
    np.int32,
)
"""The cells of a view except for the player's, nearest first; at equal distance left column first, then from above."""
_CELLS = len(_ORDER)

VITALS = Counted(c.ITEMS[: c.VITALS], 0, c.MAX_COUNT, lambda count, name: f"- {name}: {count}/{c.MAX_COUNT}")
ITEM_COUNTS = Counted(c.ITEMS[c.VITALS :], 1, c.MAX_COUNT, lambda count, name: f"- {name.replace('_', ' ')}: {count}")
OMITTED = Counted(("",), 1, _CELLS, lambda count, _: f"- and {count} more")

INSTANCES = Phrasebook(
    [
        "You are asleep.",
        "You see:",
        "You see nothing.",
        "Your status:",
        "Your inventory:",
        "Your inventory is empty.",
        *(f"You face {name}." for name in ("the end of the world", *NAMES)),
        *(f"- {name} {_offset(*_OFFSETS[i])}" for name in NAMES for i in _ORDER),
        VITALS,
        ITEM_COUNTS,
        OMITTED,
    ],
    separator="\n",
    name="crafter.INSTANCES",
)
"""The lines of a list of everything in view."""
_ASLEEP, _SEE, _SEE_NOTHING, _STATUS, _INVENTORY, _EMPTY, _FACE = range(7)
_LINE = _FACE + 1 + len(NAMES)
_OTHER_LINES = 1 + 1 + 1 + 1 + 1 + c.VITALS + 1 + len(ITEM_COUNTS.nouns)
"""Lines that are not about one cell."""


@dataclass(frozen=True)
class Instances:
    """The content of a list of everything in view."""

    most: int = 16
    """Cells with a line of their own; a last line counts the others."""
    ignore: tuple[str, ...] = ("grass", "sand", "path")
    """Names without lines, see `NAMES`."""
    edges: tuple[str, ...] = ()
    """Names that have lines only where a cell of another kind is next to them: the shore of a lake, not its middle."""

    def __post_init__(self) -> None:
        at_least("most", self.most, 1, remedy="it is the number of cells that a caption can list")
        for field, names in (("ignore", self.ignore), ("edges", self.edges)):
            for name in names:
                if name not in NAMES:
                    raise ValueError(f"{field}: nothing is called {name!r}{nearest(name, list(NAMES))}")

    @property
    def size(self) -> int:
        """Phrases of the longest caption."""
        return min(self.most, _CELLS) + _OTHER_LINES

    def caption(
        self,
        view: UInt8[Array, "9 7 2"],
        inventory: Int[Array, "16"],
        facing: Int[Array, ""],
        sleeping: Bool[Array, ""],
    ) -> Int16[Array, " size"]:
        """The list of a state, inside jit.

        **Arguments:** `view`, uint8 `[9, 7, 2]`; `inventory`, counts in the order of `constants.ITEMS`; `facing`, an
        index into `constants.DIRECTIONS`; `sleeping`.
        **Returns:** a caption of `INSTANCES`, int16 `[size]`.
        """
        codes = cell_codes(view)
        listed = self._listed(codes)
        cells = codes[_ORDER].astype(jnp.int16)
        lines = _LINE + (cells - 1) * _CELLS + np.arange(_CELLS, dtype=np.int16)
        lines = jnp.where(listed[_ORDER], lines, jnp.int16(-1))
        cell_lines = compact(lines, min(self.most, _CELLS))
        omitted = jnp.sum(listed) - min(self.most, _CELLS)
        counts = inventory[c.VITALS :]
        ids = jnp.concatenate(
            [
                cell_lines,
                OMITTED.ids(omitted[None], INSTANCES.first(OMITTED)),
                jnp.stack([_FACE + faced(codes, facing), jnp.int32(_STATUS)]).astype(jnp.int16),
                VITALS.ids(inventory[: c.VITALS], INSTANCES.first(VITALS)),
                jnp.where(jnp.any(counts > 0), _INVENTORY, _EMPTY)[None].astype(jnp.int16),
                ITEM_COUNTS.ids(counts, INSTANCES.first(ITEM_COUNTS)),
            ]
        )
        head = [jnp.where(sleeping, _ASLEEP, -1), jnp.where(jnp.any(listed), _SEE, _SEE_NOTHING)]
        return compact(ids, self.size, [phrase.astype(jnp.int16) for phrase in head])

    def _listed(self, codes: Int[Array, "63"]) -> Bool[Array, "63"]:
        """The cells that have a line, in the order of `cell_codes`."""
        named = np.zeros(SPRITE_OFFSET + len(c.SPRITES) + 1, bool)
        named[1 : len(NAMES) + 1] = [name not in self.ignore for name in NAMES]
        listed = jnp.asarray(named)[codes]
        if self.edges:
            edged = np.zeros(named.shape, bool)
            edged[[NAMES.index(name) + 1 for name in self.edges]] = True
            grid = codes.reshape(COLUMNS, ROWS)
            around = jnp.pad(grid, 1, mode="edge")
            inner = (around[:-2, 1:-1] == grid) & (around[2:, 1:-1] == grid)
            inner &= (around[1:-1, :-2] == grid) & (around[1:-1, 2:] == grid)
            listed &= ~(jnp.asarray(edged)[codes] & inner.reshape(-1))
        return listed
