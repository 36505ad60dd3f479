"""The folder of a run: opening and locking it, and its files other than metrics and checkpoints."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info, metrics
from llmrl_jax.run.config import BaseRunConfig, RunConfig, find_run, refuse_changes


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file whose lock protects a run's folder; the system releases the lock when the process exits."""
_LOCKED: set[tuple[str, int]] = set()
"""Folders that this process has locked, by the thread that did: a second lock would conflict with the first."""


def folder_name(text: str) -> str:
    """A text as a folder's name: all characters except letters, digits, dashes and underscores become underscores."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text)


FILES = ("config.json", "metrics.jsonl", "status.json", "summary.json", LOCK)
FOLDERS = ("checkpoints", "frozen")
"""What a run writes into its folder."""


def check_folder(config: BaseRunConfig) -> None:
    """Check that the folder of a run can be opened, without creating anything; see `open_folder`."""
    folder = config.folder
    if not config.resume:
        config.check_new()
    try:
        existing = _existing(folder)
        if config.name and config.resume:
            find_run(folder)
        elif config.name and (folder / "config.json").exists():
            raise FileExistsError(
                f"the run {folder} exists; continue it with --run.resume {folder}, or choose another name"
            )
        if not existing.is_dir():
            raise _unwritable(folder, NotADirectoryError(errno.ENOTDIR, f"{existing} is a file"))
        _check_names(folder, existing)
        if config.name:
            _check_kinds(folder)
        if config.name and not config.resume:
            _refuse_remains(folder)
        if config.resume and isinstance(config, RunConfig):
            start_of(folder, config)
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        if error.errno is None:  # ours
            raise
        raise _unwritable(folder, error) from None


def _existing(path: Path) -> Path:
    """The nearest folder or file above a path, or at it, that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _check_names(folder: Path, existing: Path) -> None:
    """**Raises** `OSError` for a new folder's name that is longer than the file system of `existing` allows."""
    longest = os.pathconf(existing, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    if any(len(os.fsencode(part)) > longest for part in folder.parts):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _check_kinds(folder: Path) -> None:
    """**Raises** `FileExistsError` if a folder is where a run writes a file, or the other way round."""
    for names, wrong, needed in ((FILES, Path.is_dir, "a folder"), (FOLDERS, Path.is_file, "a file")):
        for name in names:
            if wrong(folder / name):
                actual = "a file" if needed == "a folder" else "a folder"
                raise FileExistsError(
                    f"{folder / name} is {needed}, where a run has {actual}: move it away, or choose another --run.name"
                )


def _refuse_remains(folder: Path) -> None:
    """**Raises** `FileExistsError` for a new run in a folder that holds checkpoints or a log of another, whose
    config.json is gone: both would mix."""
    log = folder / "metrics.jsonl"
    left = [f"checkpoints of the updates {', '.join(map(str, saved))}"] if (saved := saved_updates(folder)) else []
    left += [log.name] if log.is_file() and log.stat().st_size else []
    if left:
        raise FileExistsError(
            f"{folder} holds no config.json, but {' and '.join(left)} of an earlier run: put its config.json back and "
            f"continue it with --run.resume {folder}, move them away, or choose another --run.name"
        )


def _unwritable(folder: Path, error: OSError) -> OSError:
    reason = error.strerror or str(error)
    flags = "--run.name or --run.out" if error.errno == errno.ENAMETOOLONG else "--run.out"
    return PermissionError(f"no run can be kept in {folder} ({reason}): choose another {flags}")


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


def _new_folder(parent: Path, name: str) -> Path:
    """A new folder, also if several runs start in the same second."""
    folder, n = parent / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            n += 1
            folder = parent / f"{name}-{n}"


@contextlib.contextmanager
def opened(config: BaseRunConfig, command: str = "run") -> Iterator[Path]:
    """Folder of a run, opened and locked until the last of its files is written. A new folder in which nothing was
    written is removed if the block raises: the run was refused.

    **Arguments, Raises:** as those of `open_folder` and `held`; only process 0 takes the lock.
    """
    import jax

    present = _existing(config.folder)
    folder = open_folder(config, command)
    first = jax.process_index() == 0
    with held(folder) if first else contextlib.nullcontext():
        try:
            yield folder
        except Exception:
            if first and folder != present:
                _remove_unused(folder, present)
            raise


def _remove_unused(folder: Path, present: Path) -> None:
    """Remove a folder that holds nothing but a lock and empty folders, and the folders above it up to `present`."""
    if any(path.is_file() and path.name != LOCK for path in folder.rglob("*")):
        return
    with contextlib.suppress(OSError):  # of another process
        shutil.rmtree(folder)
        while (folder := folder.parent) not in (present, folder.parent):
            folder.rmdir()


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
    delete each other's checkpoints. Does nothing if the system or the file system has no locks, or inside a block of
    the same thread that holds the same folder.

    **Raises:** `BlockingIOError` if another process has locked it, naming the process and its machine;
    `PermissionError` if the lock cannot be written.
    """
    key = (str(Path(folder).resolve()), threading.get_ident())
    if key in _LOCKED:
        yield
        return
    if (Path(folder) / LOCK).is_dir():
        raise FileExistsError(f"{Path(folder) / LOCK} is a folder, where the run has a file: move it away")
    try:
        lock = (Path(folder) / LOCK).open("a+")
    except PermissionError as error:  # of another user, in a folder that a group may write
        raise PermissionError(
            f"{Path(folder) / LOCK} cannot be written ({error.strerror}), which protects the run: make it writable, as "
            "with chmod g+w, or choose another --run.out"
        ) from None
    with lock as file:
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
        _LOCKED.add(key)
        try:
            yield
        finally:
            _LOCKED.discard(key)


def holder(folder: str | Path) -> str:
    """The process that has locked a folder (see `held`), and its machine; empty if none has."""
    try:
        with (Path(folder) / LOCK).open() as file:
            return "" if _locked(file, exclusive=False) else file.read().strip() or "another process"
    except (OSError, ValueError):  # there is none, or this user cannot read it
        return ""


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
    """Write `summary.json`: `values`, and the commit, versions, machine, date and peak memory."""
    path = Path(folder) / "summary.json"
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": info.commit(),
        "versions": info.versions(),
        "machine": info.machine(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 3),
    }
    configs.save_config({**values, **facts}, path)
    return path


def evaluations(folder: str | Path) -> dict[int, Path]:
    """The files of a run's evaluations, `eval-UPDATE.json`, by update."""
    names = ((path.stem.removeprefix("eval-"), path) for path in Path(folder).glob("eval-*.json"))
    return {int(number): path for number, path in names if number.isdecimal()}


def discard_results(folder: str | Path, update: int) -> None:
    """Delete the summary of a run that is continued, and the evaluations of updates after `update`."""
    later = [path for number, path in evaluations(folder).items() if number > update]
    for path in (Path(folder) / "summary.json", *later):
        path.unlink(missing_ok=True)


# --- the beginning of a resumed run ---------------------------------------------------------------------------------


def saved_updates(folder: str | Path) -> list[int]:
    """Updates of a run's complete checkpoints, ascending, from the names of their folders."""
    root = Path(folder) / "checkpoints"
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit()) if root.is_dir() else []


