"""What holds of every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.run.folder import holder


@pytest.fixture(autouse=True)
def locked_until_the_summary(monkeypatch):
    """A run's folder stays locked until its last file, the summary, is written."""
    save = configs.save_config

    def save_locked(config, path):
        assert Path(path).name != "summary.json" or holder(Path(path).parent), f"{path} is written without the lock"
        save(config, path)

    monkeypatch.setattr(configs, "save_config", save_locked)
