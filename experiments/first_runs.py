"""A user's first run of a system: the tour's commands as they stand, how long they take, and what they reach.

    python experiments/first_runs.py --system kalm
    python experiments/first_runs.py --system bkrl --seed 1

Every command is a process of its own, in one empty folder, with an empty compilation cache. `<out>/<system>.json` (of
other seeds `<system>-<seed>.json`) has the commands with their seconds, and success beside that of random actions; the
tour and the pages state the records in `experiments/results/first_runs`.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from commands import command

from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.kalm.worlds import LEVELS


TOUR = Path(__file__).parent.parent / "docs" / "tour.md"
RANDOM = "random"
WAYS = ("sampled", "greedy", RANDOM)


@dataclass(frozen=True)
class Experiment:
    """The tour's commands of a system."""

    system: Literal["kalm", "bkrl"] = "kalm"
    """The system."""
    seed: int = 0
    """Seed of every run; the episodes of the language model's test are the same for all."""
    prefix: str = ""
    """What starts each command, as `taskset -c 0`."""
    out: str = "runs/first_runs"
    """Folder of the runs and of the results."""


def commands_of(system: str, text: str) -> list[str]:
    """The commands of a system's block, without comments. **Arguments:** `text`, the page's.

    **Raises:** `ValueError` unless one block has only commands of this system.
    """
    blocks = [
        [line.split("  #")[0].strip() for line in block.splitlines() if line.strip()]
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    ]
    chosen = [block for block in blocks if all(line.startswith(f"llmrl {system} ") for line in block)]
    if len(chosen) != 1:
        raise ValueError(f"docs/tour.md has {len(chosen)} blocks of llmrl {system}; one is needed")
    return chosen[0]


def seeded(line: str, seed: int) -> str:
    """A command with the seed of its run. `llmrl kalm test` makes no run."""
    return line if seed == 0 or " test " in line else f"{line} --run.seed {seed}"


def timed(line: str, folder: Path, prefix: str) -> dict[str, Any]:
    """Run a command in a folder. **Returns:** it, and its seconds: by the clock, and of all processors."""
    before, began = os.times(), time.monotonic()
    program = [*shlex.split(prefix), sys.executable, "-m", "llmrl_jax", *shlex.split(line)[1:]]
    subprocess.run(program, cwd=folder, env={**os.environ, "LLMRL_COMPILATION_CACHE": "off"}, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return {"command": line, "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(spent, 1)}


def rate(found: dict[str, Any], name: str) -> list[float]:
    """`[rate, low, high]` of a summary."""
    return [round(found[f"{name}{end}"], 3) for end in ("", "_low", "_high")]


def newest(folder: Path, pattern: str) -> dict[str, Any]:
    """The contents of the file of a run that was written last."""
    return json.loads(max(folder.glob(pattern), key=lambda file: file.stat().st_mtime).read_text())


def success_of(system: str, runs: Path) -> dict[str, Any]:
    """Results of a system's runs: rates with the bounds of their 95% intervals."""
    if system == "bkrl":
        found = newest(runs, "*/eval-*.json")["agent"]
        return {way: rate(found, f"{way}/success") for way in WAYS}
    agent, model = newest(runs, "agent/eval-*.json"), newest(runs, "model/test.json")
    rows = {"agent": agent, "language model": model, RANDOM: agent[RANDOM]}
    return {level: {name: rate(found, level) for name, found in rows.items()} for level in LEVELS}


def main() -> None:
    """Run a system's commands and write the record."""
    x = parse(Experiment, description=__doc__)
    name = f"{x.system}-{x.seed}" if x.seed else x.system
    folder = Path(x.out) / name
    folder.mkdir(parents=True)
    lines = [seeded(line, x.seed) for line in commands_of(x.system, TOUR.read_text())]
    stamp, machine = info.stamp("experiments"), info.machine()
    ran = [timed(line, folder, x.prefix) for line in lines]
    record = {
        "command": command(Path(__file__).name, x, ("out", "prefix")),
        "date": datetime.date.today().isoformat(),
        **stamp,
        "machine": machine,
        "commands": ran,
        "seconds": round(sum(one["seconds"] for one in ran), 1),
        "cpu_seconds": round(sum(one["cpu_seconds"] for one in ran), 1),
        "success": success_of(x.system, folder / "runs"),
    }
    write_whole(Path(x.out) / f"{name}.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["success"], indent=1))


if __name__ == "__main__":
    main()
