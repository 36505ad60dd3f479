"""The page of KALM has the numbers of the committed results."""

from __future__ import annotations

import json
from pathlib import Path

from llmrl_jax.run.report.statistics import wilson
from llmrl_jax.systems.kalm.worlds import LEVELS


ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "experiments" / "results" / "kalm_clevr"
FOUND = json.loads((RESULTS / "successes.json").read_text())
TESTS = 300


def cell(rates: list[float], tests: int = TESTS) -> str:
    """Wilson's interval over the episodes of all seeds, and every seed's rate."""
    rate = wilson(sum(round(tests * x) for x in rates), tests * len(rates))
    own = f" ({', '.join(f'{x:.2f}' for x in rates)})" if len(rates) > 1 else ""
    return f"{rate.mean:.2f} [{rate.low:.2f}, {rate.high:.2f}]{own}"


def test_agents_of_successes_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm.md").read_text()
    section = page[page.index("### Only what succeeds") :]
    names = {"the language model itself": "language model as policy", "`bc`, recorded episodes": "bc"}
    for level in ("rephrase", "easy"):
        names[f"`bc`, and imagined `{level}`"] = f"bc, imagined {level}"
        names[f"`bc`, and imagined `{level}` that succeeds"] = f"bc, imagined {level}, successes"
    for said, name in names.items():
        rates = [FOUND["success"][name][level] for level in LEVELS]
        cells = [cell(rate.get("seeds", [rate["mean"]])) for rate in rates]
        assert f"| {said} | {' | '.join(cells)} |" in section
    for level in ("rephrase", "easy"):
        assert f"{FOUND['imagined'][level]['success']:.0%} of" in section


def test_offline_agents_in_clevr_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm.md").read_text()
    section = page[page.index("### Offline RL in place of cloning") :]
    found = json.loads((RESULTS / "offline.json").read_text())
    assert " ".join(found["command"].split()) in " ".join(section.replace("\\\n", "").split())
    assert len(found["success"]) == 15
    for name, rates in found["success"].items():
        agent, _, rest = name.partition(", imagined ")
        said = f"`{agent}`, and imagined `{rest.partition(',')[0]}`" if rest else f"`{agent}`, recorded episodes"
        said += " that succeeds" if rest.endswith("successes") else ""
        cells = [cell(rates[level].get("seeds", [rates[level]["mean"]])) for level in LEVELS]
        assert f"| {said} | {' | '.join(cells)} |" in section, name


def test_grounded_models_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm.md").read_text()
    runs = {one["name"]: one for one in map(json.loads, (RESULTS / "grounded-6400.jsonl").read_text().splitlines())}
    for name in ("grounded-smollm2-135m", "grounded-embedded"):
        made, test = runs[name]["grounded"], runs[name]["test"]
        assert test["episodes"] == TESTS
        cells = [f"{made['held_out/action']:.2f}", f"{made['held_out/state']:.2f}"]
        cells += [cell([test[level]]) for level in LEVELS]
        assert f" | {' | '.join(cells)} |" in page and f"{made['updates']:,} updates" in page
    before, after = (
        next(x for x in runs[name]["curve"] if x["update"] == 120)
        for name in ("grounded-before", "grounded-smollm2-135m")
    )
    assert f"was {before['state']:.2f} before (mean of 20 updates) and is {after['state']:.2f}" in page
    assert f"{before['action']:.2f} and {after['action']:.2f}." in " ".join(page.split())


def test_the_learned_collector_is_that_of_the_page():
    page = " ".join((ROOT / "docs" / "environments" / "clevr.md").read_text().split())
    found = json.loads((RESULTS / "collector.json").read_text())
    agent, (plain, noisy) = found["agent"], found["collected"]
    assert agent["sampled/success"] == 1 and f"its most likely ones {agent['greedy/success']:.0%}" in page
    assert f"in {agent['sampled/episode_length']:.1f} and {agent['greedy/episode_length']:.1f} steps" in page
    assert noisy["noise"] == 0.2 and f"{noisy['mean']:.1%} succeed, in {noisy['steps'] / noisy['episodes']:.1f}" in page
    assert f"and {plain['mean']:.1%} and {plain['steps'] / plain['episodes']:.1f} without noise" in page


