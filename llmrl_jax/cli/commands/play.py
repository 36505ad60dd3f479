"""Show an episode of any run: `llmrl play runs/NAME`."""

from __future__ import annotations

from pathlib import Path

import tyro


def play(
    folder: tyro.conf.Positional[Path], checkpoint: int = -1, seed: int = 0, sampled: bool = False, gif: str = ""
) -> None:
    """Play one held-out episode of a run's policy, and print what it sees and does.

    Args:
        folder: The run's folder, `runs/NAME`.
        checkpoint: Checkpoint, by update number; -1: the newest.
        seed: Seed of the episode.
        sampled: Sample actions; otherwise the most likely ones are taken.
        gif: Also write its pictures to this file.
    """
    from llmrl_jax.workflows import evaluation
    from llmrl_jax.workflows.loading import settings_of

    evaluation.play(folder, settings_of(folder), checkpoint=checkpoint, seed=seed, sampled=sampled, gif=gif)


COMMAND = play
