"""A cache for any chat model: an experiment pays once per request and can be repeated without a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from llmrl_jax.chat.protocol import (
    ChatError,
    ChatModel,
    ChatReply,
    ChatRequest,
    ReplayMiss,
    canonical,
    outcomes_of,
    sample_key,
    settle,
)
from llmrl_jax.chat.store import Row, Store


CacheMode = Literal["off", "read", "write", "replay"]
"""off: always ask, store nothing. read: ask for missing samples, store nothing. write: ask for missing samples, and
store them. replay: never ask; a missing sample is an error."""


class Cached:
    """Chat model with cached replies (`ChatModel`).

    Samples are stored by a hash of the model's name, the messages, every sampling parameter, and the sample's index.
    Errors are never stored. Requests that are already in flight, in this object or this batch, are not sent again:
    their callers share one reply or one error. Among processes the first stored reply is used by all.

    **Arguments:** `model`, the wrapped one; in the mode `replay` only its name is used, and a name is sufficient;
    `path`, of the SQLite file; `mode`; `namespace`, a string in every key: use one if different models have the same
    name (two fine-tunings on the same server), or for an experiment that needs new samples.
    **Raises:** `CacheError` if the file cannot be used; `complete` also raises `ReplayMiss` and the errors of `model`.
    """

    def __init__(
        self,
        model: ChatModel | str,
        path: str | Path,
        mode: CacheMode = "write",
        *,
        namespace: str = "",
    ):
        if mode not in get_args(CacheMode):
            raise ValueError(f"the cache's mode is {mode!r}; known are {', '.join(get_args(CacheMode))}")
        if isinstance(model, str) and mode != "replay":
            raise ValueError(f"the cache has only the name {model!r} of a model, which will do for replay, not {mode}")
        self._model: ChatModel | None = None if isinstance(model, str) else model
        self.name = model if isinstance(model, str) else model.name
        self.mode = mode
        self.namespace = namespace
        self.path = Path(path)
        self._store: Store | None = None
        if mode != "off":
            self._store = Store(path, read_only=mode != "write")
        self._lock = threading.Lock()
        self._flying: dict[str, Future[ChatReply]] = {}

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch from the cache and, if the mode allows it, from the model (`ChatModel.complete`)."""
        if self.mode == "off" and self._model is not None:
            return self._model.complete(requests)
        keys = [[sample_key(self.name, r, r.sample + i, self.namespace) for i in range(r.n)] for r in requests]
        futures: dict[str, Future[ChatReply]] = {}
        mine: set[str] = set()
        with self._lock:
            for key in dict.fromkeys(key for group in keys for key in group):
                if key not in self._flying:
                    self._flying[key] = Future()
                    mine.add(key)
                futures[key] = self._flying[key]
        try:
            self._lead(requests, keys, mine, futures)
        finally:
            with self._lock:
                for key in mine:
                    del self._flying[key]
                    if not futures[key].done():  # interrupted: do not let others wait forever
                        futures[key].set_exception(
                            ChatError("the thread that was asking this stopped before it had a reply")
                        )
        # Samples that another thread or an earlier request of this batch asked for are not counted twice.
        outcomes = []
        for group in keys:
            outcomes.append(_gather([(futures[key], key in mine) for key in group]))
            mine -= set(group)
        return settle(outcomes)

    def _lead(
        self,
        requests: Sequence[ChatRequest],
        keys: list[list[str]],
        mine: set[str],
        futures: dict[str, Future[ChatReply]],
    ) -> None:
        """Answer those samples that no other thread is already asking for."""
        # Looked up after they were claimed: a sample of another thread is either still claimed or already stored.
        stored = self._store.get(sorted(mine)) if self._store is not None and mine else {}
        for key, reply in stored.items():
            futures[key].set_result(replace(reply, cached=1, calls=0))
        missing = mine - set(stored)
        asks: list[tuple[ChatRequest, list[str]]] = []
        for request, group in zip(requests, keys):
            run: list[str] = []
            for i, key in enumerate([*group, ""]):  # adjacent missing samples are requested together
                if key in missing:
                    missing.discard(key)
                    run.append(key)
                elif run:
                    asks.append((replace(request, n=len(run), sample=request.sample + i - len(run)), run))
                    run = []
        if self._model is None or self.mode == "replay":
            for request, run in asks:
                for key in run:
                    futures[key].set_exception(ReplayMiss(self._miss(request, key)))
            return
        outcomes = outcomes_of(self._model, [request for request, _ in asks])
        rows, fresh = [], {}
        for (request, run), outcome in zip(asks, outcomes):
            if isinstance(outcome, ChatError):
                for key in run:
                    futures[key].set_exception(outcome)
                continue
            for i, (key, part) in enumerate(zip(run, outcome.split())):
                rows.append(Row(self.name, replace(request, n=1, sample=request.sample + i), part, self.namespace))
                fresh[key] = part
        if self.mode == "write" and self._store is not None and rows:
            if self._store.add(rows) < len(rows):  # another process was first
                first = self._store.get(list(fresh))
                fresh |= {key: replace(reply, cached=0, calls=fresh[key].calls) for key, reply in first.items()}
        for key, part in fresh.items():
            futures[key].set_result(part)

    def _miss(self, request: ChatRequest, key: str) -> str:
        last = request.messages[-1].content
        text = last if len(last) <= 200 else "..." + last[-200:]
        return (
            f"the cache {self.path} does not hold sample {request.sample} of {self.name!r} "
            f"(temperature {request.temperature}, seed {request.seed}, max_tokens {request.max_tokens}, "
            f"namespace {self.namespace!r}, key {key[:12]}) for the request that ends in {text!r}; "
            "ask it once in the mode write"
        )


