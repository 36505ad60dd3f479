"""The tour shows what the tour's commands reach, beside random actions, by the committed records."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.paths import ROOT


RECORDS = {
    system: json.loads((ROOT / "experiments" / "results" / "first_runs" / f"{system}.json").read_text())
    for system in ("kalm", "bkrl")
}
TOUR = (ROOT / "docs" / "tour.md").read_text()
MOST = 600
"""Seconds that the tour's commands of a system may take, by the clock of one core."""


def cell(rate: list[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*rate)


@pytest.mark.parametrize("system", RECORDS)
def test_the_record_has_the_commands_of_the_tour(system, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    experiment = importlib.import_module("first_runs")
    record = RECORDS[system]
    assert [one["command"] for one in record["commands"]] == experiment.commands_of(system, TOUR)
    assert record["seconds"] <= MOST


def test_what_the_agents_of_kalm_reach():
    success = RECORDS["kalm"]["success"]
    levels = list(success)
    for name, label in (("agent", "the agent"), ("language model", "the language model itself"), ("random",) * 2):
        label = "random actions" if name == "random" else label
        assert f"| {label} | {' | '.join(cell(success[level][name]) for level in levels)} |" in TOUR, name
    assert f"took {RECORDS['kalm']['seconds'] / 60:.0f} minutes on one core" in " ".join(TOUR.split())


def test_the_agent_is_above_chance():
    success = RECORDS["kalm"]["success"]
    for level in ("real", "rephrase", "easy"):
        assert success[level]["agent"][1] > success[level]["random"][2], level


def test_what_the_agent_of_bkrl_reaches():
    text = " ".join(TOUR.split())
    sampled, greedy, chance = (cell(RECORDS["bkrl"]["success"][way]) for way in ("sampled", "greedy", "random"))
    assert f"{sampled} with drawn actions, {greedy} with greedy ones and {chance} with random ones" in text
    runs = ROOT / "experiments" / "results" / "first_runs"
    others = [json.loads((runs / f"bkrl-{seed}.json").read_text())["success"] for seed in (1, 2)]
    for way, actions in (("sampled", "drawn actions"), ("greedy", "greedy ones")):
        assert f"{cell(others[0][way])} and {cell(others[1][way])} with {actions}" in text
