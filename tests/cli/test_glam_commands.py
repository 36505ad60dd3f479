"""`llmrl glam train | eval`, from the command line to the files, on a world of a few cells."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import yaml

import llmrl_jax as lr
from llmrl_jax import lm
from llmrl_jax.cli.main import main
from llmrl_jax.core import activity
from llmrl_jax.core.config import save_config
from llmrl_jax.run.config import RunConfig, resumed
from llmrl_jax.run.folder import open_folder
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.glam import demo, eval as glam_eval
from llmrl_jax.systems.glam.config import TrainConfig
from llmrl_jax.workflows import curriculum, experiment
from llmrl_jax.workflows.curriculum import PriorConfig, ReadingConfig
from tests.glam import TINY


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


def test_the_language_model_of_a_run_is_written(run, tmp_path, capsys):
    """Weights of the policy's checkpoint, adapters folded in, with a tokenizer, as any other model."""
    out = tmp_path / "model"
    assert main(["lm", "convert", "--model", str(run), "--out", str(out)]) == 0
    x, state = (loaded := lr.load(run)).experiment, loaded.state
    weights = {**state.frozen, **state.params}
    merged = lm.merge(weights["params"], weights["lora"], x.policy.model.lora)
    jax.tree.map(np.testing.assert_allclose, lm.load(out)[1]["params"], merged)
    assert main(["lm", "generate", "Goal of the agent:", "--model", str(out), "--max-new-tokens", "2"]) == 0
    assert main(["lm", "convert", "--model", str(run), "--out", str(out)]) == 2
    assert main(["lm", "convert", "--model", str(run), "--out", f"{out}-2", "--checkpoint", "77"]) == 2
    assert "77" in capsys.readouterr().err


def test_training_leaves_everything_in_its_folder(run):
    config = json.loads((run / "config.json").read_text())
    assert config["glam"]["env"] == "BabyAI-Text/GoToObjS4-v0" and config["glam"]["ppo"]["num_envs"] == 4
    assert [line["update"] for line in lines(run)] == [1, 2]
    assert all(line["first_ratio_error"] <= 1e-5 for line in lines(run))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 32 and summary["versions"]["jax"] and summary["compile_seconds"] > 0
    assert (run / "checkpoints").is_dir() and (run / "frozen").is_dir()


@pytest.mark.slow
def test_a_run_is_resumed_by_its_name_alone(run):
    out = str(run.parent)
    args = ["glam", "train", "--run.name", "small", "--run.out", out, "--run.resume", "--steps", "48"]
    assert main([*args, "--run.progress", "off"]) == 0
    assert [line["update"] for line in lines(run)] == [1, 2, 3]


def test_what_a_resume_was_told_is_not_told_to_the_next(tmp_path):
    """Settings of one start: the checkpoint to go back to, and the limit of time; a flag still says so."""
    for saved in (RunConfig(name="r", out=str(tmp_path), max_seconds=5.0), RunConfig(name="r", resume=True)):
        saved = replace(saved, out=str(tmp_path), resume_from=4 if saved.resume else -1, keep=7)
        (tmp_path / "r").mkdir(exist_ok=True)
        save_config(TrainConfig(run=saved), tmp_path / "r" / "config.json")
        found = resumed(TrainConfig, tmp_path / "r")
        assert found.run == replace(saved, resume=True, resume_from=-1, max_seconds=0.0) and found.run.keep == 7


def test_a_run_that_was_not_named_is_resumed_by_the_name_of_its_folder(tmp_path):
    (tmp_path / "train-20261122").mkdir()
    save_config(TrainConfig(run=RunConfig(out=str(tmp_path))), tmp_path / "train-20261122" / "config.json")
    assert resumed(TrainConfig, tmp_path / "train-20261122").run == RunConfig(
        out=str(tmp_path), name="train-20261122", resume=True
    )


