"""Files and folders that are written whole or not at all.

What is written goes to a draft beside its place, reaches the disk, and then takes the place in one step. So a reader
finds the old contents or the new ones at any time, also after the process was killed or the power failed. A draft's
name holds the machine and the process, so that two processes never write the same one; what a process left that was
killed is removed the next time that somebody writes the same file or folder on that machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path


_numbers = itertools.count()


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file, or replace it, whole or not at all.

    **Arguments:** `path`, in a folder that exists; `content`, text (written as UTF-8, newlines as they are) or bytes.
    """
    with new_draft(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def new_draft(path: str | Path) -> Iterator[Path]:
    """A file's name to write under. When the block ends, the file takes the place of `path`; where it raises, the file
    is removed and `path` stays as it was.

    **Arguments:** `path`; its folder is made if it is new.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    draft = _beside(path, "draft")
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A folder's name to write under, where nothing is yet. When the block ends, the folder takes the place of `path`,
    which may exist; where it raises, the folder is removed and `path` stays as it was.

    A process that is killed while the two change places leaves the old folder under a hidden name; the next call puts
    it back.

    **Arguments:** `path`; the folder that it is in is made if it is new.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(path)
    draft, old = _beside(path, "draft"), _beside(path, "old")
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
    """An empty folder to write into. When the block ends, it becomes `path`; where it raises, it is removed.

    **Arguments:** `path`; the folder that it is in is made if it is new.
    **Raises:** `FileExistsError` where `path` exists.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already; give a new folder")
    with replacing(path) as draft:
        draft.mkdir()
        yield draft


def append_line(path: str | Path, line: str) -> None:
    """Add a line to a text file, made if it is new, and wait until it is on the disk.

    A process that is killed meanwhile may leave the beginning of the line, without its newline.

    **Arguments:** `path`, in a folder that exists; `line`, without its newline.
    """
    path = Path(path)
    new = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync(path.parent)


# --- drafts -----------------------------------------------------------------------------------------------------------


def _beside(path: Path, what: str) -> Path:
    """A hidden name beside `path` that no other process, and no other call of this one, has."""
    machine = re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())
    return path.with_name(f".{path.name}.{what}-{machine}-{os.getpid()}-{next(_numbers)}")


def _remove_left_over(path: Path) -> None:
    """Remove what processes of this machine that no longer run left of `path`: drafts, and folders that were replaced.
    Where `path` itself is missing, such a folder is put back."""
    start, machine = f".{path.name}.", re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname())
    pattern = re.compile(re.escape(start) + rf"(draft|old)-{machine}-(\d+)-\d+")
    left = [(match[1], entry) for entry in path.parent.iterdir() if (match := _left(pattern, entry))]
    for what, entry in sorted(left, reverse=True):  # folders that were replaced first
        if what == "old" and not path.exists():
            entry.rename(path)
        elif entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _left(pattern: re.Pattern[str], entry: Path) -> re.Match[str] | None:
    match = pattern.fullmatch(entry.name)
    return match if match and not _runs(int(match[2])) else None


def _runs(pid: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, and is another user's
        return True
    return True


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk. Folders cannot be synced on every system."""
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
