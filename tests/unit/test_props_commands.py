"""`llmrl props`, as a user types it, with the scripted adviser."""

from __future__ import annotations

import json

import pytest

from llmrl_jax.run.cli import main
from llmrl_jax.run.commands._props_table import table


SMALL = ["--episodes", "2", "--final-episodes", "3", "--warmup", "1", "--max-steps", "20"]


def test_a_run_its_pictures_and_its_resumption(tmp_path, capsys):
    args = ["props", "run", "--tasks", "nim", "cartpole", "--seeds", "2", "--iterations", "3", *SMALL]
    assert main([*args, "--out", str(tmp_path), "--name", "one", "--video"]) == 0
    said = capsys.readouterr().out
    assert "4 searches by props (scripted-adviser/PolicyAdviser)" in said and "nim, seed 1: best" in said
    folder = tmp_path / "one"
    summary = json.loads((folder / "summary.json").read_text())
    assert [s["task"] for s in summary["searches"]] == ["nim", "nim", "cartpole", "cartpole"]
    assert all(s["candidates"] == 4 and s["episodes"] == 8 for s in summary["searches"])
    for file in ("curves.png", "nim-0/parameters.png", "nim-0/episode.gif", "cartpole-1/log.jsonl", "chat.jsonl"):
        assert (folder / file).stat().st_size > 0
    assert main(["props", "run", "--name", "one", "--out", str(tmp_path), "--resume"]) == 0
    again = json.loads((folder / "summary.json").read_text())
    assert again["searches"] == summary["searches"]
    assert main([*args, "--out", str(tmp_path), "--name", "one", "--resume", "--iterations", "4"]) != 0
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
    args = ["props", "run", "--config", str(file), "--out", str(tmp_path)]
    assert main(args) != 0
    assert "needs a server: name one with --chat.base-url" in capsys.readouterr().err
    assert main([*args, "--chat.model", "scripted"]) == 0
    summary = json.loads((tmp_path / "cartpole_props" / "summary.json").read_text())
    assert summary["searches"][0]["candidates"] == 4 and summary["searches"][0]["episodes"] == 2 + 4
    assert "the published schema `release`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tasks", "cartpol"], "no task 'cartpol'; did you mean 'cartpole'"),
        (["--config", "nowhere.yaml"], "there is no configuration nowhere.yaml"),
        (["--chat.base-url", "http://127.0.0.1:1/v1"], "is in this process"),
        (["--chat.template", "plain"], "is for a local: model, not 'scripted'"),
        (["--seeds", "0"], "seeds is 0"),
    ],
)
def test_bad_input_is_named(args, message, tmp_path, capsys):
    assert main(["props", "run", *args, "--out", str(tmp_path)]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_table_goes_on_where_it_stopped(tmp_path, capsys):
    options = {"tasks": ("nim",), "seeds": 2, "budget": 200, "final_episodes": 4, "out": tmp_path, "work": tmp_path}
    table(methods=("random_search",), **options)
    table(methods=("random_search", "scripted"), **options)
    assert capsys.readouterr().out.count("nim, random_search") == 1
    page = (tmp_path / "props-table.md").read_text()
    assert "| Nim | 11 | 1 | A2C 0.58 +- 0.10 | 0.33 +- 0.29 | 0.97 +- 0.09 |" in page
    rows = json.loads((tmp_path / "props-table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["random_search", "scripted"] and len(rows[0]["finals"]) == 2
    with pytest.raises(ValueError, match="no method 'cmaes'"):
        table(methods=("cmaes",), **options)
