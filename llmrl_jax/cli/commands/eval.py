"""Evaluate any run on held-out episodes, beside random actions: `llmrl eval runs/NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro


def evaluate(
    folder: tyro.conf.Positional[Path],
    episodes: int = 0,
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> None:
    """Evaluate a run's checkpoint on held-out episodes beside random actions, with 95% intervals.

    The results are printed and written to `eval-UPDATE.json` in the run's folder.

    Args:
        folder: The run's folder, `runs/NAME`.
        episodes: Episodes for each way of acting; 0: as many as the run's own evaluations.
        checkpoint: Checkpoint, by update number; -1: the newest.
        seed: Seed of the episodes.
        gif: Also write `episode.gif` into the folder.
        json: Print the results as JSON.
    """
    from llmrl_jax.workflows import evaluation

    options: dict[str, Any] = {"episodes": episodes, "checkpoint": checkpoint, "seed": seed, "gif": gif, "json": json}
    evaluation.evaluate(folder, **options)


COMMAND = evaluate
