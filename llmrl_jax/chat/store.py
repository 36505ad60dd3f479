"""Replies on disk: one SQLite file, one row per sample, addressed by content. Rows are JSON, without pickles.

Safe with several threads and processes of one machine (write-ahead log, waiting for locks). The log needs shared
memory, so the file must not be on a network file system that several machines write to: use one file per machine.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.chat.protocol import FORMAT, CacheError, ChatReply, ChatRequest, canonical, sample_key


LOCK_SECONDS = 60.0
"""Maximum time to wait for another process's write."""

_CHUNK = 500
_SMALLEST = 512
"""Bytes of the smallest database. SQLite takes a file of one byte for an empty one, and overwrites it."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
  key TEXT PRIMARY KEY, namespace TEXT NOT NULL, model TEXT NOT NULL, request TEXT NOT NULL, reply TEXT NOT NULL
) WITHOUT ROWID
"""


def _use_log(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. Another process may do the same at the time, and SQLite does not wait for that."""
    for attempt in range(100):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if attempt == 99:
                raise
            time.sleep(0.02)


@dataclass(frozen=True)
class Row:
    """One sample: a request for one sample, and a reply with one choice."""

    model: str
    request: ChatRequest
    reply: ChatReply
    namespace: str = ""

    @property
    def key(self) -> str:
        """The sample's key."""
        return sample_key(self.model, self.request, self.request.sample, self.namespace)


class Store:
    """A file of samples.

    A connection is opened per operation, so a store can be used from any thread and after a fork, and holds no lock.

    **Arguments:** `path`; `read_only`, which creates no file, and can read files in folders that are not writable.
    **Raises:** `CacheError` if the file is missing (`read_only`), damaged, not a cache, or of another format.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False):
        self.path = Path(path)
        self._read_only = read_only
        if read_only:
            if not self.path.is_file():
                raise CacheError(f"there is no cache {self.path}; give its path, or fill it in the mode write")
        else:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CacheError(
                    f"no cache can be kept at {self.path} ({error.strerror}): choose another path"
                ) from error
        # The file is never opened outside of SQLite: closing it would drop all of this process's locks on it, and
        # another process could then remove the log that a thread still uses.
        if 0 < self._size() < _SMALLEST:
            raise self._not_a_cache()
        with self._connect() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and ("samples" not in tables or version != FORMAT):
                kind = f"a cache of format {version}" if "samples" in tables else "a database of something else"
                raise CacheError(f"{self.path} is {kind}; this program reads format {FORMAT}: name another file")
            if not read_only and not tables:
                # One transaction, so that no other process sees the table without its version.
                db.execute("BEGIN IMMEDIATE")
                db.execute(_SCHEMA)
                db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("COMMIT")
                _use_log(db)

    def _size(self) -> int:
        """Bytes of the file; 0 without one."""
        try:
            return self.path.stat().st_size if self.path.is_file() else 0
        except OSError as error:
            raise CacheError(f"no cache can be kept at {self.path} ({error.strerror}): choose another path") from error

    def _not_a_cache(self) -> CacheError:
        return CacheError(f"{self.path} is not a cache but another file; choose another path")

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        uri = self.path.absolute().as_uri()
        if self._read_only:
            # A reader too creates the log's shared memory next to the file, and removes it again. If it cannot write,
            # no process can, and the file does not change.
            writable = all(os.access(p, os.W_OK) for p in (self.path, self.path.absolute().parent))
            uri += "?mode=rw" if writable else "?immutable=1"
        db = None
        try:
            db = sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS)
            # A power cut may lose the last replies but not damage the file; a crash of this program loses nothing.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA query_only = {int(self._read_only)}")
            yield db
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise self._not_a_cache() from error
            raise CacheError(
                f"the cache {self.path} cannot be used: {error}; if it is damaged, move it away"
            ) from error
        finally:
            if db is not None:
                db.close()

    def get(self, keys: Sequence[str]) -> dict[str, ChatReply]:
        """The stored samples by key. **Raises:** `CacheError` for one that cannot be read."""
        replies: dict[str, ChatReply] = {}
        with self._connect() as db:
            for start in range(0, len(keys), _CHUNK):
                part = keys[start : start + _CHUNK]
                marks = ",".join("?" * len(part))
                rows = db.execute(f"SELECT key, reply FROM samples WHERE key IN ({marks})", part)
                for key, text in rows:
                    replies[key] = self._reply(key, text)
        return replies

    def add(self, rows: Iterable[Row]) -> int:
        """Add samples, all or none. Existing samples are not changed: the first stored reply is kept.

        **Returns:** the number of new samples.
        """
        values = [
            (r.key, r.namespace, r.model, canonical(r.request.to_json()), canonical(r.reply.to_json())) for r in rows
        ]
        with self._connect() as db, db:
            before = db.total_changes
            db.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?)", values)
            return db.total_changes - before

    def __len__(self) -> int:
        with self._connect() as db:
            return db.execute("SELECT count(*) FROM samples").fetchone()[0]

    def _reply(self, key: str, text: str) -> ChatReply:
        try:
            return ChatReply.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise CacheError(f"the cache {self.path} holds an unreadable reply under {key}: {error}") from None


# --- JSON lines -----------------------------------------------------------------------------------------------------


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Lines of a recording; a last line without a newline is incomplete, and is left out.

    **Raises:** `CacheError` for a file that cannot be read, or naming the line that is not a JSON object.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise CacheError(f"{path} cannot be read: {error.strerror}; give the path of a recording") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise CacheError(f"line {number} of {path} cannot be read: {error}") from None
        records.append(record)
    return records
