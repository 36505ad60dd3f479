"""Recorded and imagined episodes as padded arrays, in the form of ImagineBench's `env.get_dataset(level)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.lm.encoder_names import AUTO
from llmrl_jax.systems.kalm.collecting import read
from llmrl_jax.systems.kalm.training import sentence_table
from llmrl_jax.systems.kalm.worlds import INSTRUCTION, LEVELS, REAL, STATE, World, level_of


def get_dataset(
    level: str, real: str | Path, imagined: str | Path = "", encoder: str = AUTO
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The recorded episodes, and the imagined ones of a level.

    **Arguments:** `level`; `real`, the folder of a run of `llmrl kalm collect`; `imagined`, that of a run of
    `llmrl kalm imagine`, empty for level `real`; `encoder`, of the sentences, as for `llmrl kalm train`.
    **Returns:** two dicts, the second None for level `real`: `observations` float32 `[N, T, d + E]`, states with the
    sentence vector of the instruction; `actions` int32 `[N, T]` or float32 `[N, T, a]`; `rewards`, `masks` and
    `terminals` `[N, T, 1]`; `instructions`, N sentences. `llmrl_jax.data.masked.write_masked` writes them.
    **Raises:** `ValueError` for an unknown level, and for a level without its episodes; `DataError` for episodes of
    another level or world; `FileNotFoundError`.
    """
    level = level_of(level, LEVELS)
    if (level == REAL) != (not imagined):
        remedy = "leave imagined out" if imagined else "give the folder of `llmrl kalm imagine` as imagined"
        raise ValueError(f"level is {level!r} and imagined is {str(imagined)!r}: {remedy}")
    world, recorded, data = read(real)
    if recorded != REAL:
        raise DataError(f"{real} has recorded episodes of level {recorded!r}, and those of {REAL!r} are needed")
    table = sentence_table(world, encoder)
    if level == REAL:
        return _arrays(world, data, table), None
    _, found, made = read(imagined, world.name, imagined=True)
    if found != level:
        raise DataError(f"{imagined} has episodes of level {found!r}, and {level!r} is asked for")
    return _arrays(world, data, table), _arrays(world, made, table)


def _arrays(world: World, data: Trajectories, table: np.ndarray) -> dict[str, Any]:
    mask = np.asarray(data.mask)[..., None]
    number = np.asarray(data.obs[INSTRUCTION])
    sentence = np.where(mask, table[number], 0).astype(np.float32)
    return {
        "observations": np.concatenate([np.asarray(data.obs[STATE]), sentence], axis=-1),
        "actions": np.asarray(data.action),
        "rewards": np.asarray(data.reward)[..., None],
        "masks": mask,
        "terminals": np.asarray(data.terminated)[..., None],
        "instructions": [world.instructions.texts[i] for i in number[:, 0]],
    }
