"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file beside what it replaces: whenever the process dies, there is the old one or the new one."""
    path = Path(path)
    fresh = path.with_suffix(".tmp")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A folder's name to write under; when the block ends, what is there takes the place of `path`. A run that goes on
    after it wrote writes anew."""
    draft, old = path.with_name(f".{path.name}.draft"), path.with_name(f".{path.name}.old")
    for left in (draft, old):
        shutil.rmtree(left, ignore_errors=True)
    yield draft
    if path.exists():
        path.rename(old)
    draft.rename(path)
    shutil.rmtree(old, ignore_errors=True)
