"""A toy algorithm, a toy world and a toy system, added to a copy of the packages as the table in `docs/architecture.md`
says, are found and run by the command line, and a toy policy from Python. Nothing else of the copy is edited."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


ADDITIONS = Path(__file__).parent / "additions"
REGISTER = 'from envs_jax.registry import register\n\n\nregister("TwoDoors-v0", "envs_jax.doors.env:TwoDoors")\n'
LINE = '    "reinforce": "llmrl_jax.rl.reinforce",\n'

RUN = """
import contextlib, io, json, sys
from llmrl_jax.cli.main import main
outcomes = []
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    outcomes.append([code, out.getvalue(), err.getvalue()])
from policy import learned_return
outcomes.append([0, str(learned_return()), ""])
print(json.dumps(outcomes))
"""

LINES = [
    [],
    ["doors", "--help"],
    ["doors", "open", "--help"],
    ["envs", "list", "TwoDoors"],
    ["doors", "open", "--action", "1", "--run.name", "first"],
    ["doors", "train", "--run.name", "third", "--run.progress", "off"],
    ["eval", "runs/third"],
    ["play", "runs/third"],
    ["rl", "train", "--algo", "reinforce", "--env", "TwoDoors-v0", "--steps", "8e3", "--run.name", "second"]
    + ["--run.progress", "off", "--run.log-every", "1"],
    ["rl", "train", "--algo", "dqn", "--env", "TwoDoors-v0", "--print-config"],
]


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """A copy of the packages with three additions."""
    folder = tmp_path_factory.mktemp("house")
    for package in ("envs_jax", "llmrl_jax"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    # an algorithm: a file in rl/, and a line of the registry
    shutil.copy(ADDITIONS / "reinforce.py", folder / "llmrl_jax" / "rl")
    registry = folder / "llmrl_jax" / "rl" / "registry.py"
    text = registry.read_text()
    assert text.count('    "ppo": ') == 1
    registry.write_text(text.replace('    "ppo": ', LINE + '    "ppo": '))
    # a world: a folder
    (folder / "envs_jax" / "doors").mkdir()
    (folder / "envs_jax" / "doors" / "__init__.py").write_text(f'"""Doors."""\n\n{REGISTER}')
    shutil.copy(ADDITIONS / "world.py", folder / "envs_jax" / "doors" / "env.py")
    # a system: a folder
    system = folder / "llmrl_jax" / "systems" / "doors"
    shutil.copytree(ADDITIONS / "doors", system, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def added() -> dict[str, tuple[int, int]]:
    """The files that `house` adds, and the lines of others that it edits."""
    system = [path for path in (ADDITIONS / "doors").iterdir() if path.suffix == ".py"]
    return {"algorithm": (1, LINE.count("\n")), "environment": (2, 0), "system": (len(system), 0), "policy": (1, 0)}


def test_the_page_counts_what_is_added():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| an? (\w+) \| (\d+) files?(?:, (\d+) lines?)?:", page, re.M)
    assert {name: (int(files), int(lines or 0)) for name, files, lines in rows} == added()


@pytest.fixture(scope="module")
def outcomes(house, tmp_path_factory) -> dict[str, tuple[int, str, str]]:
    """Exit codes and output of the lines of `LINES`, all run by one process."""
    folder = tmp_path_factory.mktemp("runs")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(house), str(ADDITIONS)])}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(LINES)], capture_output=True, text=True, env=env, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for line, (code, _, err) in zip(LINES[1:], results[1:]):
        assert code == 0, (line, err)
    outcomes = {" ".join(line[:2]) + (" " + line[-1] if line else ""): tuple(x) for line, x in zip(LINES, results)}
    outcomes["folder"], outcomes["policy"] = (0, str(folder), ""), tuple(results[-1])
    return outcomes


@pytest.mark.slow
def test_a_system_is_one_folder(outcomes):
    code, _, err = outcomes[""]
    assert code == 2 and "doors" in err and "A toy system: it opens doors." in err
    assert "Open a door for a whole episode." in outcomes["doors --help --help"][1]
    assert "--action" in outcomes["doors open --help"][1]
    assert outcomes["doors open first"][1].strip() == "the return is 5"
    at_end, again = outcomes["doors train off"][1], outcomes["eval runs/third runs/third"][1]
    assert "greedy    return 5.00" in at_end
    assert [line in again for line in at_end.splitlines() if line.startswith("greedy")] == [True]
    assert "5 steps, return 5" in outcomes["play runs/third runs/third"][1]


def test_a_world_is_one_folder(outcomes):
    assert "TwoDoors-v0" in outcomes["envs list TwoDoors"][1]


def test_an_algorithm_is_one_file_and_a_line(outcomes):
    folder = Path(outcomes["folder"][1]) / "runs" / "second"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    returns = [x for line in lines for name, x in _flat(line) if name.endswith("episode_return") and x is not None]
    assert returns[0] < 4 and 4.7 < returns[-1] <= 5  # chance: 2.5
    assert json.loads((folder / "config.json").read_text())["algo"] == "reinforce"
    assert "algo: dqn" in outcomes["rl train --print-config"][1]


def test_a_policy_is_one_class(outcomes):
    assert 4.7 < float(outcomes["policy"][1]) <= 5


def _flat(line, place=""):
    for name, value in line.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{name}/")
        else:
            yield f"{place}{name}", value
