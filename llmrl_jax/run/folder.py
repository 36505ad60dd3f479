"""The folder of a run: opening it, and the files in it that are not metrics or checkpoints."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import nearest
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file by which a process holds a run's folder; the system lets go of it when the process ends, however it does."""


def folder_name(text: str) -> str:
    """A text as a folder's name: what is no letter, digit, dash or underscore becomes an underscore."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text)


def open_folder(config: RunConfig, command: str = "run") -> Path:
    """The folder of a run, `<out>/<name>`, made if it is new.

    **Arguments:** `config`; `command`, what an unnamed run is called after, with the time.
    **Raises:** `FileExistsError` where a run of that name exists and `resume` is off; `FileNotFoundError` where none
    exists and `resume` is on, naming the nearest; `ValueError` for an unnamed run of several processes.
    """
    out, name = Path(config.out).expanduser(), config.name
    if not name:
        if jax.process_count() > 1:
            raise ValueError("a run of several processes needs a name that all of them know: give --run.name")
        return _new_folder(out, f"{command}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = out / name
    if config.resume:
        if not (folder / "config.json").exists():
            known = [path.parent.name for path in out.glob("*/config.json")]
            raise FileNotFoundError(f"there is no run {name!r} in {out} to resume{nearest(name, known)}")
    elif (folder / "config.json").exists():
        raise FileExistsError(
            f"the run {folder} exists; continue it with --run.resume (props run: --resume), or choose another name"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _new_folder(out: Path, name: str) -> Path:
    """A folder that nobody else has, also of several runs that start within a second."""
    folder, n = out / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            n += 1
            folder = out / f"{name}-{n}"


def begin(folder: Path, config: Any) -> None:
    """Write `config.json`, so that a run is found again that ends before it trains; or see that it is what was begun.

    **Raises:** `ValueError` naming the options that differ."""
    path = folder / "config.json"
    if not path.exists():
        configs.save_config(config, path)
        return
    saved = configs.load_config(type(config), path)
    if changed := configs.differences(configs.identity(saved), configs.identity(config)):
        raise ValueError(
            f"the run {folder} was begun with other options: {'; '.join(changed)} (saved -> now); put these back, or "
            "choose another name"
        )


@contextlib.contextmanager
def held(folder: str | Path) -> Iterator[None]:
    """Hold a folder, so that no second process writes there: two that resume one run would mix their lines and
    delete each other's checkpoints. Where the system or the file system has no locks, nothing is held.

    **Raises:** `BlockingIOError` where somebody holds it, naming the process and its machine.
    """
    with (Path(folder) / LOCK).open("a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise BlockingIOError(
                    f"{folder} is being written by {holder}; wait until that has ended, or choose another name or "
                    "another folder"
                ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def write_summary(folder: str | Path, values: Mapping[str, Any]) -> Path:
    """Write `summary.json`: `values`, and the versions, machine, date and peak memory that go with them."""
    path = Path(folder) / "summary.json"
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": info.versions(),
        "machine": info.machine(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 3),
    }
    configs.save_config({**values, **facts}, path)
    return path
