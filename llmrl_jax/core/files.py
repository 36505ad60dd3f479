"""Atomic writes of files and folders.

Contents are written to a draft beside the target, synced to disk, and then renamed to the target in one step. A reader
always sees the old or the new contents, also after the process was killed or the power failed. A draft's name contains
the machine and the process, so that two processes never write the same draft; drafts of killed processes are removed at
the next write of the same file or folder on that machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


_numbers = itertools.count()
_LACK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that is full, a quota or a limit that is reached, and a disk that turned read-only."""


def lack_of_space(error: BaseException) -> str:
    """Message of an error about a disk that takes no more, with the remedy; empty for any other error."""
    if not isinstance(error, OSError) or error.errno not in _LACK:
        return ""
    subject = f"{error.filename} could not be written" if error.filename else "a file could not be written"
    return f"{subject} ({error.strerror}): free some space; --run.resume continues a run from what was written"


def byte_text(n: float) -> str:
    """Bytes with a unit: 512 B, 1.5 MiB, 13.3 GiB."""
    value, unit = float(n), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


def expanded(path: str | Path) -> Path:
    """A path with `~` or `~USER` at its beginning replaced by that user's home folder.

    **Raises:** `ValueError` naming the path, if there is no such user or home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = str(path).split(os.sep)[0]
        raise ValueError(
            f"the path {str(path)!r} begins with {home}, whose home folder is unknown: write the folder out, or "
            f"./{home} "
            "for a folder of that name"
        ) from None


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write or replace a file, atomically.

    **Arguments:** `path`, in a folder that exists; `content`, text (written as UTF-8, newlines as they are) or bytes.
    """
    with new_draft(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def check_writable(path: str | Path, name: str, *, folder: bool = False) -> None:
    """Check, before long work, that a file or folder can be written; nothing is created.

    **Arguments:** `path`; folders above it may be missing: every command creates those of the files that it writes;
    `name`, the option that names it, for the message; `folder`, whether it is a folder.
    **Raises:** `NotADirectoryError`, `IsADirectoryError` or `PermissionError`, naming the option and the path.
    """
    path = expanded(path)
    if path.is_dir() and not folder:
        raise IsADirectoryError(f"{name} is {path}, which is a folder; the path of a file is needed")
    ancestor = path if folder else path.parent
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        raise NotADirectoryError(f"{name} is {path}, but {ancestor} is a file; choose another path")
    try:
        tempfile.TemporaryFile(dir=ancestor).close()
    except OSError as error:
        raise PermissionError(
            f"{name} is {path}, but nothing can be written in {ancestor} ({error.strerror}); choose another path"
        ) from None


@contextlib.contextmanager
def new_draft(path: str | Path) -> Iterator[Path]:
    """A temporary path for a file. When the block ends, the file replaces `path`; if it raises, the file is removed and
    `path` is unchanged.

    **Arguments:** `path`; its folder is created if it is new.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    draft = _sibling(path, "draft")
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(draft)):
            error.filename = str(path)  # a write does not name its file, and the draft is gone
        raise
    _sync(path.parent)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path for a folder, which does not exist yet. When the block ends, the folder replaces `path`, which
    may exist; if it raises, the folder is removed and `path` is unchanged.

    A process killed during the replacement leaves the old folder under a hidden name; the next call restores it.

    **Arguments:** `path`; its parent folder is created if it is new.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    draft, old = _sibling(path, "draft"), _sibling(path, "old")
    try:
        yield draft
        _sync_tree(draft)
        if path.exists():
            path.rename(old)
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """An empty folder to write to. When the block ends, it becomes `path`; if it raises, it is removed.

    **Arguments:** `path`; its parent folder is created if it is new.
    **Raises:** `FileExistsError` if `path` exists.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already; give a new folder")
    with replacing(path) as draft:
        draft.mkdir()
        yield draft


def digest_of(*paths: str | Path) -> str:
    """SHA-256 of the contents of files, in this order, as hexadecimal digits."""
    total = hashlib.sha256()
    for path in paths:
        with Path(path).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def append_line(path: str | Path, line: str) -> None:
    """Append a line to a text file, created if it is new, and sync it to disk.

    A process killed during the call may leave the beginning of the line, without its newline.

    **Arguments:** `path`, in a folder that exists; `line`, without its newline.
    """
    path = Path(path)
    new = not path.exists()
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise
    if new:
        _sync(path.parent)


# --- drafts -----------------------------------------------------------------------------------------------------------


def _sibling(path: Path, kind: str) -> Path:
    """A hidden path beside `path`, unique to this process and call."""
    machine = re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())
    return path.with_name(f".{path.name}.{kind}-{machine}-{os.getpid()}-{next(_numbers)}")


def _remove_left_over(path: Path) -> None:
    """Remove drafts and replaced folders of `path` that ended processes of this machine left. If `path` is missing, a
    replaced folder is restored."""
    start, machine = f".{path.name}.", re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())
    pattern = re.compile(re.escape(start) + rf"(draft|old)-{machine}-(\d+)-\d+")
    left = [(match[1], entry) for entry in path.parent.iterdir() if (match := _left(pattern, entry))]
    for kind, entry in sorted(left, reverse=True):  # replaced folders first
        if kind == "old" and not path.exists():
            entry.rename(path)
        elif entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _left(pattern: re.Pattern[str], entry: Path) -> re.Match[str] | None:
    match = pattern.fullmatch(entry.name)
    return match if match and not _runs(int(match[2])) else None


def _runs(pid: int) -> bool:
    """Return whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, as another user
        return True
    return True


def _sync(path: Path) -> None:
    """Sync a file, or a folder's entries, to disk. Not every system can sync folders."""
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(root) / name)
        _sync(Path(root))


# --- results as JSON ------------------------------------------------------------------------------------------------


def json_values(value: Any) -> Any:
    """A result as JSON values: dataclasses, named tuples and mappings are objects, and numbers that are not finite are
    null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_values(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: json_values(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {str(name): json_values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(inner) for inner in value]
    if hasattr(value, "tolist"):  # of NumPy
        return json_values(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any) -> str:
    """`json_values` as text."""
    return json.dumps(json_values(value), indent=2, ensure_ascii=False, allow_nan=False)
