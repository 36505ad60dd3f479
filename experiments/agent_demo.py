"""The demo of agents that write, `llmrl agent demo`, with several seeds, and the other learners in its place.

    python experiments/agent_demo.py
    python experiments/agent_demo.py --algo turn_ppo --seeds 0 1 2

Every run is a process of its own with an empty compilation cache, as a user's first run is. `<out>/ALGO.json` has the
figures, the settings and the machine; `experiments/results/agent_demo` has those of `docs/systems/agent-results.md`.
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
from llmrl_jax.systems.agent.config import DEMO_CLONE, Algorithm, demo_config


RATES = ("random", "before", "after", "after_greedy")
FIGURES = ("steps", "tokens_per_second", "rl_seconds", "imitation_seconds", "compile_seconds", "total_seconds")
WINDOW = 5
"""Updates whose mean success says when a level is reached."""


@dataclass(frozen=True)
class Experiment:
    """The demo with several seeds."""

    algo: Algorithm = "token_ppo"
    """The learner; the demo's own is token_ppo."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds, one run of the demo each."""
    out: str = "runs/agent_demo"
    """Folder of the runs and of the results."""


def settings(algo: Algorithm) -> dict[str, Any]:
    """The settings that decide the figures."""
    config = demo_config(algo=algo)
    return {"agent": configs.to_json(config), "imitation": configs.to_json(DEMO_CLONE)}


def reached(folder: Path, bar: float, each: int = 0) -> int | None:
    """The turns after which success in training, a mean over `WINDOW` updates, was at least `bar`; None: never.
    **Arguments:** `each`, turns of an update; 0: as the log says."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row.get("kind") == "train" and "success" in row]
    turns = 0.0
    for i, row in enumerate(rows):
        turns += each or row["turns"]
        window = rows[max(0, i - WINDOW + 1) : i + 1]
        episodes = sum(x["episodes"] for x in window)
        if i + 1 >= WINDOW and sum(x["success"] * x["episodes"] for x in window if x["episodes"]) >= bar * episodes:
            return round(turns)
    return None


def play(algo: Algorithm, seed: int, out: Path) -> dict[str, Any]:
    """Run the demo with one seed, if it has not been run. **Returns:** its row of the record."""
    name = f"{algo}-{seed}"
    result = summary_of(out, name, "agent", "demo", "--algo", algo, "--run.seed", str(seed))
    return {
        "seed": seed,
        **rates_of(result, RATES),
        "valid": {when: round(result[when]["valid"], 4) for when in RATES[1:]},
        "reply_length": {when: round(result[when]["reply_length"], 2) for when in RATES[1:]},
        "turns_to_0.8": reached(out / name, 0.8),
        "turns_to_0.9": reached(out / name, 0.9),
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
        "episodes": 300,
        "settings": settings(x.algo),
        "seeds": [play(x.algo, seed, out) for seed in x.seeds],
    }
    write_whole(out / f"{x.algo}.json", json.dumps(record, indent=1) + "\n")
    for row in record["seeds"]:
        print(f"seed {row['seed']}: " + ", ".join(f"{when} {row[when]}" for when in RATES))


if __name__ == "__main__":
    main()
