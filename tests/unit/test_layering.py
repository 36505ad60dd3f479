"""Importing is cheap and touches no device; imports point one way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


IMPORT_ALL = """
import importlib, json, pkgutil, sys, time
started = time.monotonic()
import llmrl_jax
seconds = time.monotonic() - started
import envs_jax
names = [m.name for p in (llmrl_jax, envs_jax) for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
optional = []
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("llmrl_jax", "envs_jax"):
            raise
        optional.append([name, error.name])
from jax._src import xla_bridge
print(json.dumps({"seconds": seconds, "names": names, "optional": optional, "backends": list(xla_bridge._backends),
                  "heavy": [m for m in ("torch", "wandb", "tensorboardX", "matplotlib.pyplot") if m in sys.modules]}))
"""


@pytest.fixture(scope="module")
def imported() -> dict:
    env = {n: v for n, v in os.environ.items() if n != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_takes_less_than_two_seconds(imported):
    assert imported["seconds"] < 2.0


def test_importing_everything_starts_no_backend(imported):
    assert len(imported["names"]) > 30
    assert imported["backends"] == []
    assert imported["heavy"] == []


def test_only_bridges_need_packages_outside_the_core(imported):
    assert all(".bridges." in name for name, _ in imported["optional"]), imported["optional"]


def test_imports_point_one_way():
    tool = Path(sys.executable).parent / "lint-imports"
    if not tool.exists():
        found = shutil.which("lint-imports")
        assert found, "import-linter is not installed: pip install -e '.[dev]'"
        tool = Path(found)
    done = subprocess.run([tool, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_nothing_names_a_registry_or_a_machine():
    """No tracked file holds an address of a package registry or a path of the machine that it was written on."""
    hosts = ("pypi" + ".org", "python" + "hosted.org", "/ro" + "ot/", "/work" + "/")
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".txt", ".yml", ".json", "") and path.is_file():
            text = path.read_text(errors="ignore")
            assert not [host for host in hosts if host in text], name
