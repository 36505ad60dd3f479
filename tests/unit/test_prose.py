"""Documentation, docstrings, messages and comments use the words of the field."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT


ARCHAIC = re.compile(
    r"\b(anew|heed|heeds|heeded|bear|bears|told|dear|void|alike|beforehand|afresh|nobody|whoever|hangs? on|hangs? up"
    r"|weighed by|in silence|lets? go of|is there:|are there:)\b",
    re.IGNORECASE,
)
"""Words and phrases that a colleague would not say."""

NEAR = re.compile(ARCHAIC.pattern.replace(" ", r"[\s\"'rbf#\\]+"), re.IGNORECASE)
"""The same in a source, where a string may go on in the next line: most files have none and need no parsing."""

UNPUBLISHED = re.compile(
    r"\breference,?[\s#]+sections?\b|\bsections?[\s#]+\d[\d.]*[\s#]+of[\s#]+the[\s#]+(\w+[\s#]+)?reference\b"
    r"|\b(glam|ellm|kalm|bk-?rl|props|jax_llm|jax_rl|crafter_speed)('s)?[\s#]+reference\b",
    re.IGNORECASE,
)
"""References to documents that the repository does not hold, which no reader can look up. Papers have an arXiv id and
published programs the name of a file."""

FOLDERS = ("llmrl_jax", "envs_jax", "experiments", "benchmarks", "docs")


def tracked(folders: tuple[str, ...] = FOLDERS) -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z", *folders, "*.md"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        pytest.skip("not a git checkout")
    names = sorted(set(filter(None, done.stdout.split("\0"))))
    return [ROOT / name for name in names if name.endswith((".py", ".md")) and (ROOT / name).is_file()]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page; of a module its strings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.split("\n"), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_no_archaic_words():
    said = [
        f"{path.relative_to(ROOT)}:{line}: {match.group()}"
        for path in tracked()
        if NEAR.search(path.read_text(encoding="utf-8"))
        for line, text in prose(path)
        for match in ARCHAIC.finditer(text)
    ]
    assert not said, "\n".join(said)


def test_sources_can_be_looked_up():
    references = [
        f"{path.relative_to(ROOT)}: {' '.join(match.group().split())}"
        for path in tracked((*FOLDERS, "tests"))
        for match in UNPUBLISHED.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not references, "\n".join(references)
