"""The page of ELLM's results has the numbers of the committed records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmrl_jax.core.statistics import estimate_of, mean_interval, mean_rate
from tests.paths import ROOT


PAGE = (ROOT / "docs" / "systems" / "ellm-results.md").read_text()
RESULTS = ROOT / "experiments" / "results"
HOUSEKEEP = ("place_success", "pick_success", "rearrange_success")


def record(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def interval(values: list[float], rate: bool = False) -> str:
    """A mean over seeds with Student's 95% interval."""
    return f"{(mean_rate if rate else mean_interval)(values):.2f}"


def numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def values_of(runs: list[dict[str, Any]], name: str) -> list[float]:
    return [run["eval"]["agent"][name] for run in runs]


def test_agents_in_crafter():
    agents = record("ellm_crafter/results")["agents"]
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for name, runs in agents.items():
        values = values_of(runs, "achievements")
        row = next(line for line in rows if line.startswith(f"| `{name}`"))
        assert interval(values) in row and row.endswith(f"| {numbers(values)} |"), name


CHANGES = {
    "changes": {
        "embedded": "`embedded`",
        "plain": "`plain`: the same without pointing, with uniform replay and 3 steps",
    },
    "slow": {"plain-slow": "`plain-slow`: that, epsilon falling over 400,000 steps"},
    "adviser": {"plain-adviser": "`plain-adviser`: `plain`, goals from the scripted adviser via the chat interface"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_the_agent_in_crafter(name):
    agents = record(f"ellm_crafter/{name}")["agents"]
    assert list(agents) == list(CHANGES[name])
    for agent, runs in agents.items():
        values = values_of(runs, "achievements")
        steps = f"{runs[0]['curve'][-1][0]:,}"
        row = f"| {CHANGES[name][agent]} | {steps} | {interval(values)} | {numbers(values)} |"
        assert len(runs) == 3 and row in PAGE, agent


ORACLE = "`housekeep-macro`: the oracle's goals"
AGENTS = {
    "macro": {
        "oracle": ORACLE,
        "chat": ORACLE,
        "novelty": "all placements are goals",
        "uniform": "random placements are goals",
        "extrinsic": "the world's own reward",
        "rnd": "`rnd`",
        "noveld": "`noveld`",
        "apt": "`apt`",
    },
    "low": {
        "oracle": "`housekeep`: the oracle's goals, which the agent sees",
        "extrinsic": "the world's own reward",
    },
}


@pytest.mark.parametrize(("tier", "chance"), [("macro", "macro actions: random"), ("low", "low-level actions: random")])
def test_agents_in_housekeep(tier, chance):
    agents = record(f"ellm_housekeep/{tier}")["agents"]
    assert list(agents) == list(AGENTS[tier])
    for name, runs in agents.items():
        several = [values_of(runs, measure) for measure in HOUSEKEEP]
        cells = [f"{interval(values, rate=True)} ({numbers(values)})" for values in several]
        assert len(runs) == 3 and f"| {AGENTS[tier][name]} | {' | '.join(cells)} |" in PAGE, name
    random_play = next(iter(agents.values()))[0]["eval"]["random"]
    assert f"| {chance} | {' | '.join(f'{estimate_of(random_play, name):.2f}' for name in HOUSEKEEP)} |" in PAGE


@pytest.mark.parametrize(("name", "length"), [("results", ""), ("rnd-1m", ", 1,000,064 steps")])
def test_novelty_of_agents(name, length):
    for agent, runs in record(f"ellm_novelty/{name}")["agents"].items():
        assert len(runs) == 3
        mine, chance = ([run[who] for run in runs] for who in ("agent", "random"))
        cells = [numbers([x["novelty_per_episode"] for x in who]) for who in (mine, chance)]
        cells.append(", ".join(f"{x['cells']:.1f}" for x in mine))
        cells.append(", ".join(f"{x['steps_asleep']:.1%}" for x in mine))
        woke = [x["unlocked"].get("wake_up", 0) for x in mine]
        cells += [numbers(woke), numbers([x["achievements"] - y for x, y in zip(mine, woke, strict=True)])]
        assert f"| `{agent}`{length} | {' | '.join(cells)} |" in PAGE, agent


SUGGESTERS = {
    "scripted": "`scripted`, rules that read the prompt",
    "plain": "SmolLM2, published prompt",
    "fewshot": "SmolLM2, 8 of the oracle's answers in the prompt",
    "tuned": "SmolLM2, fine-tuned: ",
}


@pytest.mark.parametrize("name", SUGGESTERS)
def test_suggesters(name):
    runs = [record(f"ellm_suggesters/results-{seed}")["table"][name] for seed in range(3)]
    assert {run["states"] for run in runs} == {64}
    goals = [int(run["suggested"]) for run in runs]
    shares = [
        sum(run["suggested"] * run[f"suggested/{kind}"] for run in runs) / sum(goals)
        for kind in ("good", "poorly_timed", "bad", "nonsensical")
    ]
    oracle = [
        int(run["suggested"]) for run in (record(f"ellm_suggesters/results-{i}")["table"]["scripted"] for i in range(3))
    ]
    recall = [100 * run["recall"] for run in runs]
    total = sum(share * count for share, count in zip(recall, oracle, strict=True)) / sum(oracle)
    unread = [int(run["unreadable"]) for run in runs]
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {SUGGESTERS[name]}"))
    assert f"| {sum(goals):,} ({', '.join(map(str, goals))}) |" in row
    digits = 0 if name == "scripted" else 1
    assert " | ".join(f"{share:.{digits}%}" for share in shares) in row
    assert f"| {total:.{digits}f}% ({', '.join(f'{x:.{digits}f}' for x in recall)}) |" in row
    assert f"| {sum(unread)} ({', '.join(map(str, unread))}) |" in row


@pytest.mark.parametrize("name", ["oracle", "tuned", "fewshot", "plain"])
def test_agents_of_suggesters(name):
    agents = [record(f"ellm_suggesters/results-{seed}")["agents"][name] for seed in range(3)]
    assert {agent["update"] for agent in agents} == {782}
    values = [agent["agent"]["achievements"] for agent in agents]
    assert f"{interval(values)} ({numbers(values)})" in PAGE.replace("**", "")
    assert f"{interval([agent['random']['achievements'] for agent in agents])} of random play" in PAGE


def test_agents_of_the_plain_model():
    counts = [record("ellm_suggesters/replies")["seeds"][str(seed)]["plain"] for seed in range(3)]
    states = "{:,}, {:,} and {:,}".format(*(of_seed["states"] for of_seed in counts))
    lists = "{}, {} and {}".format(*(of_seed["states"] - of_seed["unreadable"] for of_seed in counts))
    assert f"Of the {states} replies that they asked for\n{lists} were lists" in PAGE
    agents = [record(f"ellm_suggesters/results-{seed}")["agents"]["plain"]["agent"] for seed in range(3)]
    saplings, plants = ([agent[f"unlocked/{name}"] for agent in agents] for name in ("collect_sapling", "place_plant"))
    assert f"a sapling in {saplings[1]:.0%} of its episodes and places a plant in {plants[1]:.0%}" in PAGE
    assert max(saplings[0], saplings[2]) == 0.02 and plants[0] == plants[2] == 0