def _gather(futures: Sequence[tuple[Future[ChatReply], bool]]) -> ChatReply | ChatError:
    try:
        parts = [(future.result(), paid) for future, paid in futures]
    except ChatError as error:
        return error
    return ChatReply.join([part if paid else replace(part, cached=1, calls=0) for part, paid in parts])


# --- a recorder -----------------------------------------------------------------------------------------------------


class Recorder:
    """Chat model that records all requests and replies of another (`ChatModel`).

    One line per request: `time` (seconds since 1970), `model`, `request`, `reply` or `error`, and `calls` if they are
    not one. Lines are appended whole and synced to disk, also from several threads and processes; an incomplete line
    after a crash is removed by the next writer. A request without an outcome, as the model was interrupted, is an error
    with one `lost` attempt.

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
        outcomes: list[ChatReply | ChatError] = []
        try:
            outcomes = outcomes_of(self.model, requests)
        except BaseException as error:
            outcomes = getattr(error, "outcomes", [])
            raise
        finally:  # also if the model was interrupted, as `Budget.recall` must count what may have been billed
            self._record(requests, outcomes)
        return settle(outcomes)

    def _record(self, requests: Sequence[ChatRequest], outcomes: Sequence[ChatReply | ChatError]) -> None:
        lines = []
        for request, outcome in zip_longest(requests, outcomes):
            line: dict[str, Any] = {"time": time.time(), "model": self.name, "request": request.to_json()}
            if isinstance(outcome, ChatReply):
                line |= {"reply": outcome.to_json(), "cached": outcome.cached}
            elif outcome is None:
                line["error"] = {"type": ChatError.__name__, "message": "interrupted", "lost": 1}
            else:
                line["error"] = {"type": type(outcome).__name__, "message": str(outcome), "lost": outcome.lost}
            if outcome is not None and outcome.calls != 1:
                line["calls"] = outcome.calls
            lines.append(canonical(line) + "\n")
        with self._lock:
            _append(self.path, "".join(lines).encode())


def _append(path: Path, text: bytes) -> None:
    with path.open("a+b") as file, _locked(file):
        file.truncate(_end_of_complete_lines(file))
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _end_of_complete_lines(file: BinaryIO) -> int:
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
