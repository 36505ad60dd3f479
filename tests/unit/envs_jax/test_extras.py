"""Extras that are not installed: the message names the module, the extra, and a command that works here."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from envs_jax import extras


ROOT = Path(extras.__file__).parent.parent


def test_modules_are_imported(monkeypatch):
    assert extras.require("this", "data", "json", "sys") is json
    monkeypatch.setitem(sys.modules, "no.such", None)
    for modules in (["json", "no.such"], ["no.such"]):
        with pytest.raises(ModuleNotFoundError, match="no.such, .*`data`: pip .* that$") as caught:
            extras.require("this", "data", *modules, remedy="that")
        assert caught.value.name == "no"


def test_a_dependency_of_a_module_is_named(monkeypatch, tmp_path):
    (tmp_path / "halfway.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        extras.require("this", "data", "halfway")
    assert caught.value.name == "no_such_dependency"


def test_the_command_of_a_checkout():
    assert extras.install("data") == f"pip install -e '{ROOT}[data]'"


def _installed(monkeypatch, tmp_path, url=None):
    """As from a wheel: no sources beside the package."""
    requires = [
        'pyarrow>=20; extra == "data"',
        'h5py; extra == "data"',
        'gone; python_version < "3" and extra == "data"',
        'jax[cuda13]>=0.10.2; extra == "cuda13"',
        'llmrl-jax[cuda13,data]; extra == "all"',
    ]

    class Distribution:
        def read_text(self, name):
            return None if url is None else json.dumps({"url": url, "dir_info": {}})

    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site" / "envs_jax" / "extras.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)


def test_the_command_of_a_wheel_has_the_packages(monkeypatch, tmp_path):
    _installed(monkeypatch, tmp_path)
    assert extras.install("data") == "pip install 'pyarrow>=20' h5py"
    _installed(monkeypatch, tmp_path, "https://example.org/llmrl_jax-0.1-py3-none-any.whl")
    assert extras.install("data") == "pip install 'pyarrow>=20' h5py"
    assert extras.install("cuda13") == "pip install 'jax[cuda13]>=0.10.2'"
    assert extras.install("all") == "pip install 'jax[cuda13]>=0.10.2' 'pyarrow>=20' h5py"
    assert "[other]" in extras.install("other")


def test_the_command_after_an_installation_from_a_folder(monkeypatch, tmp_path):
    source = tmp_path / "a source"
    source.mkdir()
    _installed(monkeypatch, tmp_path, source.as_uri())
    assert extras.install("data") == "pip install 'pyarrow>=20' h5py"
    (source / "pyproject.toml").write_text('[project]\nname = "llmrl-jax"\n')
    assert extras.install("data") == f"pip install '{source}[data]'"


def test_a_distribution_that_is_not_installed(monkeypatch, tmp_path):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    _installed(monkeypatch, tmp_path)
    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert extras.requirements() == {} and "[data]" in extras.install("data")


def test_extras_in_the_sources_exist():
    """Every extra that a message names is one of pyproject.toml's."""
    named = set()
    for path in [*ROOT.glob("envs_jax/**/*.py"), *ROOT.glob("llmrl_jax/**/*.py")]:
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if re.search(r"\b(require|missing)\(", source) else ():
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("require", "missing")
                and len(node.args) > 2
            ):
                named |= {node.args[1].value} if isinstance(node.args[1], ast.Constant) else set()
    assert named >= {"api", "data", "serve", "evolution", "gguf", "slurm", "track", "control"}
    assert named <= set(extras.requirements())


def test_only_one_place_writes_the_command():
    """No text speaks of an installation of the distribution from an index, where it is not."""
    command = re.compile(r"pip\s+install\s+[^.\n]*llmrl.jax", re.IGNORECASE)
    kinds = (("envs_jax", "*.py"), ("llmrl_jax", "*.py"), ("tools", "*.py"), ("docs", "*.md"))
    paths = [path for folder, kind in kinds for path in (ROOT / folder).rglob(kind)]
    assert [str(path) for path in [*paths, ROOT / "README.md"] if command.search(path.read_text())] == []
