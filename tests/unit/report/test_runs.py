"""Lists of runs, some of which are odd, and where their figures go."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrl_jax.report import figures, runs
from llmrl_jax.run import metrics


@pytest.mark.parametrize("steps", ["null", '"many"', "Infinity", "[1]", "9" * 400, "true"])
def test_a_number_that_is_none_does_not_end_a_list(tmp_path, steps):
    for name, value in (("odd", steps), ("whole", "48")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        line = f'{{"kind": "train", "update": 3, "loss": {value}, "steps": {value}}}\n'
        (tmp_path / name / "metrics.jsonl").write_text(line)
    odd, whole = runs.list_runs(tmp_path)
    assert (odd.steps, odd.update, whole.steps) == (0, 3, 48)
    assert "loss 48" in runs.runs_table([odd, whole])


def test_a_run_may_have_the_name_of_a_part_of_one(tmp_path):
    for name in ("model", "model/checkpoints", "group/prior"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    assert [run.name for run in runs.list_runs(tmp_path)] == ["group/prior", "model"]


def test_files_that_cannot_be_read_do_not_end_a_list(tmp_path, monkeypatch):
    def refused(path, size=0):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    (tmp_path / "a" / "summary.json").write_text("[" * 100_000)
    (tmp_path / "a" / "status.json").write_text("[" * 100_000)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.json").write_text("[" * 100_000)
    monkeypatch.setattr(metrics, "newest", refused)
    (only,) = runs.list_runs(tmp_path)
    assert (only.name, only.update, only.state) == ("a", 0, "stopped")


def test_the_usual_place_of_a_figure_is_checked_too(tmp_path):
    assert figures.new_file(None, tmp_path / "compare.png") == tmp_path / "compare.png"
    (tmp_path / "compare.png").write_text("")
    assert figures.new_file(None, tmp_path / "compare.png") == tmp_path / "compare-2.png"
    with pytest.raises(PermissionError, match="--out.*/proc/compare.png"):
        figures.new_file(None, Path("/proc/compare.png"))
    with pytest.raises(ValueError, match="'~nouser-x/a.png'.*~nouser-x.*folder"):
        figures.new_file(Path("~nouser-x/a.png"), tmp_path / "compare.png")
