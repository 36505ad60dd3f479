"""The folder of a run: opening and locking it, and its files other than metrics and checkpoints."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from llmrl_jax.core import config as configs
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, find_run, refuse_changes


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file whose lock protects a run's folder; the system releases the lock when the process exits."""


def folder_name(text: str) -> str:
    """A text as a folder's name: all characters except letters, digits, dashes and underscores become underscores."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text)


def check_folder(config: BaseRunConfig) -> None:
    """Check that the folder of a run can be opened, without creating anything; see `open_folder`."""
    if config.name and config.resume:
        find_run(config.folder)
    elif config.name and (config.folder / "config.json").exists():
        raise FileExistsError(
            f"the run {config.folder} exists; continue it with --run.resume {config.folder}, or choose another name"
        )
    there = config.folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise _unwritable(config.folder, NotADirectoryError(errno.ENOTDIR, f"{there} is a file"))
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise _unwritable(config.folder, error) from None


def _unwritable(folder: Path, error: OSError) -> OSError:
    why = error.strerror or str(error)
    return PermissionError(f"no run can be kept in {folder} ({why}): choose another --run.out")


def open_folder(config: BaseRunConfig, command: str = "run") -> Path:
    """The folder of a run, `<out>/<name>`, created if it is new.

    **Arguments:** `config`; `command`, prefix of the name of an unnamed run, before the time.
    **Raises:** `FileExistsError` if a run of that name exists and `resume` is off; `FileNotFoundError` if none exists
    and `resume` is on, naming the nearest; `OSError` if the folder is not writable; `ValueError` for an unnamed run of
    several processes.
    """
    import jax

    if not config.name and jax.process_count() > 1:
        raise ValueError("a run of several processes needs a name that all of them know: give --run.name")
    check_folder(config)
    try:
        if not config.name:
            return _new_folder(config.folder, f"{command.replace(' ', '-')}-{time.strftime('%Y%m%d-%H%M%S')}")
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(config.folder, error) from None
    return config.folder


def _new_folder(out: Path, name: str) -> Path:
    """A new folder, also if several runs start in the same second."""
    folder, n = out / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            n += 1
            folder = out / f"{name}-{n}"


def begin(folder: Path, config: Any) -> None:
    """Write `config.json`, so that a run that ends before it trains can be resumed; if it exists, check that it has the
    same options.

    **Raises:** `ValueError` naming the options that differ."""
    path = folder / "config.json"
    if not path.exists():
        configs.save_config(config, path)
        return
    refuse_changes(folder, configs.load_config(type(config), path), config)


@contextlib.contextmanager
def held(folder: str | Path) -> Iterator[None]:
    """Lock a folder, so that no second process writes there: two that resume the same run would mix their lines and
    delete each other's checkpoints. Does nothing if the system or the file system has no locks.

    **Raises:** `BlockingIOError` if another process has locked it, naming the process and its machine.
    """
    with (Path(folder) / LOCK).open("a+") as file:
        if not _locked(file, exclusive=True):
            file.seek(0)
            process = file.read().strip() or "another process"
            raise BlockingIOError(
                f"{folder} is being written by {process}; wait until that has ended, or choose another name or another "
                "folder"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def holder(folder: str | Path) -> str:
    """The process that has locked a folder (see `held`), and its machine; empty if none has."""
    path = Path(folder) / LOCK
    if not path.is_file():
        return ""
    with path.open() as file:
        return "" if _locked(file, exclusive=False) else file.read().strip() or "another process"


def _locked(file: IO[str], *, exclusive: bool) -> bool:
    """Lock a file until it is closed. **Returns:** False if another process has locked it; True also if the system
    or the file system has no locks."""
    if fcntl is None:
        return True
    for attempt in range(3):  # `holder` locks it briefly
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return True
            if attempt < 2 and exclusive:
                time.sleep(0.05)
    return False


def write_summary(folder: str | Path, values: Mapping[str, Any]) -> Path:
    """Write `summary.json`: `values`, and the versions, machine, date and peak memory."""
    path = Path(folder) / "summary.json"
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": info.versions(),
        "machine": info.machine(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 3),
    }
    configs.save_config({**values, **facts}, path)
    return path
