"""`llmrl runs compare` and `glam export`, on runs of GLAM whose metrics are written by hand."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tyro

from llmrl_jax.cli.commands.runs import compare as compare_runs
from llmrl_jax.cli.main import main
from llmrl_jax.core import statistics as stats
from llmrl_jax.core.config import load_config, save_config
from llmrl_jax.report import compare, figures
from llmrl_jax.report.page import evaluation_points
from llmrl_jax.systems.glam.commands import export
from llmrl_jax.systems.glam.config import CloneRun, TrainConfig
from tests.paths import ROOT


def write_run(folder, success, *, seed=0, lr=1e-3, model="embedded", evals=(), count=10.0):
    """A run of 100 steps and one line of metrics per update, two seconds each."""
    folder.mkdir()
    config = TrainConfig()
    glam = replace(config.glam, model=model, ppo=replace(config.glam.ppo, learning_rate=lr))
    save_config(
        replace(config, glam=glam, run=replace(config.run, seed=seed, name=folder.name)), folder / "config.json"
    )
    lines = []
    for i, value in enumerate(success, 1):
        line = {"kind": "train", "update": i, "updates": 1, "steps": 100 * i, "seconds": 2.0 * i}
        line |= {"steps_per_second": 50.0, "episodes": count, "success": value, "episode_return": value}
        lines.append(line | {"episode_length": 9.0, "entropy": 1.5, "policy_loss": 0.1, "value_loss": 0.2, "loss": 0.3})
    for update, mean, low, high in evals:
        line = {"kind": "eval", "update": update, "steps": 100 * update, "episodes": 200.0}
        lines.append(line | {"success": mean, "success_low": low, "success_high": high})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


RISING = [0.0] * 10 + [1.0] * 10
"""The mean of the last ten reaches 0.8 with the eighth 1: at update 18, step 1800."""


def read(*folders):
    return [compare.read_run(folder, TrainConfig) for folder in folders]


def test_the_numbers_of_one_run(tmp_path):
    (run,) = read(write_run(tmp_path / "a", RISING))
    assert run.steps_to(0.8) == 1800 and run.steps_to(1.0) == 2000
    assert run.efficiency() == 0.5 and run.efficiency(1500) == pytest.approx(5 / 15)
    assert run.steps == 2000 and run.steps_per_second == 50
    assert run.final() == stats.wilson(20, 20), "the last tenth: two lines of ten episodes"


def test_seeds_of_one_program_are_runs_of_one_seed_each(tmp_path):
    (run,) = read(write_run(tmp_path / "a", RISING, seed=3))
    own = [line | {f"{i}/success": line["success"] * (1 - i / 2) for i in range(2)} for line in run.train]
    both = replace(run, settings=run.settings | {"seeds": 2}, train=own)
    first, second = compare.by_seed(both)
    assert [one.settings["run.seed"] for one in (first, second)] == [3, 4] and "seeds" not in first.settings
    assert (first.efficiency(), second.efficiency()) == (run.efficiency(), run.efficiency() / 2)
    assert len(compare.by_settings([first, second])) == 1
    assert compare.by_seed(run)[0].efficiency() == run.efficiency()
    assert compare.by_seed(replace(both, metric="1/success")) == [replace(both, metric="1/success")]
    other = replace(both, train=run.train)
    assert compare.by_seed(other) == [other], "its seeds are of another kind, as those of a search"
    line = {"kind": "train", "update": 1, "0/loss": 1.0, "loss": 2.0}
    (run.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert compare.shared_metric([run.folder]) == "loss", "of all seeds"


def test_an_evaluation_is_the_better_final_number(tmp_path):
    (run,) = read(write_run(tmp_path / "a", RISING, evals=[(0, 0.1, 0.0, 0.2), (20, 0.7, 0.6, 0.8)]))
    assert run.final() == (0.7, 0.6, 0.8, 200)


def test_an_evaluation_before_training_is_not_final(tmp_path):
    (run,) = read(write_run(tmp_path / "a", RISING, evals=[(0, 0.1, 0.0, 0.2)]))
    assert run.final() == stats.wilson(20, 20)


def test_a_bar_is_not_reached_by_a_lucky_line(tmp_path):
    (run,) = read(write_run(tmp_path / "a", [1.0] * 9))
    assert math.isnan(run.steps_to(0.8)), "nine lines are no window of ten"


def test_lines_count_by_the_episodes_of_their_metric(tmp_path):
    (run,) = read(write_run(tmp_path / "a", RISING, count=0.0))
    assert math.isnan(run.steps_to(0.8)), "no episode ended"
    assert run.select("entropy").steps_to(1.5) == 1000, "a metric of updates"
    # 9 of the 10 episodes of the task are in one of the ten lines
    lines = [line | {"success/go_to": 0.0, "episodes": 10.0, "episodes/go_to": 1 / 9} for line in run.train[:10]]
    lines[4] |= {"success/go_to": 1.0, "episodes/go_to": 9.0}
    of_task = replace(run, train=lines, metric="success/go_to")
    assert of_task.steps_to(0.9) == 1000 and math.isnan(of_task.steps_to(0.91))


def test_evaluations_of_the_seeds_that_have_some(tmp_path):
    evals = [(10, 0.1, 0.0, 0.2), (20, 0.7, 0.6, 0.8)]
    runs = read(*(write_run(tmp_path / str(seed), RISING, seed=seed, evals=evals) for seed in range(2)))
    (other,) = read(write_run(tmp_path / "2", RISING, seed=2))
    points = evaluation_points([*runs, other], "success")
    assert {steps: point.mean for steps, point in points.items()} == {1000: 0.1, 2000: 0.7}
    assert evaluation_points([other], "success") == {}


def test_lines_without_an_ended_episode_are_left_out(tmp_path):
    (run,) = read(write_run(tmp_path / "a", [None, 0.5, None, 1.0]))
    assert run.efficiency() == 0.75 and run.steps == 400


def test_json_has_the_numbers_of_the_table(tmp_path, capsys):
    runs = [write_run(tmp_path / name, RISING[:20], seed=seed) for seed, name in enumerate("ab")]
    command = ["runs", "compare", *map(str, runs), "--out"]
    assert main([*command, str(tmp_path / "one.png")]) == 0
    table = capsys.readouterr().out
    assert main([*command, str(tmp_path / "two.png"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    (group,) = results["groups"]
    assert group["runs"] == list(map(str, runs)) and group["steps_to_bar"] == [1800.0, 1800.0]
    assert results["figure"] == str(tmp_path / "two.png") and results["differing_settings"] == {}
    for name in ("final", "efficiency"):
        estimate = group[name]
        assert f"{estimate['mean']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]" in table
        assert estimate["n"] == 2


def test_seeds_that_begin_with_one_runs_prior_stand_with_it(tmp_path):
    """The experiments' way: the first run makes the prior, the others name it."""
    made = "runs/first/prior"
    runs = read(
        write_run(tmp_path / "first", RISING, seed=0, model=made),
        write_run(tmp_path / "second", RISING, seed=1, model=made),
        write_run(tmp_path / "other", RISING, seed=2, model="runs/other/prior"),
    )
    assert [[run.name for run in group] for group in compare.by_settings(runs)] == [["first", "second"], ["other"]]


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path):
    runs = read(
        write_run(tmp_path / "a", RISING, seed=0, model=str(tmp_path / "a" / "prior")),
        write_run(tmp_path / "b", [0.5] * 20, seed=1, model=str(tmp_path / "b" / "prior")),
        write_run(tmp_path / "c", [0.25] * 16, lr=1e-4, model=str(tmp_path / "c" / "prior")),
    )
    groups = compare.by_settings(runs)
    assert [[run.name for run in group] for group in groups] == [["a", "b"], ["c"]]
    lines = compare.table(groups).splitlines()
    # up to the 1,600 steps that all have: 6 / 16 and 0.5, mean 0.4375, deviation 0.125 / sqrt(2)
    # Student's quantile for two values is 12.7062, so the half width is 0.794: the interval is clipped to [0, 1]
    assert "0.438 [0.000, 1.000]" in lines[1]
    assert "a and 1 more seed " in lines[1] and "1800 (1 of 2)" in lines[1] and "SE to 1600" in lines[0]
    assert "not reached" in lines[2] and "0.250" in lines[2] and " 50" in lines[2]
    assert compare.differences(groups).splitlines()[1:] == ["glam.ppo.learning_rate  0.001              0.0001"], (
        "the seed and each run's own prior are no difference"
    )
    steps, estimates = compare._mean_curve(groups[0])
    assert steps.tolist() == [100.0 * i for i in range(1, 21)]
    assert estimates[0] == stats.mean_rate([0.0, 0.5]) and estimates[-1] == stats.mean_rate([1.0, 0.5])


