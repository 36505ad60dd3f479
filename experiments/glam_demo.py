"""The demo, `llmrl glam demo`, with several seeds: success before and after RL, sampled and greedy, and seconds.

    python experiments/glam_demo.py

Every seed is a process of its own with an empty compilation cache, as a user's first run is. `<out>/demo.json` has the
figures, the settings and the machine; `experiments/results/glam_demo` has those of the defaults, and README the figures
of seed 0.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import command, rates_of, summary_of

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.glam.config import DEMO_STEPS
from llmrl_jax.systems.glam.demo import DEMO_PRIOR, demo_config


RATES = ("random", "before", "after", "after_greedy")
FIGURES = ("steps", "steps_per_second", "rl_seconds", "imitation_seconds", "compile_seconds", "total_seconds")


@dataclass(frozen=True)
class Experiment:
    """The demo with several seeds."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds, one run of the demo each."""
    out: str = "runs/glam_demo"
    """Folder of the runs and of the results."""


def settings() -> dict[str, Any]:
    """The settings that decide the demo's figures."""
    return {"steps": DEMO_STEPS, "glam": configs.to_json(demo_config(DEMO_STEPS)), "prior": configs.to_json(DEMO_PRIOR)}


def play(seed: int, out: Path) -> dict[str, Any]:
    """Run the demo with one seed, if it has not been run. **Returns:** its row of the record."""
    result = summary_of(out, f"seed-{seed}", "glam", "demo", "--run.seed", str(seed))
    return {
        "seed": seed,
        **rates_of(result, RATES),
        **{figure: result[figure] for figure in FIGURES},
        "peak_memory_gib": result["peak_memory_gib"],
        "load_average": result["machine"]["load_average"],
    }


def main() -> None:
    """Run all seeds and write the record."""
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    record = {
        "command": command(Path(__file__).name, x),
        "date": datetime.date.today().isoformat(),
        **info.stamp("experiments"),
        "machine": info.machine(),
        "success": "[rate, low, high] of held-out episodes, Wilson's 95% interval",
        "episodes": 1000,
        "settings": settings(),
        "seeds": [play(seed, out) for seed in x.seeds],
    }
    write_whole(out / "demo.json", json.dumps(record, indent=1) + "\n")
    for row in record["seeds"]:
        print(f"seed {row['seed']}: " + ", ".join(f"{when} {row[when]}" for when in RATES))


if __name__ == "__main__":
    main()
