"""The page of results of agents that write has the numbers of the committed records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import get_args

import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.report.runs import flat
from llmrl_jax.systems.agent.config import DEMO_CLONE, Algorithm, demo_config


ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "systems" / "agent-results.md").read_text()
RESULTS = ROOT / "experiments" / "results"
NAMES = {"scoring": "scores three actions (GLAM's PPO)", "turn_ppo": "writes (`turn_ppo`)"}


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


@pytest.mark.parametrize("algo", get_args(Algorithm))
def test_learners_in_the_demo(algo):
    record = json.loads((RESULTS / "agent_demo" / f"{algo}.json").read_text())
    for run in record["seeds"][:3]:
        rates = [cell(run[when]) for when in ("before", "after", "after_greedy")]
        turns = [f"{run[f'turns_to_{level}']:,}" if run[f"turns_to_{level}"] else "" for level in (0.8, 0.9)]
        assert f"| `{algo}` | {run['seed']} | {' | '.join([*rates, *turns])} |" in PAGE
        assert run["after"][0] >= 0.9 and run["valid"]["after"] >= 0.99


def test_writing_beside_scoring():
    record = json.loads((RESULTS / "agent_scoring" / "scoring.json").read_text())
    for name in ("scoring", "turn_ppo"):
        for run in record[name]:
            turns = [f"{run[f'turns_to_{level}']:,}" if run[f"turns_to_{level}"] else "" for level in (0.8, 0.9)]
            row = [run["seed"], cell(run["before"]), cell(run["after"]), *turns]
            assert f"| {NAMES[name]} | {' | '.join(map(str, row))} |" in PAGE
    slowest = max(run["turns_to_0.8"] for run in record["turn_ppo"])
    assert slowest <= 1.5 * min(run["turns_to_0.8"] or math.inf for run in record["scoring"])


def test_a_pretrained_model():
    def rates(results):
        return cell([results[name] for name in ("success", "success_low", "success_high")])

    records = {path.stem: json.loads(path.read_text()) for path in (RESULTS / "agent_smollm2").glob("*.json")}
    for task in ("goto", "pickup"):
        taught, again, learned = (records[f"{task}-{part}"] for part in ("imitation", "imitation-again", "rl"))
        rows = [(f"`{task}`", "random actions", rates(learned["random"]), "", "")]
        for name, results in (("after imitation", again), ("after RL", learned)):
            cells = (rates(results[way]) for way in ("sampled", "greedy"))
            rows.append(("", name, *cells, f"{results['sampled']['valid']:.3f}"))
        for row in rows:
            assert f"| {' | '.join(row)} |".replace("  ", " ") in PAGE
        assert rates(taught["sampled"]) in PAGE
        training = learned["training"]
        assert f"{sum(training['turns']):,.0f} turns" in PAGE
        for part in (slice(None, 10), slice(10, None)):
            episodes, success = training["episodes"][part], training["success"][part]
            mean = sum(n * (rate or 0) for n, rate in zip(episodes, success, strict=True)) / sum(episodes)
            assert f"{mean:.2f} of {sum(episodes):.0f}" in PAGE
    taught, learned = ([records[f"{task}-{part}"] for task in ("goto", "pickup")] for part in ("imitation", "rl"))
    assert "{} and {} steps of 1,024 tokens".format(*(x["imitation"]["updates"] for x in taught)) in PAGE
    assert "{:.0f} and {:.0f} minutes of a core".format(*(x["imitation"]["seconds"] / 60 for x in taught)) in PAGE
    assert "3,330 turns, {:.0f} and {:.0f} minutes".format(*(x["train_seconds"] / 60 for x in learned)) in PAGE
    plain = records["as-it-is"]["as_it_is"]
    assert [(x["success"], x["valid"], x["replies"]) for x in plain.values()] == [(0, 0, 128)] * 6
    assert "128 replies" in PAGE


def test_episodes_at_once():
    record = json.loads((RESULTS / "agent_demo" / "at-once.json").read_text())
    updates = record["update_cpu_seconds"][1:]  # the first one is compiled
    assert f"{min(updates):.1f} to {max(updates):.1f} seconds of that core" in PAGE
    for part in ("after_imitation", "after_rl"):
        rows = {row["at_once"]: row for row in record[part]}
        few, every = ([x(rows[n]["utilisation"]) for x in (min, max)] for n in (16, 64))
        assert f"{few[0]:.2f} to {few[1]:.2f} in place of {every[0]:.2f} to {every[1]:.2f}" in PAGE
        few, every = (sum(rows[n]["microseconds_a_token"]) / 4 for n in (16, 64))
        assert f"{few:.0f} microseconds of one core a token in place of {every:.0f}" in PAGE
