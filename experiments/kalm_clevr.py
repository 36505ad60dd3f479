"""KALM in CLEVR-Robot: success on the four levels, with imagined episodes and without (`kalm_runs.py`).

python experiments/kalm_clevr.py                                                # the embedded language model
python experiments/kalm_clevr.py --model smollm2-135m --episodes-grounded 2048 --out runs/kalm_smollm2
python experiments/kalm_clevr.py --model smollm2-135m --init random --episodes-grounded 2048 --out runs/kalm_smollm2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kalm_runs import Experiment, run

from llmrl_jax.options.command import parse


@dataclass(frozen=True)
class Clevr(Experiment):
    """Agents with and without imagined episodes, in CLEVR-Robot."""

    SCRIPT: ClassVar[str] = "kalm_clevr.py"
    WORLD: ClassVar[str] = "clevr"

    agents: tuple[str, ...] = ("bc", "discrete_cql")
    """Offline algorithms."""
    out: str = "runs/kalm_clevr"
    """Folder of the runs and of the results."""


if __name__ == "__main__":
    run(parse(Clevr, description=__doc__))
