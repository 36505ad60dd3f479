"""`llmrl runs`: what is found in a folder, what is said of each run, what is compared and what is deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.core.config import stamped
from llmrl_jax.report import figures, runs
from llmrl_jax.run.folder import Status, held, write_status
from llmrl_jax.systems.glam.config import TrainConfig


RESULTS = Path(__file__).parents[2] / "experiments" / "results"


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # so that nothing changes this process's settings


def write_run(folder: Path, success=(0.1, 0.3, 0.5), status=None, seed=0, values=None, **metrics) -> Path:
    """A run as the loop leaves it: a line of training an update, each of 100 steps."""
    folder.mkdir(parents=True)
    if values is None:
        values = stamped(TrainConfig())
        values["run"] |= {"name": folder.name, "seed": seed}
    (folder / "config.json").write_text(json.dumps(values))
    lines = []
    for i, value in enumerate(success, 1):
        line = {"kind": "train", "update": i, "updates": 1, "steps": 100 * i, "seconds": 2.0 * i, "episodes": 10.0}
        lines.append({**line, "steps_per_second": 50.0, "success": value, **{n: v[i - 1] for n, v in metrics.items()}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if status:
        write_status(folder, status)
    return folder


@pytest.fixture
def some(tmp_path):
    """Runs of every state; a folder of a model, which is none."""
    write_run(tmp_path / "done", status=Status(3, 3, "finished"))
    write_run(tmp_path / "group" / "ended", status=Status(3, 9, "stopped", "SIGTERM"))
    write_run(tmp_path / "group" / "broken", status=Status(3, 9, "failed", "loss is nan at update 4"))
    write_run(tmp_path / "killed", status=Status(0, 9))
    write_run(tmp_path / "live", status=Status(0, 9))
    old = {name: value for name, value in stamped(TrainConfig()).items() if name not in ("kind", "version")}
    write_run(tmp_path / "old", values={"preset": "glam", **old})
    (tmp_path / "old" / "summary.json").write_text(json.dumps({"stopped": "", "date": "2020-01-02"}))
    values = {"kind": "rl train", "version": 1, "env": "CartPole-v1", "algo": "ppo"}
    write_run(tmp_path / "other", success=(), values=values)
    for model in (tmp_path / "done" / "model", tmp_path / "llama"):
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def listed(folder, capsys) -> dict[str, dict]:
    assert cli.main(["runs", "list", str(folder), "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def test_every_run_is_listed_with_its_state(some, capsys):
    with held(some / "live"):
        found = listed(some, capsys)
    states = {name: (run["state"], run["update"], run["updates"]) for name, run in found.items()}
    assert states == {
        "done": ("finished", 3, 3),
        "group/broken": ("failed", 3, 9),
        "group/ended": ("stopped", 3, 9),
        "killed": ("stopped", 3, 9),
        "live": ("running", 3, 9),
        "old": ("finished", 3, None),
        "other": ("stopped", 0, None),
    }
    assert found["live"]["why"] == f"process {os.getpid()} on {os.uname().nodename}"
    assert found["group/broken"]["why"] == "loss is nan at update 4" and found["group/ended"]["why"] == "SIGTERM"
    kinds = {name: run["kind"] for name, run in found.items()}
    assert kinds.pop("other") == "rl train" and set(kinds.values()) == {"glam train"}, "the old one by its options"
    assert (found["other"]["world"], found["other"]["learner"], found["other"]["model"]) == ("CartPole-v1", "ppo", "")
    assert found["done"]["train"]["success"] == 0.5 and found["done"]["steps"] == 300
    assert found["old"]["date"] == "2020-01-02" and len(found["done"]["date"]) == len("2020-01-02 03:04")
    cli.main(["runs", "list", str(some)])
    lines = capsys.readouterr().out.splitlines()
    head = "run kind world learner model state update steps last metric date"
    assert len(lines) == 8 and lines[0].split() == head.split()
    assert lines[1].split()[:2] == ["done", "glam"] and " 3/3 " in lines[1] and "success 0.5" in lines[1]


def test_committed_runs_from_before_kinds_are_listed(capsys):
    found = listed(RESULTS, capsys)
    assert len(found) == len(list(RESULTS.rglob("config.json"))) > 20
    assert found["goto_local/drrn-0"]["kind"] == "glam train" and found["goto_local/drrn-0"]["learner"] == "drrn"
    assert (
        found["goto_local"]["eval"]["success"] == 0.922 and found["goto_local"]["world"] == "BabyAI-Text/GoToLocal-v0"
    )
    assert all(run["world"] for run in found.values())
    short = {"mixed/goals/llm-0"}  # its table says after how many steps it was stopped
    assert {run["state"] for name, run in found.items() if name not in short} == {"finished"}


def test_no_runs(tmp_path, capsys):
    assert cli.main(["runs", "list", str(tmp_path)]) == 0 and "there is no run in" in capsys.readouterr().out
    assert cli.main(["runs", "list", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_a_run_is_shown(some, capsys):
    config = TrainConfig()
    values = stamped(config)
    values["glam"]["ppo"]["gamma"], values["run"]["seed"], values["run"]["name"] = 0.5, 7, "done"
    (some / "done" / "config.json").write_text(json.dumps(values))
    for update, size in (("2", 3000), ("10", 100)):
        (some / "done" / "checkpoints" / update).mkdir(parents=True)
        (some / "done" / "checkpoints" / update / "data").write_bytes(b"x" * size)
    (some / "done" / "frozen").mkdir()
    (some / "done" / "frozen" / "data").write_bytes(b"x" * 2048)
    assert cli.main(["runs", "show", str(some / "done")]) == 0
    said = capsys.readouterr().out
    head, settings, train, checkpoints = said.split("\n\n")
    assert head.startswith("done: glam train, finished\n") and "  update: 3/3\n" in head
    assert settings.splitlines() == [
        "settings that differ from the defaults:",
        "  glam.ppo.gamma: 0.5 (default: 0.99)",
        "  run.seed: 7 (default: 0)",
    ]
    assert train.startswith("last line of training:") and "  success: 0.5" in train
    assert checkpoints.split("\n", 1)[1].strip().splitlines() == [
        "update 2: 2.9 KiB", "  update 10: 100 B", "  frozen: 2.0 KiB"
    ]  # fmt: skip
    assert cli.main(["runs", "show", str(some / "done"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"glam.ppo.gamma": 0.5, "run.seed": 7} and found["train"]["update"] == 3
    assert found["checkpoints"] == {"2": 3000, "10": 100, "frozen": 2048} and found["bytes"] > 5148
    assert found["summary"] == {}
    assert cli.main(["runs", "show", str(some / "old")]) == 0
    assert "\n\nsummary:\n  date: 2020-01-02\n\n" in capsys.readouterr().out
    # of a kind that this version does not know, every setting
    values = {"kind": "abc train", "version": 1, "env": "CartPole-v1", "run": {"name": "other", "seed": 3}}
    (some / "other" / "config.json").write_text(json.dumps(values))
    assert cli.main(["runs", "show", str(some / "other")]) == 0
    said = capsys.readouterr().out
    assert "settings (of an unknown kind):\n  env: CartPole-v1\n  run.seed: 3\n" in said and "no checkpoint" in said
    assert cli.main(["runs", "show", str(some / "don")]) == 2
    assert "mean 'done'" in capsys.readouterr().err
    assert cli.main(["runs", "show", str(some / "llama")]) == 2, "a model"
    assert "no run" in capsys.readouterr().err


def test_runs_are_compared_and_no_picture_is_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        write_run(tmp_path / f"glam-{seed}", [0.0, 1.0] * 10, seed=seed)
    values = {"kind": "abc train", "version": 1, "env": "CartPole-v1", "rate": 2}
    write_run(tmp_path / "abc", [0.5] * 20, values={**values, "run": {"seed": 0, "out": "x"}})
    (tmp_path / "compare.png").write_bytes(b"another's")
    folders = ["glam-0", "glam-1", "abc"]
    assert cli.main(["runs", "compare", *folders]) == 0
    said = capsys.readouterr().out
    table, differing, drawn = said.split("\n\n")
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == ["glam-0 and 1 more seed", "abc"]
    assert "final success" in table and "steps to 0.8" in table and "SE to 2000" in table and "0.500 [" in table
    assert differing.splitlines()[0].split("  ")[0] == "setting" and "run.out" not in differing
    assert "env" in differing and '"CartPole-v1"' in differing and "absent" in differing
    assert drawn.strip().endswith("compare-2.png") and (tmp_path / "compare.png").read_bytes() == b"another's"
    assert (tmp_path / "compare-2.png").read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["runs", "compare", "abc", "--out", "compare"]) == 2
    assert "compare.png" in capsys.readouterr().err


def test_other_metrics_are_compared(tmp_path, capsys):
    returns = {"episode_return": [10.0 * i for i in range(1, 21)]}
    one = write_run(tmp_path / "a", [None] * 20, **returns)
    write_run(tmp_path / "b", [None] * 20, episode_return=[5.0] * 20, seed=1)
    out = ["--out", str(tmp_path / "picture")]
    assert cli.main(["runs", "compare", str(one), *out]) == 0
    said = capsys.readouterr().out
    # the last tenth of the lines: 190 and 200, mean 195, deviation 10 / sqrt(2), so 12.7062 x 5 (Student, two values)
    assert "final episode_return" in said and "195.000 [131.469, 258.531]" in said and "steps to" not in said
    assert (tmp_path / "picture.png").exists()
    both = [str(one), str(tmp_path / "b"), "--bar", "100", "--metric", "episode_return", "--out", str(tmp_path / "c")]
    assert cli.main(["runs", "compare", *both]) == 0
    said = capsys.readouterr().out
    # the mean of ten lines, 10 (i - 4.5), reaches 100 at update 15; means over seeds may exceed 1
    assert "1500 (1 of 2)" in said and "100.000 [" in said
    assert cli.main(["runs", "compare", *both[:-1], str(tmp_path / "json"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)  # nothing else is printed
    (group,) = results["groups"]
    assert (group["steps_to_bar"], len(group["runs"]), group["label"]) == ([1500.0], 2, "a and 1 more seed")
    assert [f"{group['final'][name]:.3f}" for name in ("mean", "low", "high")][0] == "100.000"
    assert f"100.000 [{group['final']['low']:.3f}, {group['final']['high']:.3f}]" in said
    assert results["figure"].endswith("json.png") and results["bar"] == 100 and results["metric"] == "episode_return"
    assert cli.main(["runs", "compare", str(one), "--metric", "reward"]) == 2
    assert "with reward" in capsys.readouterr().err
    # an evaluation in the last tenth that says nothing of an interval
    with (one / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "eval", "update": 20, "steps": 2000, "episode_return": 7.5}\n')
    assert cli.main(["runs", "compare", str(one), "--out", str(tmp_path / "d")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["a", "2000", "7.500", "105.000"]
    assert cli.main(["runs", "compare", str(one), str(one / "..") + "/a"]) == 2
    assert "same run" in capsys.readouterr().err
    empty = write_run(tmp_path / "empty", [])
    assert cli.main(["runs", "compare", str(one), str(empty)]) == 2
    assert "no metric" in capsys.readouterr().err


def test_runs_are_deleted_when_asked(some, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked = []
    answers = iter(["n", "y"])
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or next(answers))
    folders = [str(some / name) for name in ("done", "killed")]
    assert cli.main(["runs", "rm", *folders]) == 0
    assert capsys.readouterr().out == f"{folders[0]} was left as it is\n{folders[1]} was deleted\n"
    assert asked[0].startswith(f"Delete {folders[0]} (finished, ") and asked[0].endswith("iB)? [y/N] ")
    assert (some / "done" / "metrics.jsonl").exists() and not list(some.glob("*killed*"))
    # a run with others in it
    write_run(some / "old" / "part")
    assert cli.main(["runs", "rm", str(some / "old"), "--yes"]) == 0 and not (some / "old").exists()
    assert sorted(p.name for p in some.iterdir()) == ["done", "group", "live", "llama", "other"]


def test_what_is_not_deleted(some, capsys):
    with held(some / "live"):
        assert cli.main(["runs", "rm", str(some / "live"), "--yes"]) == 2
        assert f"process {os.getpid()}" in capsys.readouterr().err
    inner = write_run(some / "done" / "part")
    with held(inner):
        assert cli.main(["runs", "rm", str(some / "done"), "--yes"]) == 2
        assert "part is" in capsys.readouterr().err
    assert (some / "live" / "config.json").exists() and (inner / "config.json").exists()
    assert cli.main(["runs", "rm", str(some / "llama"), "--yes"]) == 2 and (some / "llama").exists()
    (some / "package").mkdir()
    (some / "package" / "config.json").write_text('{"name": "x", "run": "npm start"}')
    (some / "package" / "metrics.jsonl").write_text('{"loss": 1}\n')
    assert cli.main(["runs", "list", str(some)]) == 0
    capsys.readouterr()
    (some / "project").mkdir()
    (some / "project" / "config.json").write_text('{"compilerOptions": {}}')
    assert cli.main(["runs", "rm", str(some / "project"), "--yes"]) == 2 and (some / "project").exists()
    assert "no command" in capsys.readouterr().err
    (some / "link").symlink_to(some / "done")
    assert cli.main(["runs", "rm", str(some / "link"), "--yes"]) == 2
    assert "symbolic link" in capsys.readouterr().err and (some / "done" / "config.json").exists()
    done = subprocess.run(
        [sys.executable, "-m", "llmrl_jax.cli.main", "runs", "rm", str(some / "done")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, "LLMRL_COMPILATION_CACHE": "off"},
    )  # fmt: skip
    assert done.returncode == 2 and "--yes" in done.stderr
    assert cli.main(["runs", "rm"]) == 2 and cli.main(["runs", "compare"]) == 2
    assert (some / "done" / "config.json").exists()


def test_a_long_log_is_read_from_its_end(tmp_path):
    folder = write_run(tmp_path / "long", [0.5] * 20_000)
    assert (folder / "metrics.jsonl").stat().st_size > 2 << 20
    assert runs.read_facts(folder, tmp_path).update == 20_000


def test_names_of_new_pictures(tmp_path):
    usual = tmp_path / "compare.png"
    assert figures.new_file(None, usual) == usual
    usual.touch()
    (tmp_path / "compare-2.png").touch()
    assert figures.new_file(None, usual).name == "compare-3.png"
    assert figures.new_file(tmp_path / "a", usual).name == "a.png"


def test_a_config_that_no_class_fits_is_of_no_kind(tmp_path, capsys):
    write_run(tmp_path / "strange", values={"what": 1, "preset": "none", "run": {"seed": 0}})
    found = listed(tmp_path, capsys)
    assert list(found) == ["strange"] and found["strange"]["kind"] == ""
