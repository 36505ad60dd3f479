"""What a resumed run finds in its folder: only names and text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmrl_jax.run import metrics
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import Status, read_status, saved_updates, start_of, write_status


def line(update: int, updates: int = 1, kind: str = "train") -> str:
    counted = {"updates": updates} if kind == "train" else {}
    return json.dumps({"kind": kind, "update": update, **counted, "steps": 16 * update}) + "\n"


WHOLE = [line(0, kind="eval"), line(2, 2), line(4, 2), line(4, kind="eval"), line(5)]


def run_of(folder: Path, lines: list[str] | None, *updates: int, status: Status | None = None) -> Path:
    """A run's folder with checkpoints of these updates."""
    folder.mkdir(exist_ok=True)
    for update in updates:
        (folder / "checkpoints" / str(update)).mkdir(parents=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir(exist_ok=True)  # of a process that was killed
    if lines is not None:
        (folder / "metrics.jsonl").write_text("".join(lines))
    if status is not None:
        write_status(folder, status)
    return folder


def resume(folder: Path, **options) -> int:
    return start_of(folder, RunConfig(**{"resume": str(folder), **options}))[0]


def test_a_whole_run_continues_from_its_newest_checkpoint(tmp_path):
    folder = run_of(tmp_path / "a", [*WHOLE, line(6), '{"kind": "tra'], 2, 4, 5)
    assert saved_updates(folder) == [2, 4, 5]
    assert resume(folder) == 5 and resume(folder, resume_from=2) == 2
    assert start_of(folder, RunConfig("a", str(tmp_path))) == (0, ""), "a new run does not look"
    assert start_of(folder, RunConfig(resume=str(folder))) == (5, "")
    with pytest.raises(FileNotFoundError, match="--run.resume-from.*3.*2, 4, 5"):
        resume(folder, resume_from=3)


@pytest.mark.parametrize(
    ("lines", "wrong", "back"),
    [
        (None, "metrics.jsonl.*missing", None),
        ([], r"metrics\.jsonl ends.*update 0", None),
        (WHOLE[:3], r"metrics\.jsonl ends.*update 4", 4),
        ([*WHOLE[:3], line(5)[:-9]], r"metrics\.jsonl ends.*update 4", 4),
        ([WHOLE[1], line(5)], r"metrics\.jsonl lacks.*3 to 4.*line 2", 2),
        ([WHOLE[2], line(5)], "metrics.jsonl.*1.*2.*1", None),
        ([WHOLE[1], "{\n", line(4, 2), line(5)], r"metrics.jsonl:2.*\('{'\)", 2),
        ([WHOLE[1], "[1]\n", line(4, 2), line(5)], r"metrics.jsonl:2.*\('\[1\]'\)", 2),
        ([WHOLE[1], "\0\0\n", line(4, 2), line(5)], "metrics.jsonl:2.*damaged", 2),
        ([WHOLE[1], '{"loss": 1}\n', line(4, 2), line(5)], "metrics.jsonl:2.*damaged", 2),
        ([WHOLE[1], line(4, 2), line(4, 2), line(5)], "metrics.jsonl:3.*4", 4),
        ([WHOLE[1], line(4).replace('"updates": 1, ', "")], r"metrics\.jsonl:2.*continue.*update 2", 2),
    ],
)
def test_a_log_with_a_gap_is_refused_by_line_unless_it_is_accepted(lines, wrong, back, tmp_path):
    folder = run_of(tmp_path / "a", lines, 2, 4, 5)
    with pytest.raises(ValueError, match=f"{wrong}.*5") as error:
        resume(folder)
    offered = f"continue from an earlier checkpoint with --run.resume-from {back}"
    assert (offered in str(error.value)) == (back is not None) and "--run.accept-gaps" in str(error.value)
    start, note = start_of(folder, RunConfig(resume=str(folder), accept_gaps=True))
    assert start == 5 and re.search(f"{wrong}.*; this gap was accepted$", note)
    if back is not None:
        assert resume(folder, resume_from=back) == back


def test_damage_after_the_checkpoint_does_not_matter(tmp_path):
    """Those lines are dropped."""
    assert resume(run_of(tmp_path / "a", [*WHOLE, line(6), "{\n", line(9)], 5)) == 5


def test_lost_checkpoints_are_not_begun_again(tmp_path):
    """A run that was never saved begins again; one whose checkpoints are gone would lose its log."""
    lost = run_of(tmp_path / "lost", WHOLE)
    (lost / "checkpoints" / "9.orbax-checkpoint-tmp").rmdir()
    (lost / "checkpoints").rmdir()
    emptied = run_of(tmp_path / "emptied", WHOLE, status=Status(5, 9, "stopped", "SIGTERM", saved=5))
    for folder in (lost, emptied):
        with pytest.raises(FileNotFoundError, match="although.*update 5"):
            resume(folder)
    killed = run_of(tmp_path / "killed", WHOLE, status=Status(0, 9))
    assert start_of(killed, RunConfig(resume=str(killed))) == (
        0,
        f"{killed} was never saved: it begins again at update 0",
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    assert resume(begun) == 0


def test_a_status_that_is_none(tmp_path):
    write_status(tmp_path, Status(3, 9, saved=2))
    assert read_status(tmp_path) == Status(3, 9, saved=2)
    for text in ('{"update": "a", "updates": [1]}', "[1]", '{"update": 3, "updates": 9, "ended": 1}', "\0", ""):
        (tmp_path / "status.json").write_text(text)
        assert read_status(tmp_path) is None
    (tmp_path / "status.json").write_text('{"update": 3, "updates": 9, "ended": "failed", "why": "x"}')
    assert read_status(tmp_path).saved == -1, "of an earlier version"


def test_lines_are_read_with_the_numbers_that_are_needed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(WHOLE) + '{"kind": "tra')
    assert [x["update"] for x in metrics.read(path, needs=("steps",))] == [0, 2, 4, 4, 5]
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2.*kind, update, seconds"):
        metrics.read(path, needs=("seconds",))
    for text in ("3", "[1]", "null", '{"kind": 1, "update": 1}', '{"kind": "a", "update": true}', "\xff"):
        path.write_bytes(WHOLE[0].encode() + text.encode("latin-1") + b"\n")
        with pytest.raises(ValueError, match="metrics.jsonl:2 is "):
            metrics.read(path)
        assert list(metrics.newest(path)) == ["eval"] and list(metrics.last(path, 9)) == ["eval"]
    with pytest.raises(IsADirectoryError, match="cannot be read.*metrics"):
        metrics.read(tmp_path)
