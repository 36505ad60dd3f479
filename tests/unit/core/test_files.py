"""What is found after a write, after one that failed, and after one whose process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmrl_jax.core import files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(code: str, cwd: Path) -> None:
    """Run Python that kills itself."""
    head = "import os, signal; from llmrl_jax.core import files; die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", head + code], cwd=cwd, env={**os.environ, "PYTHONPATH": ROOT})
    assert done.returncode == -signal.SIGKILL


ROOT = str(Path(files.__file__).parents[2])


def test_a_file_is_replaced_by_text_or_bytes(tmp_path):
    path = tmp_path / "a.json"
    files.write_whole(path, "first\r\nü\n")
    assert path.read_bytes() == "first\r\nü\n".encode()
    files.write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff" and names(tmp_path) == ["a.json"]


def test_files_that_share_a_stem_have_drafts_of_their_own(tmp_path):
    """`run.json` and `run.csv` are not written under one `run.tmp`, nor twice under one name in one process."""
    with files.new_draft(tmp_path / "run.json") as a, files.new_draft(tmp_path / "run.csv") as b:
        with files.new_draft(tmp_path / "run.json") as c:
            assert len({a, b, c}) == 3 and all(str(os.getpid()) in draft.name for draft in (a, b, c))
            for draft in (a, b, c):
                draft.write_text(draft.name)
        assert (tmp_path / "run.json").read_text() == c.name, "the inner block has ended"
    assert (tmp_path / "run.json").read_text() == a.name and names(tmp_path) == ["run.csv", "run.json"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    files.write_whole(tmp_path / "a", "old")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    with pytest.raises(ZeroDivisionError), files.new_draft(tmp_path / "a") as draft:
        draft.write_text("half")
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), files.replacing(tmp_path / "model") as draft:
        draft.mkdir()
        (draft / "weights").write_text("half")
        1 / 0  # noqa: B018
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "model"):
        pass  # nothing was written
    with pytest.raises(ZeroDivisionError), files.new_folder(tmp_path / "fresh"):
        1 / 0  # noqa: B018
    assert names(tmp_path) == ["a", "model"]
    assert (tmp_path / "a").read_text() == (tmp_path / "model" / "weights").read_text() == "old"


def test_a_folder_is_replaced_and_a_new_one_refuses_to(tmp_path):
    for text in ("one", "two"):
        with files.replacing(tmp_path / "deep" / "model") as draft:
            assert not draft.exists()
            draft.mkdir()
            (draft / text).write_text(text)
    assert names(tmp_path / "deep") == ["model"] and names(tmp_path / "deep" / "model") == ["two"]
    with files.new_folder(tmp_path / "fresh") as draft:
        (draft / "file").write_text("x")
        assert not (tmp_path / "fresh").exists()
    assert names(tmp_path / "fresh") == ["file"]
    with pytest.raises(FileExistsError, match=r"/fresh\b.*exists"):
        with files.new_folder(tmp_path / "fresh"):
            raise AssertionError("the block is not entered")


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    files.write_whole(tmp_path / "a", "old")
    killed("with files.new_draft('a') as draft: draft.write_text('half'); die()", tmp_path)
    killed("with files.replacing('model') as draft: draft.mkdir(); die()", tmp_path)
    assert len(names(tmp_path)) == 3 and (tmp_path / "a").read_text() == "old"
    with files.new_draft(tmp_path / "a") as living:
        living.write_text("living")
        files.write_whole(tmp_path / "a", "new")
        assert living.exists()
        living.write_text("later")
    assert (tmp_path / "a").read_text() == "later"
    with files.replacing(tmp_path / "model") as draft:
        draft.mkdir()
    assert names(tmp_path) == ["a", "model"]


def test_a_folder_whose_replacement_was_cut_short_is_put_back(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    # killed after the old folder made room and before the new one took its place
    code = """
import pathlib
rename = pathlib.Path.rename
def once(self, to):
    rename(self, to)
    die()
pathlib.Path.rename = once
with files.replacing('model') as draft: draft.mkdir()
"""
    killed(code, tmp_path)
    assert not (tmp_path / "model").exists()
    with pytest.raises(ZeroDivisionError), files.replacing(tmp_path / "model"):
        1 / 0  # noqa: B018
    assert names(tmp_path) == ["model"] and (tmp_path / "model" / "weights").read_text() == "old"


def test_lines_are_added(tmp_path):
    path = tmp_path / "log.jsonl"
    files.append_line(path, "one")
    files.append_line(path, "zwö")
    assert path.read_text(encoding="utf-8") == "one\nzwö\n"


def test_everything_reaches_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    """The order of system calls: the contents are synced, then renamed, then the folder's list of names is synced."""
    done = []
    sync, replace, rename = os.fsync, Path.replace, Path.rename

    def path_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split("-")[0]

    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(f"sync {path_of(fd)}"), sync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append(f"to {Path(to).name}"), replace(self, to))[1])
    monkeypatch.setattr(Path, "rename", lambda self, to: (done.append(f"to {Path(to).name}"), rename(self, to))[1])
    folder = tmp_path / "runs"
    files.write_whole(folder / "a", "x")
    assert done == ["sync .a.draft", "to a", "sync runs"]
    done.clear()
    with files.new_folder(folder / "m") as draft:
        (draft / "w").write_text("x")
    assert done == ["sync w", "sync .m.draft", "to m", "sync runs"]
    done.clear()
    files.append_line(folder / "l", "x")
    files.append_line(folder / "l", "y")
    assert done == ["sync l", "sync runs", "sync l"]


def test_a_full_disk_names_the_file_and_the_remedy(tmp_path):
    log = tmp_path / "log.jsonl"
    log.symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        files.append_line(log, "x")
    said = f"{log} could not be written (No space left on device): free some space; --run.resume continues a run"
    assert files.lack_of_space(error.value).startswith(said)
    target = tmp_path / "config.json"
    target.write_text("old")
    with pytest.raises(OSError) as error, files.new_draft(target) as draft:
        draft.symlink_to("/dev/full")
        draft.write_text("x" * 10_000)
    assert files.lack_of_space(error.value).startswith(f"{target} could not be written") and target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "log.jsonl"]
    assert not files.lack_of_space(FileNotFoundError(2, "No such file")) and not files.lack_of_space(ValueError("x"))


def test_what_cannot_be_written_is_known_before_and_nothing_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    files.check_writable(tmp_path / "new" / "deep" / "a.gif", "--gif")
    files.check_writable(tmp_path / "file", "--out")
    files.check_writable(tmp_path, "--out", folder=True)
    files.check_writable(tmp_path / "new", "--out", folder=True)
    for path, how, error, message in (
        (tmp_path, {}, IsADirectoryError, "--out.*a folder"),
        (tmp_path / "file" / "a.gif", {}, NotADirectoryError, r"--out.*a\.gif.*a file"),
        (tmp_path / "file", {"folder": True}, NotADirectoryError, r"--out.*/file\b"),
        (Path("/proc/a.gif"), {}, PermissionError, "/proc"),
    ):
        with pytest.raises(error, match=message):
            files.check_writable(path, "--out", **how)
    assert names(tmp_path) == ["file"]


def test_a_home_folder_that_is_unknown_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.expanded("~/a") == tmp_path / "a" and files.expanded("a/~b") == Path("a/~b")
    for name in ("~nouser-x/a", "~nouser-x"):
        with pytest.raises(ValueError, match=f"'{name}'.*~nouser-x.*./~nouser-x"):
            files.expanded(name)
    with pytest.raises(ValueError, match="'~nouser-x/a'"):
        files.check_writable("~nouser-x/a", "--out")
