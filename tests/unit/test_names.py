"""Names say what a thing is: at most five in a thousand are function words, such as "found" or "place"."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.paths import ROOT


WORDS = set(
    """
    found wanted known seen said asked kept made own whole place what how beside told given taken gone held there
    here then that this those these which who whom whose why when where other others another both each every any
    some such same odd rest again also already still yet once only just much many more most less least few way ways
    thing things apart near far together alone instead otherwise met meant put got let begun come came goes go
    become became was were is are be been has have had do does did can could may might must shall should will would
    of on at to from by with without within about above below over under between among behind through across into
    onto off out
    """.split()
)


def bindings(tree: ast.AST) -> Iterator[str]:
    """The names that a file gives: variables, arguments, functions, classes, attributes, aliases of imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def function_words(names: Iterable[str]) -> list[str]:
    """The names that are function words."""
    return [name for name in names if name.strip("_").lower() in WORDS]


def test_they_are_counted():
    source = "def kept(where, rows):\n    place = rows\n    for i, found in place: self.seen = found\nimport x as own\n"
    assert sorted(function_words(bindings(ast.parse(source)))) == ["found", "kept", "own", "place", "seen", "where"]


@pytest.mark.parametrize("package", ["envs_jax", "llmrl_jax"])
def test_names_say_what_things_are(package):
    names = {path: list(bindings(ast.parse(path.read_text()))) for path in (ROOT / package).rglob("*.py")}
    total = sum(map(len, names.values()))
    words = {str(path.relative_to(ROOT)): function_words(bound) for path, bound in names.items()}
    assert sum(map(len, words.values())) <= 5 * total / 1000, {path: found for path, found in words.items() if found}
