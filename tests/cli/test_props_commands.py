"""`llmrl props`, as a user types it, with the scripted adviser."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from llmrl_jax.cli.main import main
from llmrl_jax.core.config import load_config, to_json
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.run.folder import held
from llmrl_jax.systems.props import table as props_table, train as props
from llmrl_jax.systems.props.config import FinetuneRun, PropsRun, TableConfig
from llmrl_jax.workflows.chat_model import make_chat
from tests.chat_server import silent
from tests.paths import ROOT


pytest_plugins = ("tests.chat_server",)


def table(out, work, **options):
    """`llmrl props table` with a page in `out` and the searches in `work`; resumes what is there."""
    run = BaseRunConfig(work.name, str(work.parent), resume=(work / "config.json").exists())
    return props_table.make_table(TableConfig(page=out, run=run, **options))


SMALL = ["--episodes", "2", "--final-episodes", "3", "--warmup", "1", "--max-steps", "20"]


def test_a_run_its_pictures_and_its_resumption(tmp_path, capsys, monkeypatch):
    args = ["props", "run", "--tasks", "nim", "cartpole", "--seeds", "2", "--iterations", "3", *SMALL]
    assert main([*args, "--run.out", str(tmp_path), "--run.name", "one", "--video"]) == 0
    said = capsys.readouterr().out
    assert "4 searches by props (scripted-adviser/PolicyAdviser)" in said and "nim, seed 1: best" in said
    folder = tmp_path / "one"
    summary = json.loads((folder / "summary.json").read_text())
    assert [s["task"] for s in summary["searches"]] == ["nim", "nim", "cartpole", "cartpole"]
    assert all(s["candidates"] == 4 and s["episodes"] == 8 for s in summary["searches"])
    # nim pays -1, 0 or 1; cartpole is cut off after 20 steps, and random actions keep it up for a while
    chance = [s["random"] for s in summary["searches"]]
    assert all(-1 <= x <= 1 for x in chance[:2]) and all(8 <= x <= 20 for x in chance[2:])
    table = next(line for line in said.splitlines() if line.startswith("cartpole ") and "+-" in line)
    assert f"{chance[2]:.2f} +- {summary['searches'][2]['random_standard_error']:.2f}" in table
    for file in ("curves.png", "nim-0/parameters.png", "nim-0/episode.gif", "cartpole-1/log.jsonl", "chat.jsonl"):
        assert (folder / file).stat().st_size > 0
    with monkeypatch.context() as patched:  # what is finished is not judged once more
        patched.setattr(props.Study, "judge", lambda self: pytest.fail("judged"))
        assert main(["props", "run", "--run.name", "one", "--run.out", str(tmp_path), "--run.resume"]) == 0
    again = json.loads((folder / "summary.json").read_text())
    assert again["searches"] == summary["searches"]
    assert main([*args, "--run.out", str(tmp_path), "--run.name", "one", "--run.resume", "--iterations", "4"]) != 0
    assert "other options" in capsys.readouterr().err


def test_a_published_file_runs_unchanged(tmp_path, capsys):
    file = tmp_path / "cartpole.yaml"
    file.write_text(
        "task: cont_space_llm_num_optim\nnum_episodes: 2\ngym_env_name: CartPole-v1\nrender_mode: null\n"
        "logdir: logs/cartpole_props\ndim_actions: 2\ndim_states: 4\nmax_traj_count: 1000\nmax_traj_length: 30\n"
        "template_dir: agent/policy/templates\nllm_si_template_name: num_optim.j2\nllm_model_name: gpt-4o\n"
        "llm_output_conversion_template_name: num_optim.j2\nnum_evaluation_episodes: 2\nwarmup_episodes: 2\n"
        "warmup_dir: null\nbias: true\noptimum: 500\nsearch_step_size: 1.0\n"
    )
    args = ["props", "run", "--config", str(file), "--run.out", str(tmp_path)]
    assert main(args) != 0
    assert "--chat.base-url" in capsys.readouterr().err
    assert main([*args, "--chat.model", "scripted"]) == 0
    summary = json.loads((tmp_path / "cartpole_props" / "summary.json").read_text())
    assert summary["searches"][0]["candidates"] == 4 and summary["searches"][0]["episodes"] == 2 + 4
    assert "the published schema `release`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tasks", "cartpol"], "'cartpol'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--chat.base-url", "http://127.0.0.1:1/v1"], "this process"),
        (["--chat.template", "plain"], "'scripted'"),
        (["--seeds", "0"], "seeds is 0"),
    ],
)
def test_bad_input_is_named(args, message, tmp_path, capsys):
    assert main(["props", "run", *args, "--run.out", str(tmp_path)]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_page_of_a_table_has_every_task_that_was_measured(tmp_path):
    row = {"method": "ars", "seeds": 1, "budget": 200, "final_episodes": 4, "final": -3.0, "standard_error": None}
    names = ("pendulum", "frozen_lake?map_name=8x8", "nim")
    (tmp_path / "props-table.json").write_text(json.dumps({"rows": [{**row, "task": name} for name in names]}))
    table(tmp_path, tmp_path, tasks=("pendulum",), methods=("ars",), seeds=1, budget=200, final_episodes=4)
    *_, nim, pendulum, lake = (tmp_path / "props-table.md").read_text().splitlines()
    assert nim == "| Nim | 11 | 1 | A2C 0.58 +- 0.10 | 0.33 +- 0.29 | 0.97 +- 0.09 | -3.00 | 1, 200, 4 |"
    assert pendulum == "| Pendulum | 4 |  |  |  |  | -3.00 | 1, 200, 4 |"
    assert lake == "| Frozen Lake (map_name=8x8) | 64 |  |  |  |  | -3.00 | 1, 200, 4 |"


@pytest.mark.slow
def test_a_table_goes_on_where_it_stopped(tmp_path, capsys):
    options = {"tasks": ("nim",), "seeds": 2, "budget": 200, "final_episodes": 4, "out": tmp_path, "work": tmp_path}
    table(methods=("random_search",), **options)
    table(methods=("random_search", "scripted"), **options)
    assert capsys.readouterr().out.count("nim, random_search") == 1
    page = (tmp_path / "props-table.md").read_text()
    assert "| Nim | 11 | 1 | A2C 0.58 +- 0.10 | 0.33 +- 0.29 | 0.97 +- 0.09 |" in page
    (tmp_path / "props-table.md").unlink()
    table(methods=("random_search", "scripted"), **options)  # nothing is left but the page
    assert "measured already" in capsys.readouterr().out and (tmp_path / "props-table.md").read_text() == page
    rows = json.loads((tmp_path / "props-table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["random_search", "scripted"] and len(rows[0]["finals"]) == 2
    with pytest.raises(ValueError, match="'cmaes'"):
        table(methods=("cmaes",), **options)
    with held(tmp_path), ThreadPoolExecutor(1) as pool, pytest.raises(BlockingIOError, match=r"process \d+"):
        pool.submit(table, methods=("scripted",), again=True, **options).result()  # another table in the same place
    assert (tmp_path / "nim-200-0" / "log.jsonl").exists()


def test_runs_from_before_version_1_are_read(tmp_path):
    """`name`, `out`, `seed` and `resume` stood by themselves then, beside the file that the settings came from."""
    values = to_json(PropsRun(tasks=("nim",), seeds=2, run=BaseRunConfig("one", str(tmp_path), 7)))
    run = values.pop("run")
    old = {**values, **run, "config": "cartpole.yaml", "resume": False}
    (tmp_path / "config.json").write_text(json.dumps(old))
    found = load_config(PropsRun, tmp_path / "config.json")
    assert found == PropsRun(tasks=("nim",), seeds=2, run=BaseRunConfig("one", str(tmp_path), 7))
    old = load_config(FinetuneRun, ROOT / "experiments" / "results" / "props_finetune" / "config.json")
    assert old.data.tasks == ("mountain_car_continuous",) and old.grpo.group == 8


@pytest.mark.slow
def test_a_budget_is_the_whole_run_s(tmp_path, capsys):
    args = ["props", "run", "--tasks", "nim", "--iterations", "6", *SMALL]
    args += ["--run.out", str(tmp_path), "--run.name", "one"]
    assert main([*args, "--chat.max-calls", "2"]) == 1
    assert "2 of 2 calls are spent" in capsys.readouterr().out
    again = ["props", "run", "--run.out", str(tmp_path), "--run.name", "one", "--run.resume"]
    assert main([*again, "--chat.max-calls", "3"]) == 1  # one more, and not three
    assert "3 of 3 calls are spent" in capsys.readouterr().out
    assert main([*again, "--chat.max-calls", "0"]) == 0
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["spent"]["calls"] == 6


@pytest.mark.slow
def test_a_search_that_fails_leaves_the_others_their_results(tmp_path, capsys):
    args = ["props", "run", "--tasks", "nim", "navigation", "--iterations", "2", *SMALL, "--run.out", str(tmp_path)]
    assert main([*args, "--run.name", "two", "--history.tokens", "120"]) == 1
    said = capsys.readouterr().out
    assert "navigation, seed 0: stopped: ValueError" in said and "nim, seed 0: best" in said
    found = {r["task"]: r for r in json.loads((tmp_path / "two" / "summary.json").read_text())["searches"]}
    assert not found["nim"]["stopped"] and "tokens" in found["navigation"]["stopped"]
    assert "Traceback" in (tmp_path / "two" / "navigation-0" / "error.txt").read_text()


def test_a_numeric_method_asks_nobody(tmp_path, capsys):
    args = ["props", "run", "--tasks", "nim", "--method", "ars", "--iterations", "10", "--run.out", str(tmp_path)]
    args += ["--episodes", "2", "--final-episodes", "3"]
    assert main([*args, "--run.name", "one", "--chat.model", "local:nowhere"]) == 0
    assert "note: ars asks no model, so local:nowhere is not asked" in capsys.readouterr().out


def test_a_video_that_cannot_be_drawn_costs_nothing_else(tmp_path, capsys, monkeypatch):
    def broken(*args):
        raise RuntimeError("MuJoCo cannot draw here: no OpenGL context")

    monkeypatch.setattr("llmrl_jax.systems.props.study.EpisodeRecorder.play", broken)
    args = ["props", "run", "--tasks", "nim", "--iterations", "2", *SMALL]
    args += ["--run.out", str(tmp_path), "--run.name", "one"]
    assert main([*args, "--video"]) == 1
    assert "nim has no video: MuJoCo cannot draw here" in capsys.readouterr().out
    assert (tmp_path / "one" / "summary.json").exists() and (tmp_path / "one" / "curves.png").exists()


@pytest.mark.slow
def test_a_numeric_search_goes_on_to_the_bit(tmp_path, capsys, monkeypatch):
    options = {"tasks": ("nim",), "methods": ("ars",), "seeds": 2, "budget": 680, "final_episodes": 4}
    table(**options, out=tmp_path / "whole", work=tmp_path / "whole")
    cut = {**options, "out": tmp_path / "cut", "work": tmp_path / "cut"}
    with monkeypatch.context() as patched:
        train = props_table.run_training
        patched.setattr(
            props_table, "run_training", lambda a, run, **more: train(a, replace(run, max_seconds=1e-9), **more)
        )
        table(**cut)
        assert f"stopped by time budget; continue with --run.resume {tmp_path}/cut" in capsys.readouterr().out
        assert not (tmp_path / "cut" / "props-table.json").exists()
    table(**cut)
    rows = [json.loads((tmp_path / name / "props-table.json").read_text())["rows"][0] for name in ("whole", "cut")]
    lines = (tmp_path / "cut" / "nim-680-ars-2" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4 and json.loads(lines[0])["update"] == 1
    for name in ("final", "finals", "best", "steps"):
        assert rows[0][name] == rows[1][name]


def test_a_signal_leaves_unfinished_searches_unjudged(tmp_path, capsys, monkeypatch):
    """A new program for a thousand episodes of each would outlast what SLURM leaves; and a job goes on though one of
    its searches had ended early."""
    monkeypatch.setattr(props.StopRequest, "name", "SIGTERM")
    monkeypatch.setattr(props.Study, "judge", lambda self: pytest.fail("judged"))
    args = ["props", "run", "--tasks", "nim", "--seeds", "2", "--iterations", "3", *SMALL, "--run.out", str(tmp_path)]
    monkeypatch.setattr(props.Study, "finished", property(lambda self: False))
    assert main([*args, "--run.name", "one"]) == 0
    assert f"2 searches are not finished; continue them with --run.resume {tmp_path}/one" in capsys.readouterr().out
    found = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert found["stopped"] == "SIGTERM" and [r["final"] for r in found["searches"]] == [None, None]


def test_a_second_interrupt_waits_for_no_answer(server, tmp_path, capsys):
    server.always = silent
    args = ["props", "run", "--tasks", "nim", "--seeds", "3", "--workers", "2", *SMALL, "--run.out", str(tmp_path)]
    args += [
        "--run.name",
        "one",
        "--chat.model",
        "tiny",
        "--chat.base-url",
        f"http://127.0.0.1:{server.server_port}/v1",
    ]

    def interrupt():
        while len(server.seen) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = main(args)
    thread.join()
    assert code == 130 and "interrupted" in capsys.readouterr().err
    assert len(server.seen) == 2  # asked by two searches, and not once more
    assert [(tmp_path / "one" / f"nim-{seed}" / "result.json").exists() for seed in range(3)] == [False] * 3
    assert len((tmp_path / "one" / "nim-0" / "log.jsonl").read_text().splitlines()) == 1  # its warm-up


def test_a_job_goes_on_though_one_search_had_ended_early(tmp_path):
    results = [{"stopped": "no reply could be read", "finished": True}, {"stopped": "", "finished": False}]
    shown = {"task": "nim", "seed": 0, "value": 0.0, "final": None, "episodes": 0, "steps": 0}
    chat = make_chat(props.ChatConfig(), props.PolicyAdviser(), tmp_path)
    for stopped, code in (("SIGTERM", 0), ("", 1)):
        with held(tmp_path):
            assert props.finish(tmp_path, PropsRun(), [], [shown | r for r in results], chat, stopped) == code


@pytest.mark.slow
def test_a_table_measures_anew_and_knows_what_it_measured(tmp_path, capsys, monkeypatch):
    options = {"tasks": ("nim",), "seeds": 1, "budget": 200, "out": tmp_path, "work": tmp_path}
    table(methods=("ars", "scripted"), final_episodes=4, **options)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "+-" not in lines[0] and "+-" not in lines[1]  # one seed has no spread
    logs = [tmp_path / "nim-200-ars-1" / "metrics.jsonl", tmp_path / "nim-200-0" / "log.jsonl"]
    before = [log.stat().st_mtime_ns for log in logs]
    table(methods=("ars", "scripted"), final_episodes=4, again=True, **options)
    assert all(log.stat().st_mtime_ns != was for log, was in zip(logs, before))
    with monkeypatch.context() as patched:  # stopped in it, it goes on without --again, and measures what is left
        patched.setattr(props_table, "_measure", lambda *args: None)
        table(methods=("ars", "scripted"), final_episodes=4, again=True, **options)
    assert f"continue with --run.resume {tmp_path} (without --again)" in capsys.readouterr().out
    assert not json.loads((tmp_path / "props-table.json").read_text())["rows"] and not logs[1].exists()
    table(methods=("ars", "scripted"), final_episodes=4, **options)
    table(methods=("ars",), final_episodes=8, **options)
    rows = json.loads((tmp_path / "props-table.json").read_text())["rows"]
    assert {row["method"]: row["final_episodes"] for row in rows} == {"scripted": 4, "ars": 8}
    assert "| 1, 200, 4; 1, 200, 8 |" in (tmp_path / "props-table.md").read_text()
