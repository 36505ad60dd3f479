from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmrl_jax.run import folder, info


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def committed(root: Path, *files: str) -> str:
    """Add a line to files and commit them. **Returns:** the first twelve digits of the commit."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open("a") as file:
            file.write("a line\n")
    git(root, "add", *files)
    git(root, "commit", "-qm", "a change")
    return git(root, "rev-parse", "--short=12", "HEAD")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.delenv(info.COMMIT, raising=False)
    monkeypatch.setattr(info, "ROOT", tmp_path)
    monkeypatch.setattr(info, "_STARTED", float("inf"))
    git(tmp_path, "init", "-q")
    return tmp_path


FILES = ("llmrl_jax/run/info.py", "envs_jax/env.py", "pyproject.toml", "constraints.txt", "benchmarks/harness.py")


def test_the_commit_is_the_last_one_that_changed_the_code(checkout):
    first = committed(checkout, *FILES)
    assert info.commit() == info.commit("benchmarks") == first and len(first) == 12
    committed(checkout, "docs/page.md", "README.md", "tests/test_x.py", "benchmarks/results/x.json", "experiments/e.py")
    assert info.commit("benchmarks") == first
    second = committed(checkout, "benchmarks/harness.py")
    assert info.commit() == first and info.commit("benchmarks") == second
    third = committed(checkout, "envs_jax/env.py")
    assert info.commit() == info.commit("benchmarks") == third


@pytest.mark.parametrize(
    "name", ["llmrl_jax/run/info.py", "llmrl_jax/new.py", "benchmarks/harness.py", "pyproject.toml"]
)
def test_other_code_than_that_of_the_commit_is_dirty(checkout, name):
    digits = committed(checkout, *FILES)
    (checkout / name).write_text("other\n")
    assert info.commit("benchmarks") == f"{digits}-dirty"
    assert info.commit() == (digits if name.startswith("benchmarks") else f"{digits}-dirty")


def test_results_and_documentation_are_not_dirty(checkout):
    digits = committed(checkout, *FILES, "benchmarks/results/x.json", "docs/page.md")
    for name in ("benchmarks/results/x.json", "benchmarks/results/elsewhere-y.json", "docs/page.md"):
        (checkout / name).write_text("other\n")
    assert info.commit("benchmarks") == digits


def test_a_commit_newer_than_the_process_is_dirty(checkout, monkeypatch):
    monkeypatch.setattr(info, "_STARTED", 0.0)  # the code may have been loaded before
    assert info.commit() is None  # nothing is committed
    digits = committed(checkout, *FILES)
    assert info.commit() == f"{digits}-dirty"


def test_a_package_outside_a_checkout_has_no_commit(checkout, monkeypatch):
    committed(checkout, "another/project.py")
    (checkout / "llmrl_jax/run").mkdir(parents=True)
    (checkout / "llmrl_jax/run/info.py").write_text("installed in another project's folder\n")
    assert info.commit() is None
    monkeypatch.setattr(info, "ROOT", checkout / "llmrl_jax")
    assert info.commit() is None and info.stamp()["commit"] is None


def test_a_tree_without_history_states_its_commit(checkout, monkeypatch):
    monkeypatch.setenv(info.COMMIT, "0123456789ab-dirty")
    assert info.commit() == info.stamp("experiments")["commit"] == "0123456789ab-dirty"
    for wrong in ("main", "0123456789ab-clean", "12345"):
        monkeypatch.setenv(info.COMMIT, wrong)
        with pytest.raises(ValueError, match=info.COMMIT):
            info.commit()


def test_a_summary_names_the_commit(tmp_path, monkeypatch):
    monkeypatch.setenv(info.COMMIT, "0123456789ab")
    assert '"commit": "0123456789ab"' in folder.write_summary(tmp_path, {"steps": 1}).read_text()
