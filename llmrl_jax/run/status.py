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
    saved: int = -1
    """Update of the newest checkpoint that was complete at the time of writing; -1: none was."""

    def __post_init__(self):
        kinds = {"update": int, "updates": int, "ended": str, "why": str, "saved": int}
        if wrong := [name for name, kind in kinds.items() if not isinstance(getattr(self, name), kind)]:
            raise TypeError(f"{wrong[0]} is {getattr(self, wrong[0])!r}")


def write_status(folder: str | Path, status: Status) -> None:
    """Write the status of a run."""
    write_whole(Path(folder) / STATUS, json.dumps(asdict(status)) + "\n")


def read_status(folder: str | Path) -> Status | None:
    """The status of a run; None if it has no valid status file, such as runs of earlier versions."""
    try:
        return Status(**json.loads((Path(folder) / STATUS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