def test_the_three_language_models_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm.md").read_text()
    page = page[page.index("### Three language models by the same commands") :]
    models = json.loads((RESULTS / "three-models.json").read_text())
    said = {
        "SmolLM2-135M": "smollm2-135m",
        "its shape, random weights": "smollm2-135m-random",
        "`embedded`": "embedded",
    }
    assert list(models) == list(said.values())
    acts = {"the language model itself": "language model as policy"}
    for level in ("rephrase", "easy", "hard"):
        if level != "hard":
            acts[f"`bc`, and imagined `{level}`"] = f"bc, imagined {level}"
        acts[f"`bc`, and imagined `{level}` that succeeds"] = f"bc, imagined {level}, successes"

    def cells(found):
        return " | ".join(cell(found[level].get("seeds", [found[level]["mean"]])) for level in LEVELS)

    for name, key in said.items():
        made, imagined = models[key]["grounded"], models[key]["imagined"]
        found = [f"{made['updates']:,}", f"{made['held_out/action']:.2f}", f"{made['held_out/state']:.2f}"]
        found += [f"{imagined[level]['success']:.0%}" for level in ("rephrase", "easy", "hard")]
        assert f"| {name} | {' | '.join(found)} |" in page
        for who, row in acts.items():
            assert row == "language model as policy" or len(models[key]["success"][row]["real"]["seeds"]) == 3
            assert f"| {who} | {name} | {cells(models[key]['success'][row])} |" in page
    for who, row in (("`bc`, recorded episodes", "bc"), ("random actions", "random actions")):
        assert f"| {who} | | {cells(models['smollm2-135m']['success'][row])} |" in page


def test_the_trial_with_rollouts_alone_is_that_of_the_page():
    page = " ".join((ROOT / "docs" / "systems" / "kalm.md").read_text().split())
    models = json.loads((RESULTS / "three-models-rollouts.json").read_text())

    def acts(level, row="language model as policy"):
        return [f"{model['success'][row][level]['mean']:.2f}" for model in models.values()]

    for level in ("rephrase", "easy"):
        rates = [f"{model['imagined'][level]['success']:.0%}" for model in models.values()]
        assert "magined `{}` {}in {}, {} and {}".format(level, "succeeded " * (level == "rephrase"), *rates) in page
    own, agents = [], []
    for level in ("rephrase", "easy"):
        own.append("at {}, {} and {} on `{}`".format(*acts(level), level))
        agents.append("{}, {} and {} on `{}`".format(*acts(level, f"bc, imagined {level}, successes"), level))
    assert "the models acted " + " and ".join(own) in page
    assert "`bc` reached " + " and ".join(agents) + " with what succeeds" in page
    found = models["smollm2-135m"]["success"]["decision transformer"]
    real, rephrase, easy, hard = (f"{found[level]['mean']:.2f}" for level in LEVELS)
    assert f"acts at {real}, {rephrase}, {easy} and {hard}." in page


def test_agents_of_metaworld_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm.md").read_text()
    section = page[page.index("## Results: Meta-World") :]
    found = json.loads((ROOT / "experiments" / "results" / "kalm_metaworld" / "results-embedded.json").read_text())
    named = {
        "language model as policy": "the language model itself",
        "decision transformer": "a decision transformer, recorded episodes",
    }
    for name, rates in found["success"].items():
        agent, _, made = name.partition(", imagined ")
        level, _, kept = made.partition(", ")
        said = named.get(name, name)
        if agent in ("bc", "td3_bc", "awac", "cql", "iql", "combo"):
            said = f"`{agent}`, " + (f"and imagined `{level}`" if made else "recorded episodes")
            said += " that succeeds" if kept else ""
        cells = [cell(rates[level].get("seeds", [rates[level]["mean"]]), 200) for level in LEVELS]
        assert f"| {said} | {' | '.join(cells)} |" in section, name
    for command in found["commands"]:
        assert command in section
    shares = [f"{found['imagined'][level]['success']:.0%}" for level in ("rephrase", "easy", "hard")]
    assert f"{shares[0]}, {shares[1]} and {shares[2]} of the imagined episodes" in " ".join(section.split())
