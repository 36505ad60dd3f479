"""The intervals over seeds of docs/systems/glam-results.md are those of the committed logs."""

from __future__ import annotations

import json

import pytest

from experiments import figures
from llmrl_jax.core import statistics as stats
from llmrl_jax.report import compare
from llmrl_jax.systems.glam.results import estimate
from tests.paths import ROOT


RESULTS = ROOT / "experiments" / "results"


def success(folders, when):
    return [json.loads((folder / "summary.json").read_text())[when]["success"] for folder in folders]


def test_gains_over_seeds():
    page = (ROOT / "docs" / "systems" / "glam-results.md").read_text()
    goto = [RESULTS / "goto_local" / name for name in (".", "llm-1", "llm-2")]
    mixed = [RESULTS / "mixed" / f"llm-{seed}" for seed in range(3)]
    for folders, said in ((goto, "PPO gains {}"), (mixed, "Student's 95% interval of the differences [{}")):
        gains = [after - before for before, after in zip(success(folders, "before"), success(folders, "after"))]
        interval = str(stats.mean_interval(gains))
        assert said.format(interval if folders is goto else interval.partition("[")[2]) in page
    assert f"over seeds [{str(stats.mean_rate(success(mixed, 'after'))).partition('[')[2]}" in page


def test_the_figures_have_three_seeds_of_every_agent():
    for name in ("goto_local", "mixed"):
        groups = figures.runs_of(RESULTS / name)
        assert [[run.settings[compare.SEED] for run in group] for group in groups] == [[0, 1, 2]] * 3
        assert [len(group) for group in compare.by_settings([run for group in groups for run in group])] == [3] * 3
        assert [group[0].settings["glam.agent"] for group in groups] == list(figures.AGENTS.values())
    groups = figures.tests_of(RESULTS / "mixed" / "tests")
    assert [len(group) for group in groups] == [3, 3, 3, 1]
    rates = [group[0].records["go_to"]["sampled"]["success"] for group in groups]
    assert estimate(groups[-1], "go_to", "sampled").mean == rates[-1] and len(set(rates)) == 4


def test_the_mixed_tasks_prior_and_lessons_are_those_of_the_page():
    page = (ROOT / "docs" / "systems" / "glam-results.md").read_text()
    lines = [json.loads(x) for x in (RESULTS / "mixed" / "goals" / "llm-0" / "metrics.jsonl").read_text().splitlines()]
    before, *later = [x for x in lines if x["kind"] == "eval"]
    interval = "{success:.3f} [{success_low:.3f}, {success_high:.3f}]"
    assert f"**{interval.format(**before)}** of 1,000 held-out episodes" in page
    assert " ".join(interval.format(**later[0]).split()) in " ".join(page.split())
    after = json.loads((RESULTS / "mixed" / "goals" / "entropy-0" / "eval-25.json").read_text())
    assert f"| {interval.format(**after['sampled'])} | {after['sampled']['episode_return']:.3f} |" in page
    assert f"| {interval.format(**after['greedy'])} |" in page
    whole = json.loads((RESULTS / "mixed" / "goals" / "entropy-0" / "summary.json").read_text())
    sampled, greedy = whole["after"], whole["after_greedy"]
    row = f"| **{interval.format(**sampled)}** | {sampled['episode_return']:.3f} | {interval.format(**greedy)} |"
    assert row in page and f"{whole['steps']:,} steps, the paper's budget" in page
    shorter = f"({whole['before']['episode_length']:.1f} to {sampled['episode_length']:.1f} steps"
    assert shorter in " ".join(page.split())
    for kind in ("go_to", "pick_up", "put_next", "open"):
        was, now = (part[f"{kind}/success"] for part in (whole["before"], sampled))
        assert f"`{kind}` {was:.2f} to {now:.2f}" in page
    experts = json.loads((RESULTS / "mixed" / "expert.json").read_text())["rows"]
    assert f"{experts[1]['success']} of {experts[1]['episodes']:,} episodes" in page
    lessons = [json.loads(x) for x in (RESULTS / "mixed" / "goals" / "lessons.jsonl").read_text().splitlines()]
    for name in ("associations", "goals", "reading", "imitation"):
        last = [x for x in lessons if x["lesson"] == name][-1]
        rows = [line for line in page.splitlines() if line.startswith(f"| {name}")]
        assert any(f"| {last['update']:,} of " in row and f"| {last['seconds']:,.0f} |" in row for row in rows)


