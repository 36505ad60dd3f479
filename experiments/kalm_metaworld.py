"""KALM in Meta-World: success on the four levels, with imagined episodes and without (`kalm_runs.py`).

python experiments/kalm_metaworld.py                                            # the embedded language model
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kalm_runs import Experiment, run

from llmrl_jax.options.command import parse


@dataclass(frozen=True)
class MetaWorld(Experiment):
    """Agents with and without imagined episodes, in Meta-World."""

    SCRIPT: ClassVar[str] = "kalm_metaworld.py"
    WORLD: ClassVar[str] = "metaworld"

    epochs: float = 5.0
    """Passes of grounding."""
    imagined: tuple[int, ...] = (2000, 1600, 800)
    """Imagined episodes of `rephrase`, `easy` and `hard`."""
    agents: tuple[str, ...] = ("bc", "td3_bc", "awac", "cql")
    """Offline algorithms."""
    batch_size: int = 256
    """Steps of a batch."""
    tests: int = 200
    """Test episodes of each level."""
    out: str = "runs/kalm_metaworld"
    """Folder of the runs and of the results."""


if __name__ == "__main__":
    run(parse(MetaWorld, description=__doc__))
