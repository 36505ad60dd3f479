"""The folder of a run: what a new run finds there, its lock, and seeds of earlier versions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.core import config as configs
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.run.folder import LOCK, check_folder, held, holder, open_folder
from llmrl_jax.systems.props.config import PropsRun


def run_config(tmp_path, **options) -> RunConfig:
    return RunConfig("a", str(tmp_path), **options)


def test_a_new_run_does_not_take_over_what_another_left(tmp_path):
    folder = tmp_path / "a"
    (folder / "checkpoints" / "2.orbax-checkpoint-tmp").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    check_folder(run_config(tmp_path))  # a run that was refused, or killed before its first line
    for update in (10, 4):
        (folder / "checkpoints" / str(update)).mkdir()
    remedy = f"config.json.*--run.resume {folder}.*--run.name"
    with pytest.raises(FileExistsError, match=f"4, 10.*{remedy}"):
        check_folder(run_config(tmp_path))
    (folder / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match="4, 10.*metrics.jsonl"):
        open_folder(BaseRunConfig("a", str(tmp_path)))
    (folder / "config.json").write_text("{}")
    check_folder(run_config(tmp_path, resume=True, accept_gaps=True))


def test_a_lock_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / LOCK).write_text("process 1 on there")
    real = Path.open

    def refused(self, *args, **how):
        if self.name == LOCK:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **how)

    monkeypatch.setattr(Path, "open", refused)
    told = rf"{LOCK}.*Permission denied.*--run.out"
    with pytest.raises(PermissionError, match=told), held(tmp_path):
        pass
    assert holder(tmp_path) == "", "a list of runs goes on"


@pytest.mark.parametrize("seed", [20261123120000, -1, 2**63 - 1])
def test_a_saved_seed_that_a_new_run_cannot_have(seed, tmp_path):
    """jax keeps 32 bits of it; runs of earlier versions have such seeds, and keep them."""
    began = PropsRun(seeds=3, run=BaseRunConfig("a", str(tmp_path), seed))
    with pytest.raises(ValueError, match=f"--run.seed.*{seed}.*0.*4294967295"):
        check_folder(began.run)
    configs.save_config(began, tmp_path / "a" / "config.json")
    assert configs.load_config(PropsRun, tmp_path / "a" / "config.json") == began
    check_folder(replace(began.run, resume=True))
    (tmp_path / "a" / "config.json").write_text(json.dumps({"run": {"seed": 2**63}}))
    with pytest.raises(ValueError, match="--run.seed.*9223372036854775808.*0.*4294967295"):
        configs.load_config(PropsRun, tmp_path / "a" / "config.json")


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch, capsys):
    """As in a container; commands go on."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("LLMRL_COMPILATION_CACHE", "~nouser-x/cache")
    cli._default_compilation_cache()
    assert capsys.readouterr().err.startswith("warning: no compilation cache: the path '~nouser-x/cache' begins with")


def test_a_budget_without_an_end(tmp_path):
    configs.save_config(run_config(tmp_path, max_seconds=float("inf")), tmp_path / "config.json")
    assert configs.load_config(RunConfig, tmp_path / "config.json").max_seconds == float("inf")