def start_of(folder: str | Path, config: RunConfig) -> tuple[int, str]:
    """The update from which a run continues; 0 for a new run, or one that was never saved.

    **Arguments:** `folder`, the run's; `config`, with `resume`, `resume_from` and `accept_gaps`.
    **Returns:** the update, and what the user should know (empty: nothing).
    **Raises:** `FileNotFoundError` if the checkpoint to continue from is missing, or all are although the run was
    saved; `ValueError` if `metrics.jsonl` does not have every update up to there, unless `accept_gaps`.
    """
    folder = Path(folder)
    if not config.resume:
        return 0, ""
    saved = saved_updates(folder)
    if config.resume_from >= 0 and config.resume_from not in saved:
        listed = f"it has {', '.join(map(str, saved))}" if saved else "it has none"
        raise FileNotFoundError(
            f"--run.resume-from is {config.resume_from}, but there is no checkpoint of that update in "
            f"{folder / 'checkpoints'}: {listed}"
        )
    if not saved:
        _refuse_lost_checkpoints(folder)
        return 0, f"{folder} was never saved: it begins again at update 0"
    start = config.resume_from if config.resume_from >= 0 else saved[-1]
    wrong, complete = metrics.fault(folder / "metrics.jsonl", start) if start else ("", 0)
    if wrong and not config.accept_gaps:
        earlier = max((update for update in saved if update <= complete), default=None)
        back = "" if earlier is None else f", continue from an earlier checkpoint with --run.resume-from {earlier}"
        raise ValueError(
            f"{wrong}, but the run continues from update {start}: put the lines back{back}, or give them up with "
            "--run.accept-gaps"
        )
    return start, f"{wrong}; this gap was accepted" if wrong else ""


def _refuse_lost_checkpoints(folder: Path) -> None:
    """**Raises** `FileNotFoundError` if a run without checkpoints had some: it would begin at 0 and lose its log."""
    status = read_status(folder)
    reached = max((line["update"] for line in metrics.newest(folder / "metrics.jsonl").values()), default=0)
    reached = max(reached, status.update if status is not None else 0)
    was_saved = status is not None and status.saved >= 0
    if was_saved or (reached and not (folder / "checkpoints").is_dir()):
        raise FileNotFoundError(
            f"there is no checkpoint in {folder / 'checkpoints'}, although the run reached update {reached}: put them "
            "back, or start a run of another --run.name"
        )


# --- `status.json`: how a run ended ---------------------------------------------------------------------------------


_STATUS = "status.json"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True)
class Status:
    """Status written by the last process that trained a run."""

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
    write_whole(Path(folder) / _STATUS, json.dumps(asdict(status)) + "\n")


def read_status(folder: str | Path) -> Status | None:
    """Status of a run; None if it has no valid status file, such as runs of earlier versions."""
    try:
        return Status(**json.loads((Path(folder) / _STATUS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
