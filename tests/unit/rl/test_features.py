"""Codes of grids as one-hot vectors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from llmrl_jax.rl.features import one_hots, plane_sizes


def test_planes_by_hand():
    space = spaces.Box(np.array([[[0, 0], [0, 0]]]), np.array([[[2, 1], [1, 0]]]), (1, 2, 2), np.uint8)
    assert plane_sizes(space) == (3, 2)
    grid = jnp.array([[[[2, 0], [1, 1]]]])
    kind, state = one_hots(grid, (3, 2))
    assert kind.tolist() == [[[[0, 0, 1], [0, 1, 0]]]] and state.tolist() == [[[[1, 0], [0, 1]]]]
