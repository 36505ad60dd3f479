"""Grids of codes as one-hot vectors, for networks that see symbols."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from envs_jax import spaces


def plane_sizes(space: spaces.Box) -> tuple[int, ...]:
    """The number of codes of each plane of a grid `[..., planes]`."""
    high = np.broadcast_to(np.asarray(space.high), space.shape).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in high)


def one_hots(grid: Any, sizes: tuple[int, ...]) -> list[Float[Array, "*S N"]]:
    """The planes of a grid `[..., planes]` as one-hot vectors, `[..., n]` each. **Arguments:** `sizes`, of
    `plane_sizes`."""
    return [jax.nn.one_hot(grid[..., i], n) for i, n in enumerate(sizes)]
