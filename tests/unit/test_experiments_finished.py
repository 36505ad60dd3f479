"""Experiments take runs that are there, and refuse those of other settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.finished import finished
from llmrl_jax.core import config as configs
from llmrl_jax.run.config import BaseRunConfig
from llmrl_jax.systems.kalm.config import CollectRun


def test_a_run_of_other_settings_is_refused(tmp_path):
    asked = CollectRun(episodes=12, run=BaseRunConfig(out=str(tmp_path), name="recorded"))
    folder = tmp_path / "recorded"
    assert not finished(folder, asked)
    folder.mkdir()
    configs.save_config(asked, folder / "config.json")
    assert not finished(folder, asked)
    (folder / "summary.json").write_text('{"stopped": "SIGTERM"}')
    assert not finished(folder, asked)
    (folder / "summary.json").write_text('{"episodes": 12}')
    assert finished(folder, replace(asked, run=replace(asked.run, resume=True)))
    with pytest.raises(ValueError, match=r"recorded.*episodes: 12 -> 13"):
        finished(folder, replace(asked, episodes=13))
