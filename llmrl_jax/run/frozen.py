"""The frozen part of a run, which no update changes: `<folder>/frozen`, written once beside the checkpoints.

`<folder>/frozen.json` has the size and the time of change of each of its files. A run that continues, and has loaded
the same arrays, compares these only. Where they differ, it reads the arrays, compares their checksums, and writes them
again if they are damaged. Several processes write them again at once, since a file that only one of them cannot read
would stop the others. A changed bit that leaves the time of its file as it is (a fault of the disk) is found when the
arrays are read in place of the model, as an evaluation does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from llmrl_jax.core.files import write_whole


PORTION_BYTES = 1 << 30
"""Bytes of the arrays that are read at a time to compare them."""


def is_given(name: str) -> bool:
    """Return whether a leaf of a frozen part is of its part `given`, which is in no file."""
    return name.partition(".")[0] == "given"


def written(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a frozen part, by name, that files hold."""
    return {name: x for name, x in leaves.items() if not is_given(name)}


def write(root: Path, leaves: Mapping[str, Any]) -> None:
    """Write or replace the arrays `leaves` (by name, none empty) in the folder `root`. A collective operation."""
    if jax.process_index() == 0:
        _record(root).unlink(missing_ok=True)
    with ocp.StandardCheckpointer() as writer:
        writer.save(root, dict(leaves), force=True)
    note(root)


def note(root: Path) -> None:
    """Record the files as they are now: those of arrays that were written, or read and compared."""
    if jax.process_index() == 0:
        files = {path.relative_to(root).as_posix(): _facts(path) for path in sorted(root.rglob("*")) if path.is_file()}
        write_whole(_record(root), json.dumps(files) + "\n")


def read(root: Path, like: Mapping[str, Any]) -> Any:
    """The arrays, or some of them, with the shapes, dtypes and shardings of `like`."""
    if not like:
        return {}
    arguments = ocp.checkpoint_utils.construct_restore_args(like)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(
            root, args=ocp.args.PyTreeRestore(dict(like), restore_args=arguments, partial_restore=True)
        )


def portions(like: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arrays in portions of at most `PORTION_BYTES` bytes, or of one array, so that few are in memory twice."""
    portion: dict[str, Any] = {}
    size = 0
    for name, x in like.items():
        nbytes = x.size * x.dtype.itemsize
        if portion and size + nbytes > PORTION_BYTES:
            yield portion
            portion, size = {}, 0
        portion[name] = x
        size += nbytes
    if portion:
        yield portion


def changed(root: Path) -> str:
    """Files that are missing, or differ in size or time from the record, as a clause; empty if nothing does. Reads no
    contents. A collective operation: process 0 looks."""
    wrong = _changed(root) if jax.process_index() == 0 else ""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        if multihost_utils.broadcast_one_to_all(np.asarray(bool(wrong))):
            return wrong or "process 0 found it so"
        return ""
    return wrong


def _changed(root: Path) -> str:
    if not root.is_dir():
        return f"{root} is missing"
    try:
        recorded = dict(json.loads(_record(root).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return f"{_record(root)} is missing, or cannot be read"  # as of earlier versions
    for name, facts in recorded.items():
        path = root / name
        if not path.is_file():
            return f"{path} is missing"
        if _facts(path) != facts:  # also the checksums of earlier versions
            return f"{path} has changed"
    return ""


def _record(root: Path) -> Path:
    return root.with_name(f"{root.name}.json")


def _facts(path: Path) -> dict[str, int]:
    """The size of a file in bytes, and when it changed, in whole seconds: copies keep no more."""
    stat = path.stat()
    return {"size": stat.st_size, "modified": int(stat.st_mtime)}
