"""`python -m benchmarks.accelerator [part ...]`: measure on an accelerator, one process per part, one JSON each.

The command line is argparse's, so that a copied tree needs no package beyond jax, flax, optax and what they bring.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accelerator.record import PARTS, Settings, path_of, run_part, write
from benchmarks.harness import RESULTS, ROOT, commit
from envs_jax.checks import nearest
from llmrl_jax.core.checks import in_interval


LIMIT_S = 480.0
"""Seconds that a part may take."""
OUT = {"full": RESULTS / "accelerator", "tiny": ROOT / "runs" / "accelerator-tiny"}
"""Where results go by default; what a tiny run measures is not kept."""


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<10} {what}" for name, what in PARTS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description="Measure the library on an accelerator; every part writes one JSON.",
        epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", nargs="*", metavar="part", help="parts to measure; none: all")
    made.add_argument("--size", choices=("tiny", "full"), default="full", help="tiny: try the parts, also on a CPU")
    made.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results/accelerator")
    made.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds that a part may take (default: 480)")
    made.add_argument("--model", default="", help="a model folder or GGUF file, for the part glam (default: random)")
    made.add_argument("--here", action="store_true", help="measure in this process, without a limit of time")
    return made


def chosen(names: Sequence[str]) -> list[str]:
    """The parts to measure. **Raises** `ValueError`, with the nearest name, for an unknown one."""
    for name in names:
        if name not in PARTS:
            known = list(PARTS)
            raise ValueError(f"there is no part {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return list(names or PARTS)


def backend() -> str:
    """The platform that jax computes on, asked in another process: this one must not hold the device's memory."""
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def command_of(name: str, settings: Settings, out: Path) -> list[str]:
    """The command that measures one part in a process of its own."""
    options = ["--size", settings.size, "--out", str(out), "--here"]
    options += ["--model", settings.model] if settings.model else []
    return [sys.executable, "-m", "benchmarks.accelerator", name, *options]


def run_apart(name: str, settings: Settings, out: Path, limit_s: float, command: Callable = command_of) -> str:
    """Measure a part in a process of its own, which is killed after `limit_s` seconds.

    A part that hangs, or crashes the process, keeps the cases that it had measured, and the others run.
    **Returns:** its status: that of `run_part`, or `timeout`.
    """
    path, started = path_of(name, out), time.perf_counter()
    path.unlink(missing_ok=True)
    # all memory but a tenth, where jax takes three quarters: a 7B model and its caches need it
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", **os.environ}
    try:
        done = subprocess.run(command(name, settings, out), cwd=ROOT, env=env, timeout=limit_s)
        status, error = "failed", f"its process ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        status, error = "timeout", f"it was stopped after {limit_s:g} s"
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        value = {"name": name, "title": PARTS[name], "size": settings.size, "status": "running", "cases": []}
    if value["status"] == "running":
        took = round(time.perf_counter() - started, 1)
        write(path, value | {"status": status, "error": error, "took_seconds": took})
        print(f"  {status}: {error}", file=sys.stderr)
        return status
    return value["status"]


def main(args: Sequence[str] | None = None) -> int:
    """Measure parts. **Returns:** 0; 1 if one failed or was stopped. **Raises:** `RuntimeError` if a full size is
    measured and the commit is unknown."""
    given = parser().parse_args(args)
    # parts run in the project's folder
    model = str(Path(given.model).resolve()) if given.model and Path(given.model).exists() else given.model
    names, settings = chosen(given.parts), Settings(given.size, model)
    in_interval("limit_s", given.limit_s, "(0, inf)")
    out = (given.out or OUT[given.size]).resolve()
    if not given.here and not settings.tiny and backend() == "cpu":
        raise ValueError("jax finds no accelerator here: --size tiny tries the parts on a CPU")
    if not settings.tiny:
        commit()
    out.mkdir(parents=True, exist_ok=True)
    statuses = {}
    for name in names:
        apart = (name, settings, out)
        statuses[name] = run_part(*apart) if given.here else run_apart(*apart, given.limit_s)
    if not given.here:
        print(f"results are in {out}: " + ", ".join(f"{name} {status}" for name, status in statuses.items()))
    return int(any(status not in ("ok", "skipped") for status in statuses.values()))


if __name__ == "__main__":
    from llmrl_jax.cli import main as cli

    sys.exit(cli.guard(main))
