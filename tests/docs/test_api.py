"""The public interface: importing it is quick, every name has a page, a docstring and an example that runs.

An example is the block `pycon` of a docstring, run as a doctest in a folder that the examples share: those of
`FIRST` write what others read. Output that an example does not show may be anything.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import llmrl_jax
from envs_jax.registry import WORLDS
from tests.compile_cache import cached_in
from tests.paths import ROOT


IMPORT = """
import time
begin = time.process_time()
import llmrl_jax as lr
seconds = time.process_time() - begin
import sys
print(seconds, *sorted({"jax", "jaxlib", "numpy", "flax", "tyro"} & set(sys.modules)))
"""
LIMIT = 0.3
"""CPU seconds of the import."""
LAZY = ("llmrl_jax", *(f"llmrl_jax.{name}" for name in ("agents", "data", "lm", "rl", "run")))
PACKAGES = (
    "envs_jax",
    *LAZY,
    *(f"llmrl_jax.{name}" for name in ("advice.sandbox", "chat", "parallel", "serve", "tuning")),
)
"""Packages whose names are public."""
MODULES = {"envs_jax": {"spaces", *WORLDS}}
MODULES["llmrl_jax"] = {"agents", "chat", "data", "lm", "rl", "run", "tuning"}
"""Public names that are packages or modules, by package."""
STOP_WORDS = set(
    """
    a all an and any as at both but by each every for from here how if in it its no of on one or some that the their
    there these they this those three to two what when where whether which who whose why with without
    """.split()
)
"""Words that begin no docstring: it begins with a noun or a verb."""
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.M | re.S)
FIRST = ("load_model", "read_data", "train")


def source_of(package: str) -> ast.Module:
    return ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())


def public(package: str) -> list[str]:
    """The public names of a package that are not modules."""
    return sorted(set(importlib.import_module(package).__all__) - MODULES.get(package, set()))


def imported_for_types(tree: ast.Module) -> set[str]:
    """The names that a package imports under `TYPE_CHECKING`."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    return {a.asname or a.name for block in blocks for node in block.body for a in node.names}


def test_the_import_is_quick_and_needs_no_jax():
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, cwd=ROOT, check=True)
    seconds, *packages = done.stdout.split()
    assert float(seconds) < LIMIT
    assert packages == []


@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_those_of_type_checkers(package):
    module = importlib.import_module(package)
    assert set(module.__all__) == imported_for_types(source_of(package)) == set(dir(module))
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        assert inspect.ismodule(value) == (name in MODULES.get(package, ())), name


def test_the_interface_has_no_names_beside_the_listed_ones():
    for name in ("network_policy", "make_sft"):
        with pytest.raises(AttributeError, match=name):
            getattr(llmrl_jax, name)


def test_a_submodule_does_not_hide_the_function_of_its_name():
    for name in ("generate", "quantize", "score"):
        module = importlib.import_module(f"llmrl_jax.lm.{name}")
        assert getattr(llmrl_jax.lm, name) is getattr(module, name)
    with pytest.raises(AttributeError):
        _ = llmrl_jax.lm.generates


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_page(package):
    page = (ROOT / "docs" / "api" / package.rpartition(".")[2]).with_suffix(".md")
    entries = re.findall(rf"^::: {re.escape(package)}\.(\S+)$", page.read_text(), re.M)
    assert sorted(entry.split(".")[-1] for entry in entries) == public(package)  # `score.score` beside a module `score`


def documented(package: str) -> Iterator[tuple[str, str | None]]:
    """`(name, docstring)` of a package, its public classes and functions, and the public methods of the classes."""
    module = importlib.import_module(package)
    yield package, inspect.getdoc(module)
    for name in public(package):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{package}.{name}", value.__doc__
        for key, member in vars(value).items() if inspect.isclass(value) else ():
            member = getattr(member, "__func__", member)
            if (inspect.isfunction(member) or isinstance(member, property)) and key[0] != "_" and member.__doc__:
                yield f"{package}.{name}.{key}", member.__doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package):
    for name, text in documented(package):
        assert text, name
        summary = text.strip().split("\n\n")[0].rstrip()
        word = re.split(r"[\s,:;.]", summary)[0]
        assert word.lower() not in STOP_WORDS, (name, summary)
        assert summary[-1] == "." and not summary.startswith(f"{name.rpartition('.')[2]}("), (name, summary)


def test_every_package_with_public_names_is_listed():
    with_names = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "llmrl_jax").rglob("__init__.py")
        if "__all__" in path.read_text()
    }
    assert with_names - {"llmrl_jax.lm.gguf"} == set(PACKAGES) - {"envs_jax"}


def example(name: str, package: str = "llmrl_jax") -> str:
    """The example of a public name."""
    (block,) = EXAMPLE.findall(inspect.getdoc(getattr(importlib.import_module(package), name)) or "")
    return block


def with_examples() -> list[tuple[str, str]]:
    """`(package, name)` of what has an example: every name of `llmrl_jax`, and some of its packages."""
    examples = {id(getattr(llmrl_jax, name)): ("llmrl_jax", name) for name in public("llmrl_jax")}
    for package in PACKAGES[1:]:
        module = importlib.import_module(package)
        for name in public(package):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                if EXAMPLE.search(inspect.getdoc(value) or ""):
                    examples.setdefault(id(value), (package, name))
    return sorted(examples.values())


class Shown(doctest.OutputChecker):
    """Checks the output that an example shows."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def run(name: str, package: str = "llmrl_jax") -> None:
    """Run an example. **Raises** `AssertionError` with the report of doctest."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(example(name, package), {}, name, name, 0)
    doctest.DocTestRunner(Shown(), verbose=False).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A folder in which the examples of `FIRST` were run. Programs that several examples have are compiled once."""
    path = tmp_path_factory.mktemp("examples")
    with cached_in(tmp_path_factory.mktemp("programs")), pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for name in FIRST:
            run(name)
        yield path


@pytest.mark.parametrize(("package", "name"), [x for x in with_examples() if x[1] not in FIRST])
def test_the_example_of(package, name, folder):
    run(name, package)


@pytest.mark.parametrize("name", public("llmrl_jax"))
def test_every_example_uses_its_name(name):
    aliases = {
        "EpisodeStatistics": "envs_jax",
        "PromptHistory": "envs_jax",
        "make": "envs_jax",
        "VectorEnv": "envs_jax",
    }
    assert name in example(name)
    assert aliases.get(name, "llmrl_jax") in example(name)


def test_an_example_can_fail():
    text = textwrap.dedent("""
    >>> print("anything")
    >>> 1 + 1
    3
    """)
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, {}, "x", "x", 0)
    result = doctest.DocTestRunner(Shown(), verbose=False).run(test, out=report.append)
    assert (result.failed, result.attempted) == (1, 2)
