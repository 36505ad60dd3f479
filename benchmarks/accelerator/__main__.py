"""`python -m benchmarks.accelerator [part ...]`: measure on an accelerator within a few minutes, one JSON per part.

The command line is argparse's, so that a copied tree needs no package beyond jax, flax, optax and what they bring.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from benchmarks.accelerator.record import (
    NO_TIME,
    PARTS,
    SHARES,
    Budget,
    Settings,
    begun,
    path_of,
    put,
    read,
    run_parts,
    status_of,
    write,
)
from benchmarks.harness import RESULTS, ROOT, commit
from envs_jax.checks import nearest
from llmrl_jax.core.checks import in_interval


MINUTES = 8.0
"""Minutes that all parts together may take."""
LIMIT_S = 150.0
"""Seconds that a case may take."""
CLOSING_S = 5.0
"""Seconds of the whole that are kept for ending."""
OUT = {"full": RESULTS / "accelerator", "tiny": ROOT / "runs" / "accelerator-tiny"}
"""Where results go by default; what a tiny run measures is not kept."""
CACHE = ROOT / ".jax_cache" / "accelerator"
"""Where compiled programs are kept, for all processes of a run and for the next run."""


def parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<10} {SHARES.get(name, 1):>2}%  {what}" for name, what in PARTS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description="Measure the library on an accelerator, the most important first; every part writes one JSON.",
        epilog=f"parts, with their shares of the time:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("parts", nargs="*", metavar="part", help="parts to measure, in this order; none: all")
    made.add_argument("--minutes", type=float, default=MINUTES, help="minutes for all parts together (default: 8)")
    made.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds that a case may take (default: 150)")
    made.add_argument("--size", choices=("tiny", "full"), default="full", help="tiny: try the parts, also on a CPU")
    made.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results/accelerator")
    made.add_argument("--model", default="", help="a model folder or GGUF file, for the part glam (default: random)")
    made.add_argument("--here", action="store_true", help="measure in this process, without a limit of time")
    # what a process passes to the one that measures for it
    made.add_argument("--budget", nargs=2, type=float, metavar=("START", "END"), help=argparse.SUPPRESS)
    made.add_argument("--command", default="", help=argparse.SUPPRESS)
    return made


def chosen(names: Sequence[str]) -> list[str]:
    """The parts to measure. **Raises** `ValueError`, with the nearest name, for an unknown one."""
    for name in names:
        if name not in PARTS:
            known = list(PARTS)
            raise ValueError(f"there is no part {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return list(dict.fromkeys(names or PARTS))


def command_of(names: Sequence[str], settings: Settings, out: Path, budget: Budget) -> list[str]:
    """The command that measures parts in a process of its own."""
    options = ["--size", settings.size, "--out", str(out), "--limit-s", str(settings.limit_s), "--here"]
    options += ["--model", settings.model] if settings.model else []
    options += ["--budget", str(budget.start), str(budget.end), "--command", settings.command]
    return [sys.executable, "-m", "benchmarks.accelerator", *names, *options]


def run_apart(
    names: Sequence[str], settings: Settings, out: Path, budget: Budget, command: Callable = command_of
) -> dict[str, str]:
    """Measure parts in a process of its own, and in another one from where it died, if it does.

    A case that hangs, or crashes the process, is recorded as that, and the others run.
    **Returns:** the statuses by part: those of `run_part`.
    """
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        **os.environ,
    }
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in env:  # jax refuses both of its names
        # all memory but a tenth, where jax takes three quarters: a 7B model and its caches need it
        env.setdefault("XLA_CLIENT_MEM_FRACTION", "0.9")
    why = ""
    while time.time() < budget.end:
        left = budget.end + CLOSING_S - time.time()
        try:
            done = subprocess.run(command(names, settings, out, budget), cwd=ROOT, env=env, timeout=left)
            why = f"its process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            why = "its process did not end in time"
        if not ended_early(names, settings, out, budget, why):
            break
    late = time.time() >= budget.end
    return {name: close(name, settings, out, "the time was over" if late else why, late) for name in names}


def close(name: str, settings: Settings, out: Path, why: str, late: bool) -> str:
    """Record of a part that it was not measured whole, and why, if it was not. **Returns:** its status."""
    value = read(name, settings, out) or begun(name, settings)
    if value["status"] == "running":
        value["status"] = status_of(value["cases"]) if value["cases"] else NO_TIME if late else "failed"
        value["error"] = f"not measured whole: {why}"
        # what another run measured stays where this one has nothing
        if value["cases"] or not path_of(name, out).exists():
            write(path_of(name, out), value)
    return value["status"]


def ended_early(names: Sequence[str], settings: Settings, out: Path, budget: Budget, why: str) -> bool:
    """Record what a process was measuring when it ended, if it had not finished. **Returns:** whether it was measuring
    something, so that another one can go on after that."""
    for name in names:
        value = read(name, settings, out)
        if value is None or value["status"] != "running":
            continue
        case = value["running"]
        if case is None:  # it was listing the part's cases
            value |= {"status": "failed", "error": why}
        else:
            took = time.time() - case["started"]
            slow = took >= settings.limit_s or time.time() >= budget.end
            error = f"it was stopped after {took:.0f} s" if slow else why
            entry = {"case": case["case"], "status": "timeout" if slow else "failed", "shape": case["shape"]}
            put(value, entry | {"error": error, "took_seconds": round(took, 1)})
            value["running"] = None
            print(f"  {case['case']}: {error}", file=sys.stderr)
        write(path_of(name, out), value)
        return True
    return False


def main(args: Sequence[str] | None = None) -> int:
    """Measure parts. **Returns:** 0; 1 if one failed or was stopped. **Raises:** `RuntimeError` if a full size is
    measured and the commit is unknown."""
    started = time.time()
    given = parser().parse_args(args)
    # parts run in the project's folder
    model = str(Path(given.model).resolve()) if given.model and Path(given.model).exists() else given.model
    words = sys.argv[1:] if args is None else args
    command = given.command or shlex.join(["python", "-m", "benchmarks.accelerator", *words])
    limited = not given.here or given.budget is not None
    names = chosen(given.parts)
    budget = Budget(*given.budget) if given.budget else Budget(started, started + 60 * given.minutes - CLOSING_S)
    settings = Settings(given.size, model, command, given.limit_s if limited else math.inf, budget.start)
    in_interval("limit_s", given.limit_s, "(0, inf)")
    in_interval("minutes", given.minutes, "(0, inf)")
    out = (given.out or OUT[given.size]).resolve()
    if not settings.tiny:
        commit()
    if given.here:
        if not settings.tiny and jax.default_backend() == "cpu":
            raise ValueError("jax finds no accelerator here: --size tiny tries the parts on a CPU")
        out.mkdir(parents=True, exist_ok=True)
        statuses = run_parts(names, settings, out, budget if given.budget else None)
    else:
        out.mkdir(parents=True, exist_ok=True)
        statuses = run_apart(names, settings, out, budget)
        took = (time.time() - started) / 60
        print(f"{took:.1f} minutes; results are in {out}: " + ", ".join(f"{k} {v}" for k, v in statuses.items()))
    return int(any(status in ("failed", "timeout") for status in statuses.values()))


if __name__ == "__main__":
    from llmrl_jax.cli import main as cli

    sys.exit(cli.guard(main))
