"""Commands of experiments: the one that made a file of results, and runs of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from finished import refuse_others

from llmrl_jax.core.files import write_whole


def command(script: str, x: Any, left_out: tuple[str, ...] = ("out",)) -> str:
    """Command of the experiment `x`, a dataclass whose fields have defaults: `python experiments/<script>` with
    the options that differ from the defaults of its class. Places (`left_out`) do not decide the results."""
    default = type(x)()
    options = [
        " ".join([f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))])
        for name, value in vars(x).items()
        if name not in left_out and value != getattr(default, name)
    ]
    return " ".join(["python", f"experiments/{script}", *options])


def summary_of(out: Path, name: str, *arguments: str, resume: bool = False) -> dict[str, Any]:
    """The summary of the run `name` of `llmrl` with these arguments, which is run if it has none: in a process of its
    own with an empty compilation cache, as a user's first run is. **Arguments:** `resume`, whether one that was begun
    is continued, whose seconds are then not those of one run.

    **Raises:** `ValueError` if that run was begun with other arguments.
    """
    summary = out / name / "summary.json"
    file, current = out / f"{name}-arguments.json", {"arguments": " ".join(arguments)}
    if file.exists():
        refuse_others(file, json.loads(file.read_text()), current)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(current) + "\n")
    if not summary.exists() or json.loads(summary.read_text()).get("stopped"):
        options = ["--run.name", name, "--run.out", str(out), "--run.progress", "off"]
        if resume and (out / name / "config.json").exists():
            options.append("--run.resume")
        subprocess.run(
            [sys.executable, "-m", "llmrl_jax", *arguments, *options],
            env={**os.environ, "LLMRL_COMPILATION_CACHE": "off"},
            check=True,
        )
    result: dict[str, Any] = json.loads(summary.read_text())
    return result


def rates_of(result: dict[str, Any], names: tuple[str, ...]) -> dict[str, list[float]]:
    """`[rate, low, high]` of successes by when they were measured, rounded."""
    bounds = ("success", "success_low", "success_high")
    return {name: [round(result[name][bound], 3) for bound in bounds] for name in names}
