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
    """What the last process that trained a run said of it."""

    update: int
    """Updates done when it was written."""
    updates: int
    """Updates of the whole run."""
    ended: str = ""
    """`finished`, `stopped` or `failed`; empty from its beginning on, and so also of a process that was killed."""
    why: str = ""
    """What stopped it, or why it failed."""


def write_status(folder: str | Path, status: Status) -> None:
    """Write the status of a run."""
    write_whole(Path(folder) / STATUS, json.dumps(asdict(status)) + "\n")


def read_status(folder: str | Path) -> Status | None:
    """The status of a run; None where it has none, as before there was this file."""
    try:
        return Status(**json.loads((Path(folder) / STATUS).read_text()))
    except (OSError, ValueError, TypeError):
        return None
