"""The folder of a run: opening it, and the files in it that are not metrics or checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs_jax.registry import nearest
from llmrl_jax.run import config as configs, info


def folder_name(text: str) -> str:
    """A text as a folder's name: what is no letter, digit, dash or underscore becomes an underscore."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text)


def open_folder(config: configs.RunConfig, command: str = "run") -> Path:
    """The folder of a run, `<out>/<name>`, made if it is new.

    **Arguments:** `config`; `command`, what an unnamed run is called after, with the time.
    **Raises:** `FileExistsError` where a run of that name exists and `resume` is off; `FileNotFoundError` where none
    exists and `resume` is on, naming the nearest.
    """
    out = Path(config.out).expanduser()
    name = config.name or f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = out / name
    if config.resume:
        if not (folder / "config.json").exists():
            known = [path.parent.name for path in out.glob("*/config.json")]
            raise FileNotFoundError(f"there is no run {name!r} in {out} to resume{nearest(name, known)}")
    elif (folder / "config.json").exists():
        if config.name:
            raise FileExistsError(f"the run {folder} exists; continue it with --run.resume, or choose another name")
        folder = next(f for n in range(2, 10**6) if not (f := out / f"{name}-{n}").exists())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_summary(folder: str | Path, values: Mapping[str, Any]) -> Path:
    """Write `summary.json`: `values`, and the versions, machine, date and peak memory that go with them."""
    path = Path(folder) / "summary.json"
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": info.versions(),
        "machine": info.machine(),
        "peak_memory_gib": round(info.peak_memory_bytes() / 2**30, 3),
    }
    path.write_text(json.dumps(configs.to_json({**values, **facts}), indent=2) + "\n")
    return path
