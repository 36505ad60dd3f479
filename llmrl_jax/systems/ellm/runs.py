"""Loading of finished or interrupted runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.systems.ellm.build import Ellm, build
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.settings import AGENTS, OfflineRun, PretrainRun
from llmrl_jax.workflows.experiment import HELD_OUT as HELD_OUT, check_saved, kind_of_run, restore_first


def load_run(folder: Path, checkpoint: int = -1) -> tuple[PretrainRun | OfflineRun, Ellm, Any, int]:
    """A run of `llmrl ellm pretrain` or `offline`: its settings, its parts, a checkpoint's state (-1: the newest) and
    its update.

    **Raises:** `FileNotFoundError` for a missing run or checkpoint; `ValueError` for a run of another command."""
    kind = kind_of_run(folder, *AGENTS)
    config: Any = configs.load_config(AGENTS[kind], folder / "config.json")
    check_saved(folder, checkpoint)
    made = build(config.ellm)
    return config, made, *restore_first(folder, config, made.learner(), checkpoint)


def refuse_other_settings(given: EllmConfig, usual: EllmConfig, of_run: EllmConfig, read: Collection[str] = ()) -> None:
    """**Raises** `ValueError` for settings beside `--from`, whose run has its own.

    **Arguments:** `given`, the settings; `usual`, those without any flag; `of_run`, the run's, which may be repeated;
    `read`, the fields that the command reads all the same."""
    if given != of_run:
        unread = [f.name for f in dataclasses.fields(EllmConfig) if f.name not in read]
        refuse_unread(given, unread, "--from, whose run has its own,", usual=usual)
