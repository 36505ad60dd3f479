"""`llmrl glam train | eval`, from the command line to the files, on a world of a few cells."""

from __future__ import annotations

import json

import pytest

from llmrl_jax.run.cli import main


FLAGS = (
    "--preset demo --env BabyAI-Text/GoToObjS4-v0 --embedded.hidden-size 16 --embedded.layers 1 --embedded.heads 2"
    " --embedded.intermediate-size 16 --value-width 8 --ppo.num-envs 4 --ppo.num-steps 4 --ppo.minibatches 2"
    " --ppo.microbatches 1 --ppo.epochs 1 --ppo.pool-size 8 --run.name small --run.progress off"
).split()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert main(["glam", "train", *FLAGS, "--run.out", str(out), "--steps", "32"]) == 0
    return out / "small"


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_training_leaves_everything_in_its_folder(run):
    config = json.loads((run / "config.json").read_text())
    assert config["glam"]["env"] == "BabyAI-Text/GoToObjS4-v0" and config["glam"]["ppo"]["num_envs"] == 4
    assert [line["update"] for line in lines(run)] == [1, 2]
    assert all(line["first_ratio_error"] <= 1e-5 for line in lines(run))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 32 and summary["versions"]["jax"] and summary["compile_seconds"] > 0
    assert (run / "checkpoints").is_dir() and (run / "frozen").is_dir()


def test_a_run_is_resumed_by_its_name_alone(run):
    out = str(run.parent)
    args = ["glam", "train", "--run.name", "small", "--run.out", out, "--run.resume", "--steps", "48"]
    assert main([*args, "--run.progress", "off"]) == 0
    assert [line["update"] for line in lines(run)] == [1, 2, 3]


def test_a_run_of_other_settings_is_refused_by_name(run, capsys):
    out = str(run.parent)
    args = ["glam", "train", "--run.name", "small", "--run.out", out, "--run.resume", "--ppo.clip-eps", "0.3"]
    assert main(args) == 2
    assert "ppo.clip_eps: 0.2 -> 0.3" in capsys.readouterr().err


def test_evaluation_reports_both_ways_of_acting_with_intervals(run, capsys):
    assert main(["glam", "eval", str(run), "--episodes", "12", "--gif"]) == 0
    said = capsys.readouterr().out
    assert "sampled" in said and "greedy" in said and "12 episodes each" in said
    written = json.loads(next(run.glob("eval-*.json")).read_text())
    assert written["greedy"]["success_low"] <= written["greedy"]["success"] <= written["greedy"]["success_high"]
    assert (run / "episode.gif").stat().st_size > 1000


def test_wrong_input_is_one_line_and_a_remedy(tmp_path, capsys):
    assert main(["glam", "train", "--preset", "dmo"]) == 2
    assert "did you mean 'demo'" in capsys.readouterr().err
    assert main(["glam", "trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err
    assert main(["glam", "eval", str(tmp_path)]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main(["glam", "train", "--model", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["glam", "train", *FLAGS, "--run.out", str(tmp_path), "--ppo.minibatches", "3"]) == 2
    assert "16 / 3" in capsys.readouterr().err
    assert main(["glam", "train", *FLAGS, "--run.out", str(tmp_path), "--mesh", "data=8"]) == 2
    assert "num_envs 4" in capsys.readouterr().err
