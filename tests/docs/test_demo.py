"""README and the tour show the demo's committed figures, which are those of the demo's present settings."""

from __future__ import annotations

import importlib
import json

import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.run.info import versions
from tests.paths import ROOT


RECORD = json.loads((ROOT / "experiments" / "results" / "glam_demo" / "demo.json").read_text())
ROWS = {
    "random actions": "random",
    "before RL": "before",
    "after RL": "after",
    "after RL, greedy": "after_greedy",
}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_record_is_of_this_version_and_of_the_present_settings(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    experiment = importlib.import_module("glam_demo")
    assert RECORD["llmrl-jax"] == versions()["llmrl-jax"]
    assert configs.differences(RECORD["settings"], experiment.settings()) == []
    seeds = [row["seed"] for row in RECORD["seeds"]]
    assert len(seeds) >= 3 and seeds == list(experiment.Experiment().seeds[: len(seeds)])


@pytest.mark.parametrize("name", ["README.md", "docs/tour.md"])
@pytest.mark.parametrize("title", ROWS)
def test_the_block_has_the_figures_of_seed_0(title, name):
    rate, low, high = RECORD["seeds"][0][ROWS[title]]
    assert f"\n{title:<17} {rate:.3f} [{low:.3f}, {high:.3f}]\n" in page(name)


def test_every_seed_is_right_at_its_mode():
    assert min(row["after_greedy"][0] for row in RECORD["seeds"]) >= 0.95
    assert min(row["after"][0] for row in RECORD["seeds"]) >= 0.95


def test_what_the_pages_say_of_all_seeds():
    first, rows = RECORD["seeds"][0], RECORD["seeds"]
    text = " ".join(page("docs/tour.md").split())
    for row in rows[1:]:
        assert f"seed {row['seed']}: {row['after'][0]:.3f} sampled, {row['after_greedy'][0]:.3f} greedy" in text
    assert f"{first['steps']} steps at {first['steps_per_second']:.0f} per second" in text
    assert f"took {first['total_seconds']:.0f} seconds" in text
    assert f"{first['total_seconds']:.0f} seconds on two CPU cores" in page("README.md")


def test_readme_is_short():
    assert len(page("README.md").splitlines()) <= 120
