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
COMMANDS = [
    ["envs", "list", "CartPole"],
    ["glam", "demo", "--steps", "1024", "--episodes", "8", "--run.name", "demo"],
    ["ellm", "pretrain", "--steps", "64", "--eval-episodes", "2", "--run.name", "ellm"],
    ["bkrl", "train", "--steps", "64", "--eval-episodes", "2", "--run.name", "bkrl"],
    ["props", "run", "--tasks", "nim", "--method", "random_search", "--iterations", "2", "--run.name", "nim"],
    ["kalm", "collect", "--help"],  # it needs the extra `clevr`
]
"""Those that need no extra, at their smallest."""


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


@pytest.mark.slow
def test_an_installed_wheel_runs_outside_the_checkout(built, tmp_path):
    site, home = tmp_path / "site", tmp_path / "home"
    home.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*pip, str(built[".whl"])], check=True)
    env = {**os.environ, "PYTHONPATH": str(site)}
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "llmrl_jax", *command], capture_output=True, text=True, cwd=home, env=env
        )
        assert done.returncode == 0, (command, done.stdout[-1000:], done.stderr[-2000:])
    where = "import llmrl_jax; print(llmrl_jax.__file__)"
    done = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, cwd=home, env=env, check=True)
    assert Path(done.stdout.strip()).is_relative_to(site)
