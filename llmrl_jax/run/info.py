"""The conditions of a measurement: commit, versions, machine, load, memory."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from envs_jax.threads import cores


COMMIT = "LLMRL_COMMIT"
"""The environment variable that names the commit of a tree without history, such as a copy on another machine."""
ROOT = Path(__file__).parents[2]
PACKAGES = ("llmrl_jax", "envs_jax", "pyproject.toml", "constraints.txt")
_STARTED = time.time()


def _git(*arguments: str) -> str | None:
    """The output of a git command in `ROOT`; None if it fails or git is absent."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def commit(*folders: str) -> str | None:
    """The last commit that changed the packages, their pinned versions or `folders`: what a result was computed with.

    Commits of documentation, tests or results do not change it: results of one version of the code name one commit,
    also if some are committed before others are computed.

    **Arguments:** `folders`, of the checkout, such as `benchmarks`, without the `results` in them.
    **Returns:** its first twelve digits, followed by `-dirty` if files differ from it or if it is newer than this
    process; the environment variable `LLMRL_COMMIT` where that is set; None outside a checkout of this project.
    **Raises:** `ValueError` if `LLMRL_COMMIT` is not a commit.
    """
    if stated := os.environ.get(COMMIT, ""):
        if not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", stated):
            raise ValueError(
                f"{COMMIT} is {stated!r}; 7 to 40 hexadecimal digits, as `git rev-parse HEAD` prints them, are needed"
            )
        return stated
    if not (ROOT / ".git").exists() or _git("ls-files", "--error-unmatch", "llmrl_jax/run/info.py") is None:
        return None
    code = ("--", *PACKAGES, *folders, ":(exclude,glob)**/results/**")
    last, changed = _git("log", "-1", "--abbrev=12", "--format=%h %ct", *code), _git("status", "--porcelain", *code)
    if not last or changed is None:
        return None
    digits, seconds = last.split()
    return f"{digits}-dirty" if changed or int(seconds) > _STARTED else digits


def stamp(*folders: str) -> dict[str, Any]:
    """Commit (null if unknown), versions and device of a result; see `commit`. Starts the JAX backend."""
    return {"commit": commit(*folders), **versions(), "device": device()}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect numerical results."""
    result = {"python": platform.python_version()}
    for name in ("llmrl-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"):
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def cpu() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def device() -> str:
    """The kind of the accelerator, or of the processor if there is none: what programs are compiled for. Starts the JAX
    backend."""
    import jax

    first = jax.devices()[0]
    return f"cpu ({cpu()})" if first.platform == "cpu" else first.device_kind


def machine() -> dict[str, Any]:
    """Processor, usable cores, accelerators, and the load average of the last minute. Starts the JAX backend."""
    import jax

    devices = jax.devices()
    return {
        "cpu": cpu(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
        "load_average": round(os.getloadavg()[0], 2),
    }


def peak_memory_bytes() -> int:
    """The peak resident set size of this process."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
