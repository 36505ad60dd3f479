"""What holds of every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.run.folder import holder
from tests.compile_cache import cached_in


@pytest.fixture(scope="session")
def program_cache(tmp_path_factory):
    """A folder for what commands compile."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module", autouse=True)
def compiled_once(program_cache):
    """Commands start the same run again and again: what one compiles serves the next."""
    with cached_in(program_cache):
        yield


@pytest.fixture(autouse=True)
def locked_until_the_summary(monkeypatch):
    """A run's folder stays locked until its last file, the summary, is written."""
    save = configs.save_config

    def save_locked(config, path):
        assert Path(path).name != "summary.json" or holder(Path(path).parent), f"{path} is written without the lock"
        save(config, path)

    monkeypatch.setattr(configs, "save_config", save_locked)
