"""Models in packages: found without an import, verified, and installed by the commands that messages name."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
from pathlib import Path

import pytest

from llmrl_jax.core.packaged import ENCODERS, LANGUAGE_MODELS, Packaged


ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A package with a model, whose import would fail."""
    folder = tmp_path / "a_model_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "weights.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    digest = hashlib.sha256(b"weights").hexdigest()
    return Packaged("small", "a model", "a_model_package", "1.2", {"weights.bin": digest}, "", "weights.bin")


def test_it_is_located_and_never_imported(model):
    path = model.locate()
    assert path.read_bytes() == b"weights" and "a_model_package" not in sys.modules
    inside = dataclasses.replace(model, inside="inner", model="")
    assert inside.folder() == path.parent / "inner"


def test_other_files_are_refused_by_their_sum(model):
    path = model.locate()
    path.write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"weights\.bin.*a-model-package 1\.2.*--no-deps"):
        model.locate()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no weights\.bin"):
        model.locate()


def test_a_missing_one_says_how_to_install_it(model):
    missing = dataclasses.replace(model, package="a_package_that_is_not_there")
    assert missing.folder() is None
    with pytest.raises(ModuleNotFoundError, match="small.*installed.*--no-deps a-"):
        missing.locate()


@pytest.mark.parametrize("known", [*LANGUAGE_MODELS.values(), *ENCODERS.values()], ids=lambda m: m.name)
def test_the_makefile_and_the_pages_install_the_pinned_version(known):
    needed = f"{known.distribution}=={known.version}"
    assert f" := {needed}\n" in (ROOT / "Makefile").read_text() and known.name == known.name.lower()
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert {*re.findall(rf"{known.distribution}==[\d.]+", pages)} == {needed}
