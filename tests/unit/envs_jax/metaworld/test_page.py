"""The page of Meta-World has the numbers of the committed run of experts and random actions."""

from __future__ import annotations

import json

from tests.paths import ROOT


def test_experts_are_those_of_the_page():
    page = (ROOT / "docs" / "environments" / "metaworld.md").read_text()
    found = json.loads((ROOT / "experiments" / "results" / "control_worlds" / "metaworld.json").read_text())
    assert found["command"] in page
    tasks = found["tasks"]
    for name in sorted({key.partition(",")[0] for key in tasks}):
        cells = [
            f"{one['solved']} | {one['within 100 steps']} | {one['steps']:.0f}"
            for one in (tasks[f"{name}, stock"], tasks[f"{name}, proxy"])
        ]
        assert f"| `{name}` | {' | '.join(cells)} |" in page, name
    for level in ("real", "easy", "hard"):
        expert, chance = (found["levels"][f"{level}, {who}"] for who in ("expert", "random actions"))
        share = f"{100 * expert['solved'] / expert['of']:g}% of {expert['of']}"
        row = next(line for line in page.splitlines() if line.startswith(f"| `{level}`") and " of 200" in line)
        assert share in row and f"| {expert['steps']:.0f} | {chance['solved']} of {chance['of']} |" in row
    labels = found["labels"].values()
    steps, otherwise = (sum(x[key] for x in labels) for key in ("steps", "successes judged otherwise"))
    assert (
        f"On {steps:,} steps of experts and of random actions, {otherwise} successes are judged otherwise"
        in " ".join(page.split())
    )
