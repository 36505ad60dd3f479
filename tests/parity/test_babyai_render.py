"""Pictures against MiniGrid's own, pixel by pixel."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs_jax
from tests.parity.babyai_minigrid import GlamLevel, quietly


@pytest.mark.parametrize("lock", ["locked", "closed", "open"])
def test_pictures_are_minigrids(lock):
    source = GlamLevel("open")
    env, params = envs_jax.make("BabyAI-MixedTrainLocal-v0")
    for seed in range(4):
        quietly(source.reset, seed=seed)
        for cell in source.grid.grid:
            if cell is not None and cell.type == "door":
                cell.is_locked, cell.is_open = lock == "locked", lock == "open"
        _, state = envs_jax.babyai.import_state(source, env, params)
        for direction in range(4):
            source.agent_dir = direction
            picture = env.render(jax.device_get(state.replace(direction=np.int32(direction))))
            assert picture.dtype == np.uint8
            expected = source.get_frame(highlight=True, tile_size=32)
            different = (picture.astype(int) - expected).any(-1).mean()
            assert different == 0, f"{different:.4f} of the pixels differ"
