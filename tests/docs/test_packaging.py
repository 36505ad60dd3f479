"""The distribution: a wheel and a source archive that are complete, and one version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import llmrl_jax
from tests.paths import ROOT


PACKAGES = ("envs_jax", "llmrl_jax")
AGENT = (
    "--env Notes-Recall-v0 --tune full --reply-tokens 5 --decoding constrained --embedded.hidden-size 16 "
    "--embedded.layers 1 --embedded.intermediate-size 16 --value-width 8 --ppo.num-envs 4 --ppo.num-steps 21 "
    "--ppo.minibatches 1 --ppo.episode-tokens 96 --ppo.pool-size 4 --steps 84"
).split()
COMMANDS = [
    ["envs", "list", "CartPole"],
    ["glam", "demo", "--steps", "1024", "--episodes", "8", "--run.name", "demo"],
    ["ellm", "pretrain", "--steps", "64", "--eval-episodes", "2", "--run.name", "ellm"],
    ["bkrl", "train", "--steps", "64", "--eval-episodes", "2", "--run.name", "bkrl"],
    ["props", "run", "--tasks", "nim", "--method", "random_search", "--iterations", "2", "--run.name", "nim"],
    ["kalm", "collect", "--episodes", "4", "--together", "4", "--run.name", "recorded"],  # clevr, data
    ["agent", "train", *AGENT, "--run.name", "agent"],
    ["balrog", "eval", "--tasks", "goto", "--episodes", "2", "--run.name", "balrog"],
]
"""A command of each system, at its smallest, and of the environments."""


def tracked(*folders: str) -> set[str]:
    """The files of the repository below some folders."""
    done = subprocess.run(["git", "ls-files", "-z", *folders], capture_output=True, text=True, cwd=ROOT, check=True)
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel and the source archive, built from a copy of what the repository holds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {path.suffix: path for path in out.iterdir()}


def test_the_wheel_has_every_file_of_the_packages(built):
    with zipfile.ZipFile(built[".whl"]) as wheel:
        names = {name for name in wheel.namelist() if name.startswith(PACKAGES) and ".dist-info" not in name}
    assert names == tracked(*PACKAGES)


def test_the_source_archive_has_the_repository(built):
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked() if not name.startswith(".")} <= names


def test_there_is_one_version(built):
    assert built[".whl"].name.startswith(f"llmrl_jax-{llmrl_jax.__version__}-")
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == llmrl_jax.__version__


def run(command: list[str], home: Path, **env: str) -> str:
    """What a command in a folder prints. **Raises** `AssertionError`, with the end of its output, if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env={**environment, **env})
    assert done.returncode == 0, (command, done.stdout[-1000:], done.stderr[-2000:])
    return done.stdout


def test_the_wheel_has_the_commands(built, tmp_path):
    """Its files alone, beside the packages of this environment."""
    site, home = tmp_path / "site", tmp_path / "home"
    home.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    run([*pip, str(built[".whl"])], home)
    assert "CartPole-v1" in run([sys.executable, "-m", "llmrl_jax", *COMMANDS[0]], home, PYTHONPATH=str(site))
    where = "import llmrl_jax; print(llmrl_jax.__file__)"
    assert Path(run([sys.executable, "-c", where], home, PYTHONPATH=str(site)).strip()).is_relative_to(site)


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_runs_every_system(built, tmp_path):
    """Nothing of this environment or checkout is used: pip fetches what the wheel needs."""
    home, bin = tmp_path / "home", tmp_path / "venv" / "bin"
    home.mkdir()
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], home)
    pip = [str(bin / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    probe = [*pip, "download", "--no-deps", "--dest", str(tmp_path / "probe"), "tyro"]
    if subprocess.run(probe, capture_output=True, cwd=home).returncode:
        pytest.skip("pip has no index")
    pins = ["-c", str(ROOT / "constraints.txt")] if sys.version_info < (3, 12) else []  # made for Python 3.11
    run([*pip, "install", *pins, f"{built['.whl']}[clevr,data]"], home)
    for command in COMMANDS:
        run([str(bin / "llmrl"), *command], home)
    where = "import envs_jax, llmrl_jax; print(envs_jax.__file__, llmrl_jax.__file__)"
    files = run([str(bin / "python"), "-c", where], home).split()
    assert all(Path(file).is_relative_to(tmp_path / "venv") for file in files)
