"""Random layouts of the balls, as in KALM (2404.09248)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.clevr.constants import BALLS, RADIUS


LOW, HIGH = np.array([-0.5, -0.3], np.float32), np.array([0.5, 0.5], np.float32)
"""Bounds of a ball's initial centre. The ball may overlap a wall, which pushes it out."""
GAP = 0.1
"""The smallest distance between the surfaces of two balls, in metres."""
TIE = 0.01
"""A ball's x, or y, may not differ from another's by less than this, unless they are equal."""
TRIES = 10
"""Draws of one ball before the whole layout is drawn again."""


def attempt(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Place the balls one after the other, each at its first draw that fits those before it.

    **Returns:** whether each found a place in ten draws, bool `[]`; and the layout, float32 `[5, 2]`.
    """
    draws = jax.random.uniform(key, (BALLS, TRIES, 2), jnp.float32) * (HIGH - LOW) + LOW
    placed, fits = [draws[0, 0]], jnp.bool_(True)
    for ball in range(1, BALLS):
        offset = draws[ball][:, None] - jnp.stack(placed)
        clear = jnp.hypot(offset[..., 0], offset[..., 1]) - 2 * RADIUS >= GAP
        tied = ((jnp.abs(offset) > 0) & (jnp.abs(offset) < TIE)).any(axis=-1)
        free = (clear & ~tied).all(axis=-1)
        first = (jnp.cumsum(free) == 1) & free
        placed.append(jnp.sum(jnp.where(first[:, None], draws[ball], 0), axis=0))
        fits &= free.any()
    return fits, jnp.stack(placed)
