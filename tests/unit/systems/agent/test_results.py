"""The page of results of agents that write has the numbers of the committed records."""

from __future__ import annotations

import json
from pathlib import Path

from llmrl_jax.core import config as configs
from llmrl_jax.report.runs import flat
from llmrl_jax.systems.agent.config import DEMO_CLONE, demo_config


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
    record = json.loads((RESULTS / "agent_demo" / "token_ppo.json").read_text())
    today = flat({"agent": configs.to_json(demo_config()), "imitation": configs.to_json(DEMO_CLONE)})
    recorded = flat(record["settings"])
    assert {name: today[name] for name in recorded if name in today} == {
        k: v for k, v in recorded.items() if k in today
    }
    assert len(record["seeds"]) == 5
    for run in record["seeds"]:
        rates = [cell(run[when]) for when in ("random", "before", "after", "after_greedy")]
        valid = f"{run['valid']['before']:.3f}, {run['valid']['after']:.3f}"
        row = [run["seed"], *rates, valid, round(run["total_seconds"])]
        assert f"| {' | '.join(map(str, row))} |" in PAGE
