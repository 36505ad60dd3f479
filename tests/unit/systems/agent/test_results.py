"""The page of results of agents that write has the numbers of the committed records."""

from __future__ import annotations

import json
from pathlib import Path


ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "systems" / "agent-results.md").read_text()
RESULTS = ROOT / "experiments" / "results"


def cell(rates: list[float]) -> str:
    rate, low, high = rates
    return f"{rate:.2f} [{low:.2f}, {high:.2f}]"


def test_thoughts_that_carry_information():
    runs = json.loads((RESULTS / "agent_thoughts" / "thoughts.json").read_text())["runs"]
    for seed in {run["seed"] for run in runs}:
        thinks, mute = ({run["thoughts"]: run for run in runs if run["seed"] == seed}[x] for x in (True, False))
        row = [seed, cell(thinks["success"]), f"{thinks['turns']:,}", cell(mute["success"]), f"{mute['turns']:,}"]
        assert f"| {' | '.join(map(str, row))} |" in PAGE
        assert thinks["success"][0] >= mute["success"][0] + 0.2


def test_the_demo():
    record = json.loads((RESULTS / "agent_demo" / "seed-0.json").read_text())
    for name in ("before", "after", "after_greedy"):
        row = record[name]
        assert cell([row[x] for x in ("success", "success_low", "success_high")]) in PAGE
        assert f"{row['valid']:.3f}" in PAGE
