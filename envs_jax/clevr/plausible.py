"""Impossible transitions: for statistics of imagined rollouts (Pang et al., 2404.09248).

The paper counts transitions that leave the table and transitions that break a limit of the dynamics. It gives no
limits; those here come from play in this environment, see `docs/environments/clevr.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs_jax.clevr.constants import HIGH, LOW
from envs_jax.clevr.rules import balls, package


REACH = 0.45
"""A ball that moves further than this in one macro-action, in metres, breaks the limit of the dynamics: the largest
displacement in play is 0.41 m."""
WALL = 0.1
"""A centre closer to a wall than this, in metres, is in the wall: in play it comes as close as 0.125 m."""
CLOSEST = 0.08
"""Two centres closer than this, seen from above, in metres, overlap. Not impossible: where one ball climbs another,
play comes as close as 0.034 m."""


def implausible(state: Any, next_state: Any) -> dict[str, Any]:
    """Steps beyond the limits of play, by kind; `overlap` occurs in play too.

    **Arguments:** `state` and `next_state`, float32 `[..., 10]`, NumPy or jax arrays that broadcast.
    **Returns:** bool `[...]` each: `out_of_table`, a centre beyond a wall after the step; `in_wall`, a centre too close
    to a wall, or beyond it; `dynamics`, a ball moved too far; `overlap`, two centres too close. All are true for
    numbers that are not finite.
    """
    xp = package(state, next_state)
    now, after = balls(state), balls(next_state)
    low, high = (xp.asarray(x, after.dtype) for x in (LOW, HIGH))
    inside = ((after >= low) & (after <= high)).all(axis=(-2, -1))
    free = ((after >= low + WALL) & (after <= high - WALL)).all(axis=(-2, -1))
    moved = after - now
    in_limit = (xp.hypot(moved[..., 0], moved[..., 1]) <= REACH).all(axis=-1)
    i, j = np.triu_indices(after.shape[-2], 1)
    offset = after[..., i, :] - after[..., j, :]
    clear = (xp.hypot(offset[..., 0], offset[..., 1]) >= CLOSEST).all(axis=-1)
    return {"out_of_table": ~inside, "in_wall": ~free, "dynamics": ~in_limit, "overlap": ~clear}
