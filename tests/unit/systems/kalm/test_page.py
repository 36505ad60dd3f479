"""The page of KALM's results has the numbers of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmrl_jax.core.statistics import estimate_of, mean_interval, mean_rate, wilson
from llmrl_jax.systems.kalm.worlds import LEVELS


ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "experiments" / "results" / "kalm_clevr"
FOUND = json.loads((RESULTS / "successes.json").read_text())
TESTS = 300


def cell(rates: list[float], tests: int = TESTS) -> str:
    """A mean over seeds with Student's interval, and every seed's rate; of one seed Wilson's interval."""
    if len(rates) == 1:
        return f"{wilson(round(tests * rates[0]), tests):.2f}"
    return f"{mean_rate(rates):.2f} ({', '.join(f'{x:.2f}' for x in rates)})"


def change(success: dict, agent: str, base: str, level: str) -> str:
    """The mean difference of two agents by seed, with Student's interval; its size where both ends have one sign."""
    pairs = zip(success[agent][level]["seeds"], success[base][level]["seeds"], strict=True)
    difference = mean_interval([x - y for x, y in pairs])
    if difference.high < 0:
        difference = difference._replace(mean=-difference.mean, low=-difference.high, high=-difference.low)
    return f"{difference:.2f}"


def section_of(title: str) -> str:
    """The text of a section of the page, in one line."""
    page = (ROOT / "docs" / "systems" / "kalm-results.md").read_text()
    body = page[page.index(title) + len(title) :]
    return " ".join(re.split(r"\n##", body)[0].split())


def test_agents_of_all_imagined_episodes_are_those_of_the_page():
    section = section_of("## Results: CLEVR-Robot with the small model")
    found = json.loads((RESULTS / "results-embedded.json").read_text())["success"]
    names = {"language model as policy": "the language model itself", "bc": "`bc`, recorded episodes"}
    names |= {"random actions": "random actions", "decision transformer": "a decision transformer, recorded episodes"}
    names |= {f"bc, imagined {level}": f"`bc`, and imagined `{level}`" for level in LEVELS[1:]}
    assert set(names) == set(found)
    for name, said in names.items():
        cells = [cell(found[name][level].get("seeds", [found[name][level]["mean"]])) for level in LEVELS]
        assert f"| {said} | {' | '.join(cells)} |" in section, name


@pytest.mark.parametrize(
    "title, file, changes",
    [
        (
            "## Results: CLEVR-Robot with the small model",
            "kalm_clevr/results-embedded.json",
            [
                ("bc, imagined rephrase", "rephrase"),
                ("bc, imagined easy", "easy"),
                ("bc, imagined rephrase", "easy"),
                ("bc, imagined hard", "hard"),
            ],
        ),
        (
            "### Only what succeeds",
            "kalm_clevr/successes.json",
            [
                ("bc, imagined rephrase, successes", "rephrase"),
                ("bc, imagined rephrase", "rephrase"),
                ("bc, imagined easy, successes", "easy"),
                ("bc, imagined easy", "easy"),
                ("bc, imagined easy, successes", "rephrase"),
                ("bc, imagined rephrase, successes", "easy"),
            ],
        ),
        (
            "## Results: Meta-World",
            "kalm_metaworld/results-embedded.json",
            [
                ("awac, imagined rephrase", "rephrase"),
                ("bc, imagined rephrase", "rephrase"),
                ("td3_bc, imagined rephrase", "rephrase"),
                ("bc, imagined easy, successes", "easy"),
                ("awac, imagined hard", "hard"),
                ("bc, imagined hard", "hard"),
                ("td3_bc, imagined hard", "hard"),
                ("td3_bc, imagined rephrase", "real"),
                ("td3_bc, imagined hard", "real"),
                ("td3_bc, imagined hard", "rephrase"),
                ("awac, imagined easy", "rephrase"),
            ],
        ),
        (
            "### Another grounded model",
            "kalm_metaworld/third-model.json",
            [
                ("iql, imagined rephrase", "rephrase"),
                ("iql, imagined easy", "easy"),
                ("bc, imagined rephrase", "rephrase"),
                ("bc, imagined easy", "real"),
                ("bc, imagined easy, successes", "easy"),
            ],
        ),
    ],
)
def test_changes_by_imagined_episodes_are_those_of_the_page(title, file, changes):
    section = section_of(title)
    success = json.loads((ROOT / "experiments" / "results" / file).read_text())["success"]
    for agent, level in changes:
        assert change(success, agent, agent.partition(",")[0], level) in section, (agent, level)


def test_changes_by_three_language_models_are_those_of_the_page():
    section = section_of("### Three language models by the same commands")
    models = json.loads((RESULTS / "three-models.json").read_text())
    base = models["smollm2-135m"]["success"]["bc"]
    for kept in (", successes", ""):
        for model in models.values():
            name = f"bc, imagined rephrase{kept}"
            assert change({name: model["success"][name], "bc": base}, name, "bc", "rephrase") in section
    hard = "bc, imagined hard, successes"
    assert change({hard: models["smollm2-135m"]["success"][hard], "bc": base}, hard, "bc", "easy") in section


