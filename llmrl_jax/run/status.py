"""How a run ended: `status.json`, written when training begins and when it ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from llmrl_jax.core.files import write_whole


STATUS = "status.json"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True)
class Status:
    """The status written by the last process that trained a run."""

    update: int
    """Updates done at the time of writing."""
    updates: int
    """Updates of the whole run."""
    ended: str = ""
    """`finished`, `stopped` or `failed`; empty during training, and so also after the process was killed."""
    why: str = ""
    """Why it stopped or failed."""


def write_status(folder: str | Path, status: Status) -> None:
    """Write the status of a run."""
    write_whole(Path(folder) / STATUS, json.dumps(asdict(status)) + "\n")


def read_status(folder: str | Path) -> Status | None:
    """The status of a run; None if it has no valid status file, such as runs of earlier versions."""
    try:
        return Status(**json.loads((Path(folder) / STATUS).read_text()))
    except (OSError, ValueError, TypeError):
        return None