def test_smollm2_after_more_imitation_and_ppo_is_that_of_the_page():
    page = " ".join((ROOT / "docs" / "systems" / "glam-results.md").read_text().replace("*", "").split())
    rows = json.loads((RESULTS / "glam_smollm2" / "mixed.json").read_text())["rows"]
    inits = ("pretrained", "embeddings", "random")
    words = {
        "no_modification_test": "",
        "other_name_same_categories": "other nouns",
        "no_meaning_words": "invented words",
    }

    def cells(found):
        return " | ".join(f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high, *_ in found)

    for steps in (500, 5000):
        (pairs,) = {rows[f"{init}, {steps} steps of imitation, seed 0"]["pairs"] for init in inits}
        asked = [rows[f"{init}, {steps} steps of imitation, 256 steps asked, seed 0"] for init in inits]
        for test, said in words.items() if steps == 5000 else [("no_modification_test", "")]:
            name = f"the same, {said}" if said else f"after {pairs:,} steps of imitation"
            assert f"| {name} | {cells(one[test]['agrees'] for one in asked)} |" in page
    actions = cells([rows["pretrained, 5000 steps of imitation, 256 steps asked, seed 0"]["synonym_actions"]["agrees"]])
    assert f"other names of the actions | {actions} | not asked | not asked |" in page
    ends = [rows[f"{init}, PPO, seed 0"] for init in inits]
    for way, name in (
        ("sampled", "sampled actions, 128 episodes (95% intervals)"),
        ("greedy", "greedy actions, 128 episodes"),
    ):
        found = [[end[way][x] for x in ("success", "success_low", "success_high")] for end in ends]
        assert f"| {name} | {cells(found)} |" in page and all(end[way]["episodes"] == 128 for end in ends)
    tests = [rows.get(f"{init}, tests, seed 0", [{"tests": {}}])[0]["tests"] for init in inits]
    for test, said in words.items():
        name = f"the same, {said}" if said else "sampled, 64 episodes (99% intervals)"
        found = [cells([one[test]["sampled"]]) if test in one else "not run" for one in tests]
        assert f"| {name} | {' | '.join(found)} |" in page
    rates = []
    for init in inits:
        lines = [json.loads(x) for x in (RESULTS / "glam_smollm2" / f"ppo-{init}-0.jsonl").read_text().splitlines()]
        train = [x for x in lines if x["kind"] == "train"]
        assert len(train) == 24
        for part in (train[:6], train[-6:]):
            rates.append(sum(x["success"] * x["episodes"] for x in part) / sum(x["episodes"] for x in part))
    first = "is {:.3f} in the first six updates and {:.3f} in the last six for SmolLM2".format(*rates)
    assert (
        first + ", {:.3f} and {:.3f} for pretrained embeddings, {:.3f} and {:.3f} for random weights".format(*rates[2:])
        in page
    )


def test_the_mixed_tasks_three_seeds_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "systems" / "glam-results.md").read_text().split())
    runs = [RESULTS / "mixed" / "goals" / f"entropy-{seed}" for seed in range(3)]
    gains = [after - before for before, after in zip(success(runs, "before"), success(runs, "after"))]
    assert f"by {stats.mean_interval(gains)} in the mean (Student's 95% interval)" in page
    assert f"to {stats.mean_rate(success(runs, 'after'))}**" in page
    interval = "{success:.3f} [{success_low:.3f}, {success_high:.3f}]"
    for seed in (1, 2):
        found = json.loads((runs[seed] / "summary.json").read_text())
        before, after, greedy = (found[when] for when in ("before", "after", "after_greedy"))
        name = f"seed {seed} at {found['steps']:,} steps (its prior's episodes: {interval.format(**before)})"
        rates = f"**{interval.format(**after)}** | {after['episode_return']:.3f} | {interval.format(**greedy)}"
        assert f"| {name} | {rates} |" in page and before["episodes"] == after["episodes"] == 1000


