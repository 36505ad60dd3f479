"""The table of bad inputs: whatever a user may give by mistake ends in one line that says what to do.

The rows are those of the modules in `tests/cli/bad_input/`, each with `ROWS`, a sequence of `Row`
(`tests/cli/bad_input/row.py` describes the fields). Bounds that stand beside the fields of settings need no row:
`tests/unit/options/test_ranges.py` tries all of them. To add one:

    Row(
        "a seed beyond 64 bits",
        "rl train --run.seed 99999999999999999999",
        r"--run\\.seed is 9+; .* is needed",
    )
    Row(
        "a log of lists",
        "runs compare {cartpole}",
        r"cartpole/metrics\\.jsonl:1 is \\[1\\]",
        files={"cartpole/metrics.jsonl": "[1]"},
    )

Each row is run in this process, in a folder of its own. The command must

* return the row's exit code, which is not 0;
* print exactly one line on stderr, which begins with `error: ` (or one frame of tyro, for a flag that does not parse),
  and nothing of a traceback;
* name there what `error` requires: the value, and the remedy;
* compile no program, except those in `compiles`;
* leave every file as it was, and create none: no folder of a run that never begins.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import re
from pathlib import Path

import jax
import pytest

from llmrl_jax.cli import main as cli
from tests.cli.bad_input.row import PREPARED, Row


def collected() -> list[Row]:
    """The rows of all modules, as parameters of a test."""
    rows = []
    for path in sorted((Path(__file__).parent / "bad_input").glob("*.py")):
        module = importlib.import_module(f"tests.cli.bad_input.{path.stem}")
        rows += [pytest.param(row, id=f"{path.stem}: {row.name}") for row in getattr(module, "ROWS", ())]
    return rows


ROWS = collected()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """`(name) -> folder` of `PREPARED`, made at its first use."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
                made[name] = tmp_path_factory.mktemp("prepared") / name
                PREPARED[name](made[name])
        return made[name]

    return get


@pytest.fixture(scope="module")
def programs():
    """The names of the programs that were compiled, in their order."""
    names: list[str] = []

    def listen(event: str, duration: float, **about: str) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True, scope="module")
def known_groups():
    """The groups of commands are read once, not for every row."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "groups", functools.cache(cli.groups))
        yield


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its size and time; locks, which are opened for writing, and what Python compiles of a
    user's file, without."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) if path.is_file() else (0, 0)
        for path in folder.rglob("*")
        if path.name != ".lock" and "__pycache__" not in path.parts
    }


def lines_of(err: str) -> list[str]:
    """The lines of an error's text; tyro's frame is one line, without its help."""
    if not err.lstrip().startswith("╭"):
        return err.strip().splitlines()
    frame = err.strip().splitlines()
    end = next(i for i, line in enumerate(frame) if line.startswith("╰"))
    inner = [line.strip("│").strip() for line in frame[1:end]]
    told = inner[: next((i for i, line in enumerate(inner) if line.startswith("──")), len(inner))]
    return [" ".join(["error:", *told]), *frame[end + 1 :]]


@pytest.mark.parametrize("row", ROWS)
def test_bad_input_ends_in_one_line(row, tmp_path, prepared, programs, capfd, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # so that nothing changes this process's settings
    monkeypatch.setenv("COLUMNS", "1000")  # of tyro's frame
    monkeypatch.chdir(tmp_path)
    argv = row.made(tmp_path, prepared)
    before = snapshot(tmp_path)
    capfd.readouterr()
    programs.clear()
    code = cli.main(argv)
    out, err = capfd.readouterr()
    lines = lines_of(err)
    assert "Traceback" not in out + err, err
    assert len(lines) == 1 and lines[0].startswith("error: "), err or f"exit code {code} without an error: {out}"
    assert re.search(row.error, lines[0]), f"{lines[0]!r} does not say {row.error!r}"
    assert code == row.code
    compiled = [name for name in programs if not (row.compiles and re.search(row.compiles, name))]
    assert not compiled, f"compiled before the error: {compiled}"
    if not row.writes:
        assert snapshot(tmp_path) == before


def test_rows_are_distinct():
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_a_full_disk_ends_in_one_line(tmp_path, capfd, monkeypatch):
    """In any command: what cannot be written is named, with the remedy; a run's folder that is empty is removed."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["props", "run", "--tasks", "nim", "--run.out", str(tmp_path / "runs"), "--run.name", "a"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/runs/a/config.json could not be written (No space left on device): ")
    assert not list(tmp_path.iterdir())
