"""The frozen part of a run, which no update changes: `<folder>/frozen`, written once beside the checkpoints.

`<folder>/frozen.json` has the size and the CRC of each of its files. They are compared when a run continues, since the
arrays are not read then if a new start has loaded the same ones.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from llmrl_jax.core.files import write_whole


BLOCK = 1 << 24
"""Bytes of a file that are in memory at a time."""


def write(root: Path, leaves: Mapping[str, Any]) -> None:
    """Write or replace the arrays `leaves` (by name, none empty) in the folder `root`. A collective operation."""
    first = jax.process_index() == 0
    if first:
        _record(root).unlink(missing_ok=True)
    with ocp.StandardCheckpointer() as writer:
        writer.save(root, dict(leaves), force=True)
    if first:
        files = {path.relative_to(root).as_posix(): _sum(path) for path in sorted(root.rglob("*")) if path.is_file()}
        write_whole(_record(root), json.dumps(files) + "\n")


def read(root: Path, like: Mapping[str, Any]) -> Any:
    """The arrays, with the shapes, dtypes and shardings of `like`."""
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(root, like)


def damage(root: Path) -> str:
    """What is missing or differs from the files that were written, as a clause; empty if nothing is. A collective
    operation: process 0 looks. Of a run without `frozen.json`, as earlier versions wrote it, only the folder must be
    there."""
    wrong = _damage(root) if jax.process_index() == 0 else ""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        if multihost_utils.broadcast_one_to_all(np.asarray(bool(wrong))):
            return wrong or "process 0 found it so"
        return ""
    return wrong


def _damage(root: Path) -> str:
    if not root.is_dir():
        return f"{root} is missing"
    try:
        saved = dict(json.loads(_record(root).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return ""
    for name, wanted in saved.items():
        path = root / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != wanted[0] or _sum(path) != wanted:
            return f"{path} has changed"
    return ""


def _record(root: Path) -> Path:
    return root.with_name(f"{root.name}.json")


def _sum(path: Path) -> list[int]:
    """The size of a file in bytes, and its CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]
