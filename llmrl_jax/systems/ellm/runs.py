"""Loading of finished or interrupted runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import at_least, refuse_unread
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.resumption import saved_updates
from llmrl_jax.systems.ellm.build import Ellm, build
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.settings import AGENTS, OfflineRun, PretrainRun


HELD_OUT = 0x4E1D
"""Folded into the seed for held-out episodes."""


def load_run(folder: Path, checkpoint: int = -1) -> tuple[PretrainRun | OfflineRun, Ellm, Any, int]:
    """A run of `llmrl ellm pretrain` or `offline`: its settings, its parts, a checkpoint's state (-1: the newest) and
    its update.

    **Raises:** `FileNotFoundError` for a missing run or checkpoint; `ValueError` for a run of another command."""
    at_least("checkpoint", checkpoint, -1)
    file = folder / "config.json"
    if not file.exists():
        raise FileNotFoundError(f"there is no run in {folder}: it has no config.json")
    kind = json.loads(file.read_text()).get("kind", "")
    if kind not in AGENTS:
        wanted = " or ".join(f"llmrl {name}" for name in AGENTS)
        raise ValueError(f"{folder} is a run of llmrl {kind or '(unknown)'}; one of {wanted} is needed")
    config: Any = configs.load_config(AGENTS[kind], file)
    saved = saved_updates(folder)
    if not saved or checkpoint >= 0 and checkpoint not in saved:
        which = f"of update {checkpoint} " if checkpoint >= 0 else ""
        has = f"it has {', '.join(map(str, saved))}: choose one with --checkpoint" if saved else "the run saved none"
        raise FileNotFoundError(f"there is no checkpoint {which}in {folder / 'checkpoints'}; {has}")
    made = build(config.ellm)
    with doing(f"{folder.name}: compiling and computing the initial state"):
        state = made.learner().init(jax.random.key(config.run.seed))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    fresh = state.frozen
    del state  # its memory is needed for the loaded state
    with (
        doing(f"{folder.name}: reading the checkpoint"),
        Checkpoints(folder, config=config, read_only=True) as checkpoints,
    ):
        state, update = checkpoints.restore(like, None if checkpoint < 0 else checkpoint, fresh)
    return config, made, state, update


def refuse_other_settings(given: EllmConfig, usual: EllmConfig, of_run: EllmConfig, read: Collection[str] = ()) -> None:
    """**Raises** `ValueError` for settings beside `--from`, whose run has its own.

    **Arguments:** `given`, the settings; `usual`, those without any flag; `of_run`, the run's, which may be repeated;
    `read`, the fields that the command reads all the same."""
    if given != of_run:
        unread = [f.name for f in dataclasses.fields(EllmConfig) if f.name not in read]
        refuse_unread(given, unread, "--from, whose run has its own,", usual=usual)
