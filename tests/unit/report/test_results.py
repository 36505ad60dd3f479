"""The numbers that runs ended with, as the files of every kind of run have them."""

from __future__ import annotations

import json
import math

import pytest

from llmrl_jax.core.statistics import Estimate, mean_interval, mean_rate
from llmrl_jax.report import results
from llmrl_jax.report.results import Result


def write(folder, name, values):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(values))


def test_the_newest_evaluation_is_read(tmp_path):
    write(tmp_path, "eval-9.json", {"update": 9, "success": 0.1})
    values = {"update": 10, "env": "W", "seed": 4, "episodes": 20, "random": {"success": 0.25}}
    values["agent"] = {"success": 0.5, "success_low": 0.3, "success_high": 0.7, "success_low/go_to": 0.1}
    values["agent"] |= {"success/go_to": 0.2, "success_high/go_to": 0.4, "text": "x", "lost": None}
    write(tmp_path, "eval-10.json", values)
    write(tmp_path, "eval-last.json", {"update": 99})
    evaluation = results.read_evaluation(tmp_path)
    assert evaluation.update == 10 and evaluation.path.name == "eval-10.json"
    assert evaluation.facts == {"update": 10, "env": "W", "seed": 4, "episodes": 20}
    assert evaluation.results == {
        "success": Result((0.5,), 0.3, 0.7),
        "success/go_to": Result((0.2,), 0.1, 0.4),
        "random/success": Result((0.25,)),
    }
    (tmp_path / "eval-10.json").write_text("{")
    assert results.read_evaluation(tmp_path).update == 9
    assert results.read_evaluation(tmp_path / "nowhere") is None


def test_a_summary_adds_what_the_evaluation_lacks(tmp_path):
    write(tmp_path, "eval-3.json", {"update": 3, "success": 0.5})
    write(tmp_path, "summary.json", {"success": 0.75, "steps": 300, "machine": {"cores": 2}, "stopped": "", "ok": True})
    assert results.results_of(tmp_path) == {"success": Result((0.5,)), "steps": Result((300.0,))}


def test_seeds_of_one_program_and_of_several_runs_are_alike():
    together = {"a/return": 2.0, "a/return_low": -10.0, "a/return_high": 14.0, "a/return_runs": [1.0, 3.0]}
    together |= {"random/return": 7.0, "random/return_low": 6.0, "random/return_high": 8.0}
    runs = [results.read_results(together), results.read_results({"a/return": 8.0})]
    found = results.over_seeds(runs)
    assert found["a/return"] == mean_interval([1.0, 3.0, 8.0])
    assert found["random/return"] == Estimate(7.0, 6.0, 8.0, 1), "one value keeps its own interval"
    rates = results.over_seeds([{"greedy/success": Result((value,))} for value in (0.9, 1.0)])
    assert rates["greedy/success"] == mean_rate([0.9, 1.0]) and rates["greedy/success"].high == 1.0


def test_searches_are_results_of_their_tasks():
    searches = [{"task": task, "seed": seed, "final": seed + 1.0} for task in ("cart", "nim") for seed in (0, 1)]
    found = results.read_results({"searches": searches, "spent": {"calls": 3}})
    assert found == {
        "cart/final": Result((1.0, 2.0)),
        "nim/final": Result((1.0, 2.0)),
        "spent/calls": Result((3.0,)),
    }


@pytest.mark.parametrize(
    "names, main",
    [
        (
            ["steps", "sampled/success", "sampled/go_to/success", "random/success"],
            ["sampled/success", "random/success"],
        ),
        (["a/episode_return", "a/episode_length", "loss"], ["a/episode_return"]),
        (["cart/final", "cart/value"], ["cart/final"]),
        (["steps"], []),
    ],
)
def test_the_main_results(names, main):
    assert results.main_names(names) == main


def test_numbers_as_text():
    assert results.estimate_text(Estimate(0.123456, 0.1, 0.2, 3)) == "0.1235 [0.1, 0.2]"
    assert results.estimate_text(Estimate(60416.0, math.nan, math.nan, 1)) == "60416"
    assert results.number_text(1234.5678) == "1235" and results.number_text(-3e-7) == "-3e-07"
    assert results.estimate_text(Estimate(math.nan, math.nan, math.nan, 0)) == ""
