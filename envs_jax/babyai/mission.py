"""A mission as integers: up to four clauses in BabyAI's tree `(A [and B]) [then | after] (C [and D])`.

Missions are plain data: the generator fills them, the verifier (`verify.py`) judges them, the phrasebooks (`text/`)
render them (`minigrid.envs.babyai.core.verifier`).
"""

from __future__ import annotations

import jax
from flax import struct


CLAUSES = 4
"""The number of clauses: 0 and 1 are the two sides of the first `and`, 2 and 3 of the second."""

NO_CLAUSE, GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT = range(5)
"""Kinds of clause."""

SINGLE, BEFORE, AFTER = range(3)
"""Orders: `A`; `A, then C`; `A after you C` (C comes first in time)."""

ANY = -1
"""No constraint on a descriptor's type ("object"), colour or location."""

LOCATIONS = ("left", "right", "front", "behind")
"""Locations a descriptor may name, relative to the agent's pose at the start."""


@struct.dataclass
class Mission:
    """Shapes are for one environment; `[4, 2]` is clause by descriptor (0: the object, or the one that `put next`
    moves; 1: the one that it is put next to)."""

    kind: jax.Array
    """int8 `[4]`, kinds of clause."""
    order: jax.Array
    """int8 `[]`, SINGLE, BEFORE or AFTER."""
    type: jax.Array
    """int8 `[4, 2]`, MiniGrid type id or ANY."""
    color: jax.Array
    """int8 `[4, 2]`, MiniGrid colour id or ANY."""
    location: jax.Array
    """int8 `[4, 2]`, index into LOCATIONS or ANY."""
    many: jax.Array
    """bool `[4, 2]`, whether more than one object matched at the start: "a" instead of "the"."""
    strict: jax.Array
    """bool `[4]`, whether a wrong action fails the clause."""