def test_the_mixed_tasks_tests_are_those_of_the_page():
    page = " ".join((ROOT / "docs" / "systems" / "glam-results.md").read_text().split())
    folder = RESULTS / "mixed" / "goals" / "tests"
    names = ("prior", "entropy-0", "entropy-1", "entropy-2")
    prior, *seeds = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    for test in (
        "no_modification_test",
        "other_name_same_categories",
        "no_meaning_words",
        "test_tasks",
        "composition",
        "go_to",
    ):
        cells = []
        for found in (prior, *seeds):
            rate = found[test]["sampled"]
            interval = "{success:.3f} [{success_low:.3f}, {success_high:.3f}]".format(**rate)
            cells.append(f"{interval} ({found[test]['greedy']['success']:.3f})")
            assert rate["episodes"] == 1000
        assert f"(`{test}`) | {' | '.join(cells)} |" in page
        gains = [one[test]["sampled"]["success"] - prior[test]["sampled"]["success"] for one in seeds]
        assert test == "go_to" or f"({stats.mean_interval(gains)}" in page


@pytest.mark.parametrize(
    "file, seed, small, big",
    [("gotolocal-1", 1, 500, 5000), ("mixed_task", 0, 2000, 20_000), ("mixed_task", 1, 2000, 20_000)],
)
def test_the_three_models_on_a_gpu_are_those_of_the_page(file, seed, small, big):
    page = (ROOT / "docs" / "systems" / "glam-results.md").read_text()
    rows = json.loads((RESULTS / "glam_smollm2" / f"{file}.json").read_text())["rows"]
    start = [i for i in range(len(page)) if page.startswith(f"| seed {seed} | SmolLM2-135M |", i)]
    (table,) = {
        part
        for part in (page[i:].partition("\n\n")[0] for i in start)
        if f"{rows_of(rows, small, seed)} steps of" in part
    }
    words = {
        "no_modification_test": "",
        "other_name_same_categories": ", other nouns",
        "no_meaning_words": ", invented words",
    }
    checked = 0

    def check(name, key, *way):
        nonlocal checked
        found = []
        for init in ("pretrained", "embeddings", "random"):
            values = rows.get(f"{init}, {key}, seed {seed}")
            for part in way if values else ():
                values = values[part]
            if isinstance(values, dict):
                values = [values[part] for part in ("success", "success_low", "success_high")]
            found.append("{:.3f} [{:.3f}, {:.3f}]".format(*values) if values else "not run")
        if set(found) != {"not run"}:
            assert f"| {name} | {' | '.join(found)} |" in table
            checked += 1

    check("agrees with the bot, not trained", "256 steps asked", "no_modification_test", "agrees")
    for pairs in (small, big):
        key = f"{pairs} steps of imitation, 256 steps asked"
        for test, said in words.items() if pairs == big else [("no_modification_test", "")]:
            name = f"agrees then{said}" if said else f"agrees after {rows_of(rows, pairs, seed)} steps of imitation"
            check(name, key, test, "agrees")
    learned = {
        f"{rows_of(rows, n, seed)} steps of imitation": f"{n} steps of imitation, 128 episodes" for n in (small, big)
    }
    for way in ("sampled", "greedy"):
        for name, key in (learned | {"PPO": "PPO"}).items():
            check(f"success after {name}, {way}", key, way)
        for test, said in words.items():
            name = f"tests after PPO{said or ' (99% intervals)'}, {way}"
            check(name, "tests", 0, "tests", test, way, slice(3))
    assert checked == len(table.splitlines()) - 2


def rows_of(rows, pairs, seed):
    """The steps that were imitated, as the page writes them."""
    (steps,) = {rows[name]["pairs"] for name in rows if name.endswith(f", {pairs} steps of imitation, seed {seed}")}
    return f"{steps:,}"