def test_agents_of_successes_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm-results.md").read_text()
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
    page = (ROOT / "docs" / "systems" / "kalm-results.md").read_text()
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
    page = (ROOT / "docs" / "systems" / "kalm-results.md").read_text()
    runs = {one["name"]: one for one in map(json.loads, (RESULTS / "grounded-6400.jsonl").read_text().splitlines())}
    for name in ("grounded-smollm2-135m", "grounded-embedded"):
        several = [runs[f"{name}{suffix}"] for suffix in ("", "-1", "-2")]
        assert {run["test"]["episodes"] for run in several} == {TESTS}
        cells = []
        for error in ("held_out/action", "held_out/state"):
            errors = [run["grounded"][error] for run in several]
            cells.append(f"{sum(errors) / 3:.2f} ({', '.join(f'{x:.2f}' for x in errors)})")
        cells += [cell([run["test"][level] for run in several]) for level in LEVELS]
        assert f" | {' | '.join(cells)} |" in page and f"{several[0]['grounded']['updates']:,} updates" in page
    before, after = (
        next(x for x in runs[name]["curve"] if x["update"] == 120)
        for name in ("grounded-before", "grounded-smollm2-135m")
    )
    assert f"was {before['state']:.2f} before (mean of 20 updates) and is {after['state']:.2f}" in page
    assert f"{before['action']:.2f} and {after['action']:.2f}." in " ".join(page.split())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_learned_collector_is_that_of_the_page(seed):
    page = (ROOT / "docs" / "environments" / "clevr.md").read_text()
    results = json.loads((RESULTS / f"collector{f'-{seed}' if seed else ''}.json").read_text())
    agent, (plain, noisy) = results["agent"], results["collected"]
    assert (plain["noise"], noisy["noise"]) == (0, 0.2)
    assert results["command"].endswith(f" --seed {seed}" if seed else " --steps 1000000")
    row = [str(seed)]
    for way in ("sampled", "greedy"):
        row.append(str(estimate_of(agent, f"{way}/success")))
        row.append(f"{agent[f'{way}/episode_length']:.1f}")
    for part in (plain, noisy):
        row.append(f"{part['mean']:.3f} [{part['low']:.3f}, {part['high']:.3f}]")
        row.append(f"{part['steps'] / part['episodes']:.1f}")
    assert f"| {' | '.join(row)} |" in page


def test_the_three_language_models_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "kalm-results.md").read_text()
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
    page = " ".join((ROOT / "docs" / "systems" / "kalm-results.md").read_text().split())
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


@pytest.mark.parametrize(
    ("file", "title"),
    [("results-embedded", "## Results: Meta-World"), ("third-model", "### Another grounded model")],
)
def test_agents_of_metaworld_are_those_of_the_page(file, title):
    section = section_of(title)
    record = json.loads((ROOT / "experiments" / "results" / "kalm_metaworld" / f"{file}.json").read_text())
    named = {
        "language model as policy": "the language model itself",
        "decision transformer": "a decision transformer, recorded episodes",
    }
    for name, rates in record["success"].items():
        agent, _, made = name.partition(", imagined ")
        level, _, kept = made.partition(", ")
        said = named.get(name, name)
        if agent in ("bc", "td3_bc", "awac", "cql", "iql", "combo"):
            said = f"`{agent}`, " + (f"and imagined `{level}`" if made else "recorded episodes")
            said += " that succeeds" if kept else ""
        cells = [cell(rates[level].get("seeds", [rates[level]["mean"]]), 200) for level in LEVELS]
        assert f"| {said} | {' | '.join(cells)} |" in section, name
    for command in record["commands"]:
        assert command in section
    shares = [f"{record['imagined'][level]['success']:.0%}" for level in ("rephrase", "easy", "hard")]
    assert all(share in section for share in shares)


def test_changes_of_cql_are_those_of_the_page():
    section = section_of("### Another grounded model")
    success = json.loads((ROOT / "experiments" / "results" / "kalm_metaworld" / "third-model.json").read_text())[
        "success"
    ]
    for made, level in (("rephrase", "rephrase"), ("easy", "real")):
        assert change(success, f"cql, imagined {made}", "cql", level) in section
    assert not any(success[name]["hard"]["mean"] for name in success if name.startswith("cql"))


def test_the_control_with_random_actions_is_that_of_the_page():
    sections = {
        "72,400 episodes, 200,000 steps": section_of("### Only what succeeds"),
        "2,400 episodes, 50,000 steps": section_of("### Three language models by the same commands"),
    }
    record = json.loads((RESULTS / "easy-control.json").read_text())
    assert set(record) == set(sections)
    for name, found in record.items():
        counts, section = found["imagined"]["easy"], sections[name]
        rates = found["success"]["bc, imagined easy by random actions, successes"]
        cells = " | ".join(cell(rates[level]["seeds"]) for level in LEVELS)
        agents = "`bc`, and random actions at `easy` that succeed |" + " |" * name.startswith("2,400")
        assert f"| {agents} {cells} |" in section and cell(rates["easy"]["seeds"]).partition(" (")[0] in section
        assert f"{counts['episodes']:,} " in section and f"{counts['successes']:,} " in section