def test_three_seeds_have_students_interval(tmp_path):
    folders = [write_run(tmp_path / name, [x] * 20, seed=i) for i, (name, x) in enumerate(zip("abc", (0.4, 0.5, 0.6)))]
    lines = compare.table(compare.by_settings(read(*folders))).splitlines()
    half = 4.302652729749462 * 0.1 / np.sqrt(3)
    assert lines[1].count(f"0.500 [{0.5 - half:.3f}, {0.5 + half:.3f}]") == 2, "the final success, and the efficiency"


@pytest.mark.parametrize("metric, top", [("success/go_to", 1.0), ("episode_return", 0.95 + 12.7062 * 0.05)])
def test_rates_of_tasks_stay_between_0_and_1(tmp_path, metric, top):
    runs = read(*(write_run(tmp_path / name, [x] * 20, seed=i) for i, (name, x) in enumerate(zip("ab", (0.9, 1.0)))))
    runs = [replace(run, metric=metric, train=[line | {metric: line["success"]} for line in run.train]) for run in runs]
    (line,) = compare.lines([runs])
    highs = [line.final.high, line.efficiency.high, compare._mean_curve(runs)[1][0].high]
    assert highs == pytest.approx([top] * 3, abs=1e-3)


def test_seeds_of_different_lengths_are_shown_as_such(tmp_path):
    runs = read(*(write_run(tmp_path / str(n), [0.5] * n, seed=n) for n in (10, 20)))
    (line,) = compare.lines([runs])
    assert f" {line.steps} to {line.most_steps} " in compare.table([runs]) and line.most_steps == 2 * line.steps


