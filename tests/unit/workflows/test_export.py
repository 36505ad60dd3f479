"""The language model of a run, as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmrl_jax.core.config import save_config
from llmrl_jax.systems.agent.config import CloneRun, demo_config
from llmrl_jax.workflows import export


@pytest.mark.parametrize(("config", "written"), [(demo_config(), "policy"), (CloneRun(), "model")])
def test_the_policy_counts_and_not_the_model_that_it_began_as(config, written, tmp_path, monkeypatch):
    """The agent's demo imitates first: `model/` in its folder is from before RL."""
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    save_config(replace(config, run=replace(config.run, out=str(tmp_path), name="run")), folder / "config.json")
    monkeypatch.setattr(export, "_write_policy", lambda *args: Path("policy"))
    monkeypatch.setattr(export.lm, "convert", lambda source, *args, **options: Path(source.name))
    assert export.write_model(folder, tmp_path / "out") == Path(written)