def test_a_run_of_other_settings_is_refused_by_name(run, capsys):
    out = str(run.parent)
    args = ["glam", "train", "--run.name", "small", "--run.out", out, "--run.resume", "--ppo.clip-eps", "0.3"]
    assert main(args) == 2
    assert "--ppo.clip-eps: 0.2 -> 0.3" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_reports_both_ways_of_acting_with_intervals(run, capsys, monkeypatch):
    for name, value in (("FIRST", 0.0), ("EVERY", 0.0), ("TICK", 0.001)):  # every look of the display is a line
        monkeypatch.setattr(activity, name, value)
    assert main(["glam", "eval", str(run), "--episodes", "12", "--gif"]) == 0
    said, progress = capsys.readouterr()
    for line in ("sampled: 0 of 12 episodes: compiling (", "greedy: 0 of 12 episodes (", "\n"):
        assert line in progress, "what is done, line by line, on stderr"
    assert "sampled" in said and "greedy" in said and "12 episodes each" in said
    written = json.loads(next(run.glob("eval-*.json")).read_text())
    assert written["greedy"]["success_low"] <= written["greedy"]["success"] <= written["greedy"]["success_high"]
    assert (run / "episode.gif").stat().st_size > 1000 and str(run / "episode.gif") in said
    written.pop("kind", None)
    assert "\nrandom" in said and 0 <= written["random"]["success"] <= 1
    rates = {True: written["greedy"], False: written["sampled"]}
    monkeypatch.setattr(glam_eval, "evaluation", lambda *made: lambda state, key, greedy: rates[greedy])
    monkeypatch.setattr(glam_eval, "random_evaluation", lambda agent, episodes, key: written["random"])
    assert main(["glam", "eval", str(run), "--episodes", "12", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert all(printed[way] == written[way] for way in ("sampled", "greedy", "random"))
    assert (printed["run"], printed["episodes"], printed["update"]) == (str(run), 12, written["update"])


IMITATION = PriorConfig(updates=2, batch_size=8, stride=1)
READING = ReadingConfig(updates=2, env=TINY.env, rows=40, batch_size=8)


class Killed(BaseException):
    """Exception that no `except` of the program catches, as a SIGKILL."""


@pytest.mark.slow
def test_a_run_that_was_killed_before_rl_is_found_again(tmp_path, monkeypatch):
    """The run in imitation, in writing the prior, and before RL; without the training itself."""
    begun: list[tuple[str, bool]] = []
    killed_in = ""

    def kill(place):
        if place == killed_in:
            raise Killed

    def training(learner, run, *, title, full_config, **how):
        begun.append((title, run.resume))
        folder = open_folder(run)
        save_config(full_config, folder / "config.json")
        kill(title)
        return RunResult(SimpleNamespace(params={"params": {}}), 2, 2, 1.0, 1.0, "", folder)

    def saved(folder, glam, params):
        folder.mkdir()
        (folder / "model.safetensors").touch()
        kill("prior")
        (folder / "tokenizer.json").touch()

    monkeypatch.setattr(curriculum, "run_training", training)
    monkeypatch.setattr(curriculum, "save_prior", saved)
    monkeypatch.setattr(demo, "make_agent", lambda config: kill("PPO"))
    monkeypatch.setattr(demo, "build", functools.cache(demo.build))  # seconds, at every start
    run = RunConfig(name="r", out=str(tmp_path), progress="off")
    again = replace(run, resume=True)

    def start(place, run, glam=TINY):
        nonlocal killed_in
        killed_in = place
        begun.clear()
        with pytest.raises(Killed):
            demo.prior_then_ppo(glam, IMITATION, 16, run)
        return list(begun)

    with pytest.raises(FileNotFoundError, match="run 'r'"):
        start("imitation", again)
    with pytest.raises(ValueError, match="16 / 3"):
        start("imitation", run, replace(TINY, ppo=replace(TINY.ppo, minibatches=3)))
    assert not (tmp_path / "r").exists(), "what cannot be right takes no name"
    assert start("imitation", run) == [("imitation", False)]
    with pytest.raises(FileExistsError, match="--run.resume"):
        start("PPO", run)
    with pytest.raises(ValueError, match="glam.history: 1 -> 2"):
        start("PPO", again, replace(TINY, history=2))
    assert start("prior", again) == [("imitation", True)]
    assert not (tmp_path / "r" / "prior").exists(), "half of one is none"
    assert start("PPO", again) == [("imitation", True)]
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [
        ".lock",
        "config.json",
        "imitation",
        "lessons.json",
        "prior",
    ]
    assert sorted(p.name for p in (tmp_path / "r" / "prior").iterdir()) == ["model.safetensors", "tokenizer.json"]
    assert start("PPO", again) == []


@pytest.mark.slow
def test_a_run_that_was_killed_before_rl_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """In reading and in imitation, each after one of two updates: the prior is that of a run that never stopped."""
    real = curriculum.run_training

    def killed(*args, **how):
        raise Killed

    monkeypatch.setattr(experiment, "run_training", killed)

    def start(name, place, resume=False):
        def training(learner, run, *, num_updates, title, **how):
            cut = num_updates - 1 if title == place else num_updates
            result = real(learner, run, num_updates=cut, title=title, **how)
            if cut < num_updates:
                raise Killed
            return result

        monkeypatch.setattr(curriculum, "run_training", training)
        run = RunConfig(name=name, out=str(tmp_path), progress="off", resume=resume)
        with pytest.raises(Killed):
            demo.prior_then_ppo(TINY, IMITATION, 16, run, reading=READING)

    start("whole", "PPO")
    start("cut", "reading")
    start("cut", "imitation", resume=True)
    start("cut", "PPO", resume=True)
    for lesson in ("reading", "imitation"):
        assert [line["update"] for line in lines(tmp_path / "cut" / lesson)] == [1, 2]
    weights = [(tmp_path / name / "prior" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_wrong_input_is_one_line_and_a_remedy(tmp_path, capsys):
    assert main(["glam", "train", "--preset", "dmo"]) == 2
    assert "mean 'demo'" in capsys.readouterr().err
    assert main(["glam", "trian"]) == 2
    assert "mean 'train'" in capsys.readouterr().err
    assert main(["glam", "eval", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
    assert main(["glam", "train", "--model", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["glam", "train", *FLAGS, "--run.out", str(tmp_path), "--ppo.minibatches", "3"]) == 2
    assert "16 / 3" in capsys.readouterr().err
    assert main(["glam", "train", *FLAGS, "--run.out", str(tmp_path), "--mesh", "data=8"]) == 2
    assert "--ppo.num-envs 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "tune", "rate"),
    [
        ((), "full", 1e-6),
        (("--preset", "glam"), "full", 1e-6),
        (("--preset", "glam-lora"), "lora", 1e-4),
        (("--preset", "glam", "--tune", "lora"), "lora", 1e-4),
        (("--tune", "lora"), "lora", 1e-4),
        (("--preset", "glam-lora", "--tune", "full"), "full", 1e-6),
        (("--tune", "lora", "--ppo.learning-rate", "3e-4"), "lora", 3e-4),
        (("--preset", "glam-code"), "full", 1e-6),
    ],
    ids=str,
)
def test_the_learning_rate_follows_the_kind_of_tuning(flags, tune, rate, capsys):
    assert main(["glam", "train", *flags, "--print-config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)["glam"]
    assert (config["tune"], float(config["ppo"]["learning_rate"])) == (tune, rate)