def test_one_run_is_no_two_seeds(tmp_path, monkeypatch):
    a, b = write_run(tmp_path / "a", RISING, seed=3), write_run(tmp_path / "b", RISING, seed=4)
    (tmp_path / "link").symlink_to(a)
    monkeypatch.chdir(tmp_path)
    for again, said in ((a, "twice"), (tmp_path / "link", "a and .*link"), (Path("b/../a"), "a and .*/a")):
        with pytest.raises(ValueError, match=said):
            compare_runs((a, b, again))
    # a copy, or the same command run once more, is a line of its own
    copy = write_run(tmp_path / "copy", RISING, seed=3)
    groups = compare.by_settings(read(a, b, copy))
    assert [[run.name for run in group] for group in groups] == [["a", "b"], ["copy"]]


def test_the_command_draws_and_says_what_differs(tmp_path, capsys):
    a, b = write_run(tmp_path / "a", RISING), write_run(tmp_path / "b", RISING, lr=0.5)
    for out in ("compare.png", "bare"):  # no ending: the picture is a PNG, and the file that was written is named
        tyro.cli(compare_runs, args=[str(a), str(b), "--out", str(tmp_path / "new" / out)])
        said = capsys.readouterr().out
        assert "glam.ppo.learning_rate  0.001  0.5" in said and "steps to 0.8" in said
        written = tmp_path / "new" / f"{out.removesuffix('.png')}.png"
        assert str(written) in said and written.read_bytes()[:4] == b"\x89PNG"


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        read(tmp_path)
    with pytest.raises(ValueError, match="ended.*episode"):
        read(write_run(tmp_path / "a", [None]))
    with pytest.raises(ValueError, match="compare"):
        compare_runs(())
    with pytest.raises(ValueError, match="bar.*80"):
        compare_runs((write_run(tmp_path / "b", RISING),), bar=80)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"steps": None}, "1: steps.*nan.*0"),
        ({"steps": "many"}, "steps.*'many'"),
        ({"steps": 10**400}, "steps.*1000"),
        ({"seconds": -1.0}, "seconds.*-1.0.*0"),
        ({"success": 3.0}, "success.*3.0.*0.*1"),
        ({"episodes": -3.0}, "episodes.*-3.0"),
    ],
)
def test_a_damaged_line_is_named(change, said, tmp_path):
    run = write_run(tmp_path / "a", [0.5])
    path = run / "metrics.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(ValueError, match=said):
        read(run)


