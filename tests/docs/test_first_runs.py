"""The tour shows what the tour's commands reach, beside random actions, by the committed records."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from typing import Any

import pytest

from llmrl_jax.core.statistics import mean_rate
from tests.paths import ROOT


def record_of(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "experiments" / "results" / "first_runs" / f"{name}.json").read_text())


RECORDS = {system: record_of(system) for system in ("kalm", "bkrl")}
KALM = [record_of(name) for name in ("kalm", "kalm-1", "kalm-2")]
TOUR = (ROOT / "docs" / "tour.md").read_text()
MOST = 600
"""Seconds that the tour's commands of a system may take, by the clock of one core."""


def cell(rate: Iterable[float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*rate)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("system", RECORDS)
def test_the_record_has_the_commands_of_the_tour(system, seed, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    experiment = importlib.import_module("first_runs")
    record = record_of(f"{system}-{seed}" if seed else system)
    expected = [experiment.seeded(line, seed) for line in experiment.commands_of(system, TOUR)]
    assert [one["command"] for one in record["commands"]] == expected
    assert record["seconds"] <= MOST


def test_what_the_agents_of_kalm_reach():
    names = {"agent": "the agent", "language model": "the language model itself", "random": "random actions"}
    levels = list(KALM[0]["success"])
    for name, label in names.items():
        cells = []
        for level in levels:
            rates = [record["success"][level][name][0] for record in KALM]
            cells.append(f"{cell(mean_rate(rates))} ({', '.join(f'{rate:.2f}' for rate in rates)})")
        assert f"| {label} | {' | '.join(cells)} |" in TOUR, name
    minutes = [f"{record['seconds'] / 60:.0f}" for record in KALM]
    assert f"took {', '.join(minutes[:-1])} and {minutes[-1]} minutes on one core" in " ".join(TOUR.split())


def test_the_agents_of_kalm_are_above_chance():
    for level in ("real", "rephrase", "easy"):
        agent, chance = (mean_rate([r["success"][level][name][0] for r in KALM]) for name in ("agent", "random"))
        assert agent.low > chance.high, level


def test_what_the_agent_of_bkrl_reaches():
    text = " ".join(TOUR.split())
    sampled, greedy, chance = (cell(RECORDS["bkrl"]["success"][way]) for way in ("sampled", "greedy", "random"))
    assert f"{sampled} with drawn actions, {greedy} with greedy ones and {chance} with random ones" in text
    others = [record_of(f"bkrl-{seed}")["success"] for seed in (1, 2)]
    for way, actions in (("sampled", "drawn actions"), ("greedy", "greedy ones")):
        assert f"{cell(others[0][way])} and {cell(others[1][way])} with {actions}" in text
