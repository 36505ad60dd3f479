"""How a run begins: the update that it continues from, its first state, its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import activity, config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.run import leaves as trees, metrics
from llmrl_jax.run.checkpoint import Checkpoints
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.resumption import start_of


def first_state(learner: Any, config: RunConfig, checkpoints: Checkpoints) -> tuple[Any, int]:
    """The initial state of training and its update: new, or from a checkpoint."""
    with doing("compiling and computing the initial state"):
        state: Any = trees.settle(learner.init(jax.random.key(config.seed)))
    if not config.resume or not (checkpoints.updates() or config.resume_from >= 0):
        return state, 0
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    fresh = state.frozen
    state = None  # free its memory for the restored state
    with doing("reading the checkpoint"):
        state, update = checkpoints.restore(like, None if config.resume_from < 0 else config.resume_from, fresh)
    return state, update


def checked_start(learner: Any, config: RunConfig, folder: Path, num_updates: int) -> tuple[int, str]:
    """`start_of`. **Raises** also `ValueError` for a seed that a new run cannot have, or if fewer updates are asked for
    than the run has."""
    if not config.resume:
        config.check_new()
    start, note = start_of(folder, config)
    if start > num_updates:
        done, asked = (f"{n} updates ({n * learner.steps_per_update} {learner.unit})" for n in (start, num_updates))
        raise ValueError(f"{folder} has {done} already, and {asked} are asked for: ask for more to continue it")
    return start, note


def say(notes: Iterable[str]) -> None:
    """Print notes about a resumed run to stderr, if it can be written, however its progress is shown."""
    for note in notes:
        if note and jax.process_index() == 0:
            activity.say(f"note: {note}")


def open_files(config: RunConfig, full_config: Any, folder: Path, checkpoints: Checkpoints, update: int) -> None:
    """Write `config.json`. Of a resumed run also delete the checkpoints, and the lines of `metrics.jsonl`, after the
    update that it continues from; a restarted run keeps no line, not even the evaluation of update 0."""
    if config.resume:
        checkpoints.discard_after(update)
    if jax.process_index() == 0:
        if config.resume:
            metrics.truncate(folder / "metrics.jsonl", update or -1)
        configs.save_config(full_config, folder / "config.json")