def test_no_picture_is_overwritten_and_none_of_an_unknown_format_is_begun(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", RISING)
    mine = tmp_path / "mine.png"
    mine.write_text("a picture of mine")
    with pytest.raises(FileExistsError, match="mine.png"):
        compare_runs((run,), out=mine.with_suffix(""))
    with pytest.raises(ValueError, match=r"\.txt.*png"):
        compare_runs((run,), out=tmp_path / "mine.txt")
    with pytest.raises(NotADirectoryError, match="mine.png"):
        compare_runs((run,), out=mine / "deep" / "new.png")
    monkeypatch.chdir(tmp_path)
    names = [figures.new_file(None, Path("mine.png"))]
    names[0].write_text("another")
    names.append(figures.new_file(None, Path("mine.png")))
    assert [str(name) for name in names] == ["mine-2.png", "mine-3.png"] and mine.read_text() == "a picture of mine"


def test_a_log_in_the_published_columns(tmp_path, capsys):
    run = write_run(tmp_path / "a", [None, 0.5], count=3.0)
    tyro.cli(export, args=[str(run)])
    with (run / "log.csv").open() as file:
        first, second = csv.DictReader(file)
    header = "update episodes frames FPS duration return_mean return_std return_min return_max success_rate".split()
    assert list(first)[:10] == header and list(first)[-5:] == [
        "entropy",
        "policy_loss",
        "value_loss",
        "loss",
        "grad_norm",
    ]
    assert len(first) == 27
    assert first["success_rate"] == "" and first["return_mean"] == ""
    assert (second["update"], second["episodes"], second["frames"], second["duration"]) == ("2", "6", "200", "4.0")
    assert (second["return_mean"], second["reshaped_return_mean"], second["num_frames_mean"]) == ("0.5", "10.0", "9.0")
    assert (second["return_std"], second["reshaped_return_bonus_max"], second["grad_norm"]) == ("", "0.0", "")
    assert "log.csv" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="configuration"):
        export(tmp_path)


def test_runs_from_before_version_1_are_read():
    """The committed logs of runs, whose config.json has a `preset` and no kind."""
    results = ROOT / "experiments" / "results"
    folders = [path.parent for name in ("goto_local", "mixed") for path in (results / name).rglob("config.json")]
    found = {str(folder.relative_to(results)): load_config(TrainConfig, folder / "config.json") for folder in folders}
    assert len(found) >= 20 and found["mixed/symbolic-1"].glam.agent == "symbolic"
    assert found["mixed/llm-1"].run.seed == 1 and found["mixed/llm-1"].glam.model == "runs/mixed/prior"
    with pytest.raises(ValueError, match="CloneRun.*'steps'"):
        load_config(CloneRun, results / "mixed" / "llm-0" / "config.json")
