"""A recorder: all requests and replies of a run, in a file for people and programs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from llmrl_jax.chat.protocol import ChatModel, ChatReply, ChatRequest, canonical, outcomes_of, settle


class Recorder:
    """A chat model that records all requests and replies of another (`ChatModel`).

    One line per request: `time` (seconds since 1970), `model`, `request`, and `reply` or `error`. Lines are appended
    whole, also from several threads and processes; an incomplete line after a crash is removed by the next writer.
    `import_jsonl` converts the file to a cache, so that a recorded run can be replayed.

    **Arguments:** `model`, the recorded one; `path`, of the JSONL file, whose folder is created if missing.
    """

    def __init__(self, model: ChatModel, path: str | Path):
        self.model = model
        self.name = model.name
        self.path = Path(path)
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch and record it, including errors (`ChatModel.complete`)."""
        outcomes = outcomes_of(self.model, requests)
        lines = []
        for request, outcome in zip(requests, outcomes):
            line: dict[str, Any] = {"time": time.time(), "model": self.name, "request": request.to_json()}
            if isinstance(outcome, ChatReply):
                line |= {"reply": outcome.to_json(), "cached": outcome.cached}
            else:
                line["error"] = {"type": type(outcome).__name__, "message": str(outcome), "lost": outcome.lost}
            lines.append(canonical(line) + "\n")
        with self._lock:
            _append(self.path, "".join(lines).encode())
        return settle(outcomes)


def _append(path: Path, text: bytes) -> None:
    with path.open("a+b") as file, _locked(file):
        file.truncate(_end_of_whole_lines(file))
        file.write(text)
        file.flush()


def _end_of_whole_lines(file: BinaryIO) -> int:
    """The offset after the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        cut = file.read(end - start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


@contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    """An exclusive lock among processes, if the system has such locks (closing the file releases it)."""
    try:
        import fcntl
    except ModuleNotFoundError:
        pass
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield
