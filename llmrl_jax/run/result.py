"""How a run ended: what `llmrl_jax.run.loop.train` returns, or raises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class RunStopped(RuntimeError):
    """The run cannot continue: a loss is not finite, a bound is exceeded, a checkpoint cannot be written, or an
    exchange failed."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    state: Any
    """The learner's last state."""
    update: int
    """Updates done, including those before a resume."""
    steps: int
    """Units done (`Learner.unit`: environment steps, tokens, episodes), including those before a resume."""
    seconds: float
    """Training time, including that before a resume, without compilation, evaluation, checkpoints and exchanges."""
    compile_seconds: float
    """Time to trace and compile the chunk of updates."""
    stopped: str
    """Why it ended before its last update: `SIGINT`, `SIGTERM`, `time budget`; empty if it did not."""
    folder: Path
    """The run's folder."""

    @property
    def steps_per_second(self) -> float:
        """`steps` per second of training."""
        return self.steps / self.seconds if self.seconds else math.nan

    def facts(self, unit: str = "steps") -> dict[str, Any]:
        """Speed, times and the reason of the end, for `write_summary`. **Arguments:** `unit`, the name of `steps`."""
        return {
            f"{unit}_per_second": round(self.steps_per_second, 1),
            "train_seconds": round(self.seconds, 1),
            "compile_seconds": round(self.compile_seconds, 1),
            "stopped": self.stopped,
        }
