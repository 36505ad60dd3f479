"""Tests recognise an error by its names, values and bounds, so that its sentence may be reworded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.paths import ROOT


LIMIT = 2
"""Consecutive English words that a pattern may have, as in "chat template"; more of them are a sentence."""

QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|llmrl( [a-z]+)+|\\.")
"""Values and commands within a pattern, whatever their words, and escaped characters."""

TABLE_ROWS = ("Row", "of_file")
"""Functions that make a row of bad input of a name, a command or file, and a pattern."""

SENTENCE = re.compile(rf"(?<![\w./|-])(?:[a-z]+ ){{{LIMIT}}}[a-z]+(?![\w./|*=-])")


def strings(node: ast.AST) -> Iterator[ast.Constant]:
    """The strings of an expression, those of an f-string between its values included."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part


def column(function: ast.FunctionDef, name: str) -> Iterator[ast.Constant]:
    """The strings that `pytest.mark.parametrize`, or a loop over literals, gives an argument of a test."""
    tables = [d.args[:2] for d in function.decorator_list if isinstance(d, ast.Call) and len(d.args) > 1]
    tables += [[node.target, node.iter] for node in ast.walk(function) if isinstance(node, ast.For)]
    for names, rows in tables:
        labels = [part.id if isinstance(part, ast.Name) else part.value for part in getattr(names, "elts", [names])
                  if isinstance(part, ast.Name | ast.Constant)]  # fmt: skip
        if name not in labels or not hasattr(rows, "elts"):
            continue
        for row in rows.elts:
            values = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [row])
            if len(labels) == 1:
                yield from strings(row)
            elif labels.index(name) < len(values):
                yield from strings(values[labels.index(name)])


def expressions(node: ast.AST) -> list[ast.expr]:
    """The expressions of a node that an error is compared with."""
    if isinstance(node, ast.Call):
        rows = node.args[2:3] if isinstance(node.func, ast.Name) and node.func.id in TABLE_ROWS else []
        return [keyword.value for keyword in node.keywords if keyword.arg == "match"] + rows
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
        text = ast.unparse(node.comparators[0])
        return [node.left] if ".err" in text or "str(" in text else []
    return []


def patterns(source: str) -> Iterator[ast.Constant]:
    """The strings by which a file recognises errors: `match=`, rows of bad input, and what stderr must contain. A name
    is looked up in the functions around it."""
    stack: list[tuple[ast.AST, tuple[ast.FunctionDef, ...]]] = [(ast.parse(source), ())]
    while stack:
        node, functions = stack.pop()
        if isinstance(node, ast.FunctionDef):
            functions = (*functions, node)
        for value in expressions(node):
            if isinstance(value, ast.Name):
                for function in functions:
                    yield from column(function, value.id)
            else:
                yield from strings(value)
        stack.extend((child, functions) for child in ast.iter_child_nodes(node))


def pinned(source: str) -> list[str]:
    """The patterns that are sentences."""
    unique = {(part.lineno, part.col_offset): part.value for part in patterns(source)}
    return [text for text in unique.values() if SENTENCE.search(QUOTED.sub("'", text))]


def test_sentences_are_found():
    assert pinned("raises(E, match='size of it: 3')") == ["size of it: 3"]
    assert pinned("raises(E, match=f'{name}: there is no such file')") == [": there is no such file"]
    assert pinned("Row('a name', 'lm sft', 'give the folder of a run')") == ["give the folder of a run"]
    table = "@mark.parametrize(('a', 'said'), [(1, 'a.*3'), (2, 'is far too much')])\ndef f(a, said):"
    assert pinned(f"{table}\n raises(E, match=said)") == ["is far too much"]
    assert pinned("assert 'it is not a whole number' in capsys.readouterr().err") == ["it is not a whole number"]
    assert pinned("of_file('a name', 'a = 3', 'leave it out')") == ["leave it out"]
    assert not pinned("raises(E, match='prefer.*llmrl runs list')")
    assert not pinned(r"raises(E, match=r'grpo\.prompts.*128|chat template.*`llmrl lm sft run out`')")


def test_no_sentence_is_pinned():
    sentences = {
        str(path.relative_to(ROOT)): found
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != "test_error_patterns.py" and (found := pinned(path.read_text(encoding="utf-8")))
    }
    assert not sentences, "\n".join(f"{name}: {text!r}" for name, texts in sentences.items() for text in texts)
