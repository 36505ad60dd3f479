"""The world's page has the numbers of the committed results."""

from __future__ import annotations

import json

from tests.paths import ROOT


def test_experts_and_random_play_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "environments" / "housekeep.md").read_text().split())
    record = json.loads((ROOT / "experiments" / "results" / "control_worlds" / "housekeep.json").read_text())
    assert record["command"] in page
    for name in ("expert", "macro expert", "random actions"):
        found = record[f"random episodes, {name}"]
        steps = f"{found['steps']:,.0f}" + (f" ({found['fewest']} to {found['most']})" if found["solved"] else "")
        row = f"| {name}, {found['of']} random episodes | {found['solved']} | {steps} | {found['return']} |"
        assert row in page, name
    tasks = [record[f"task {number}, expert"] for number in range(1, 5)]
    steps = ", ".join(f"{task['steps']:.0f}" for task in tasks)
    assert f"| expert, tasks 1 to 4 | {sum(task['solved'] for task in tasks)} | {steps} | 25 |" in page
    assert {task["return"] for task in tasks} == {25.0}
    chance = record["random episodes, random actions"]
    assert f"pick {chance['pick_success']:.1%} of the misplaced objects" in page
    assert f"put {chance['place_success']:.1%} in a correct place" in page
    shares = (chance[name] for name in ("initial_success", "rearrange_success"))
    assert "{:.0%} of objects are in one at the start, {:.0%} at the end.".format(*shares) in page
