"""Names say what a thing is: at most five in a thousand are function words, such as "found" or "place". Docstrings
begin with a noun or a verb, and not with a question."""

from __future__ import annotations

import ast
import functools
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


QUESTIONS = set("what how which who whom whose whether where when why if that this these those it its they".split())
"""Words that begin no docstring."""


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


@functools.cache
def parsed(package):
    """The files of a package by their paths."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in (ROOT / package).rglob("*.py")}


@pytest.mark.parametrize("package", ["envs_jax", "llmrl_jax"])
def test_names_say_what_things_are(package):
    names = {path: list(bindings(tree)) for path, tree in parsed(package).items()}
    total = sum(map(len, names.values()))
    words = {path: function_words(bound) for path, bound in names.items()}
    assert sum(map(len, words.values())) <= 5 * total / 1000, {path: found for path, found in words.items() if found}


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a file: of modules, classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield text


def questions(tree: ast.AST) -> list[str]:
    """The first lines of docstrings that begin with one of `QUESTIONS`."""
    lines = [text.splitlines()[0] for text in docstrings(tree)]
    return [line for line in lines if line.split()[0].strip("*,:;.").lower() in QUESTIONS]


def test_docstrings_that_begin_with_a_question_are_found():
    source = '"""Rows."""\n\n\ndef f():\n    """What follows."""\n\n\nclass A:\n    """It, again."""\n'
    assert questions(ast.parse(source)) == ["What follows.", "It, again."]


@pytest.mark.parametrize("package", ["envs_jax", "llmrl_jax"])
def test_docstrings_begin_with_a_noun_or_a_verb(package):
    lines = {path: questions(tree) for path, tree in parsed(package).items()}
    assert not {path: bad for path, bad in lines.items() if bad}
