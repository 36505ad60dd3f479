"""Experiments take runs that are there, and refuse those of other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.finished import complete, finished, same_settings
from llmrl_jax.core import config as configs
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.kalm.config import CollectRun
from llmrl_jax.workflows.tuning import TuneConfig


def test_a_run_of_other_settings_is_refused(tmp_path):
    config = CollectRun(episodes=12, run=BaseRunConfig(out=str(tmp_path), name="recorded"))
    folder = tmp_path / "recorded"
    assert not finished(folder, config)
    folder.mkdir()
    configs.save_config(config, folder / "config.json")
    assert not finished(folder, config)
    (folder / "summary.json").write_text('{"stopped": "SIGTERM"}')
    assert not finished(folder, config)
    (folder / "summary.json").write_text('{"episodes": 12}')
    assert finished(folder, replace(config, run=replace(config.run, resume=True)))
    with pytest.raises(ValueError, match=r"recorded.*episodes: 12 -> 13"):
        finished(folder, replace(config, episodes=13))
    with pytest.raises(ValueError, match=r"other settings: run.seed: 0 -> 3 \(there"):
        finished(folder, replace(config, run=replace(config.run, seed=3)))


def test_a_run_is_begun_then_continued_then_read(tmp_path):
    config = CollectRun(episodes=12, run=BaseRunConfig(out=str(tmp_path), name="recorded"))
    resumes = []

    def stopped_at_first(config: Any) -> None:
        resumes.append(config.run.resume)
        config.run.folder.mkdir(exist_ok=True)
        configs.save_config(config, config.run.folder / "config.json")
        configs.save_config({"stopped": "" if config.run.resume else "SIGTERM"}, config.run.folder / "summary.json")

    with pytest.raises(SystemExit, match="recorded.*stopped"):
        complete(config, stopped_at_first)
    assert [complete(config, stopped_at_first) for _ in range(2)] == [tmp_path / "recorded"] * 2
    assert resumes == [False, True]


def test_a_date_that_is_not_asked_for_is_that_of_the_start(tmp_path):
    config = TuneConfig(model="tiny", data=Path("rows.jsonl"))
    file = tmp_path / "config.json"
    configs.save_config(replace(config, date="2026-11-23"), file)
    assert same_settings(file, config)
    with pytest.raises(ValueError, match='date: "2026-11-23" -> "2026-11-24"'):
        same_settings(file, replace(config, date="2026-11-24"))


def test_a_command_with_other_arguments_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "experiments")
    from experiments import commands

    def run(args: list[str], **_: Any) -> None:
        folder = tmp_path / "runs" / args[args.index("--run.name") + 1]
        folder.mkdir()
        (folder / "summary.json").write_text('{"success": 1.0}')

    monkeypatch.setattr(commands.subprocess, "run", run)
    for _ in range(2):
        assert commands.summary_of(tmp_path / "runs", "seed-0", "glam", "demo") == {"success": 1.0}
    with pytest.raises(ValueError, match="seed-0.*glam demo.*glam demo --run.seed 1"):
        commands.summary_of(tmp_path / "runs", "seed-0", "glam", "demo", "--run.seed", "1")
