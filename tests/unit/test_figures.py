"""The figures of the pages take the runs that they name, and no others."""

from __future__ import annotations

import pytest

from experiments import figures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An experiment whose first run is in the folder itself."""
    monkeypatch.setattr(figures, "read_run", lambda path, kind: path)
    for agent in figures.AGENTS.values():
        for seed in range(figures.SEEDS):
            if (agent, seed) != ("llm", 0):
                (tmp_path / f"{agent}-{seed}").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    return tmp_path


def test_each_agent_has_its_own_runs(folder):
    llm, symbolic, drrn = figures.runs_of(folder)
    assert llm == [folder, folder / "llm-1", folder / "llm-2"]
    assert symbolic == [folder / f"symbolic-{seed}" for seed in range(3)]
    assert drrn == [folder / f"drrn-{seed}" for seed in range(3)]


@pytest.mark.parametrize("missing", ["drrn-1", "llm-2", "symbolic-0"])
def test_a_missing_run_is_named_and_not_replaced(folder, missing):
    (folder / missing).rmdir()
    with pytest.raises(FileNotFoundError, match=f"{missing}.*missing"):
        figures.runs_of(folder)


def test_the_first_run_is_missing_too(folder):
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="llm-0.*missing"):
        figures.runs_of(folder)
