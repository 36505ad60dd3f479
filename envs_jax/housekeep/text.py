"""Housekeep in words: what has been seen in this episode, and what is held (ELLM, 2302.06692).

The original lists sets, whose order is random. Here objects are in the order of their slots, and receptacles in that of
their numbers. A receptacle is named with its room, and a name occurs once.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.housekeep.apartment import NAMES
from envs_jax.housekeep.constants import SLOTS
from envs_jax.text import Phrasebook, compact


HEADS = {"objects": "objects:", "receptacles": "receptacles:", "holding": "you are holding:"}
"""The heading of each list."""

NOTHING = "nothing"
"""The caption of an empty hand."""


def books(objects: Sequence[str]) -> dict[str, Phrasebook]:
    """The phrasebooks of the three captions, for `N` categories of objects: category `k` is phrase `k` of `objects` and
    of `holding`, and receptacle `r` is phrase `r` of `receptacles`."""
    names = [name.replace("_", " ").lower() for name in objects]
    return {
        "objects": Phrasebook(names, name="housekeep.objects"),
        "receptacles": Phrasebook(NAMES, name="housekeep.receptacles"),
        "holding": Phrasebook([*names, NOTHING], name="housekeep.holding"),
    }


def captions(
    category: jax.Array, seen_objects: jax.Array, seen_receptacles: jax.Array, held_category: jax.Array, objects: int
) -> dict[str, jax.Array]:
    """The captions of a state.

    **Arguments:** `category`, int16 `[O]`; `seen_objects`, bool `[O]`; `seen_receptacles`, bool `[R]`;
    `held_category`, int32 `[]`, the category in hand, -1 for none; `objects`, the number of categories.
    **Returns:** int16 `[O]`, `[R]` and `[1]`, padded with -1.
    """
    everything = np.arange(len(NAMES), dtype=np.int16)
    return {
        "objects": compact(jnp.where(seen_objects, category, jnp.int16(-1)), SLOTS),
        "receptacles": compact(jnp.where(seen_receptacles, everything, jnp.int16(-1)), len(NAMES)),
        "holding": jnp.where(held_category >= 0, held_category, objects).astype(jnp.int16)[None],
    }
