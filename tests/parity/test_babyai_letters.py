"""States in letters against MiniGrid's own."""

from __future__ import annotations

import jax
import pytest

import envs_jax
from envs_jax.babyai.render import letters
from tests.parity.babyai_minigrid import GlamLevel, quietly


@pytest.mark.parametrize("lock", ["locked", "closed", "open"])
def test_letters_are_minigrids(lock):
    source = GlamLevel("open")
    env, params = envs_jax.make("BabyAI-MixedTrainLocal-v0")
    for seed in range(3):
        quietly(source.reset, seed=seed)
        for cell in source.grid.grid:
            if cell is not None and cell.type == "door":
                cell.is_locked, cell.is_open = lock == "locked", lock == "open"
        for direction in range(4):
            source.agent_dir = direction
            _, state = envs_jax.babyai.import_state(source, env, params)
            assert letters(jax.device_get(state)) == source.pprint_grid()
