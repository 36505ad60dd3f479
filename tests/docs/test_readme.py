"""What the README and the pages show is what happens.

Every block of Python runs, those of most pages with the slow tests; those of one page run in order, in one process, as
a reader would. The line before a block may have tags, as in `<!-- test: run needs=curl -->`: a block of Python tagged
`slow` runs with the slow tests, one tagged `no-run` never; a block of shell runs if it is tagged `run`, with the
project's programs on the path. `needs=NAME` skips a block where that program, packaged model or Python module is not
installed. Pages run in an empty folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmrl_jax.core.packaged import LANGUAGE_MODELS


ROOT = Path(__file__).parent.parent.parent
LIMIT = 300
"""Seconds that a page may take."""
FENCE = re.compile(r"^(?: *<!-- test: ([^\n>]*) -->\n)?( *)```([^\n`]*)\n(.*?)^\2```[ ]*$", re.M | re.S)
"""A fenced block: its tags, its indentation, its language, its text."""


@dataclass(frozen=True)
class Block:
    """A fenced block that runs."""

    language: str
    slow: bool
    line: int
    code: str


def is_here(name: str) -> bool:
    """Return whether a program, a packaged model or a Python module is installed."""
    if name in LANGUAGE_MODELS:
        return LANGUAGE_MODELS[name].folder() is not None
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


def blocks(text: str) -> list[Block]:
    """The blocks of a page that run, in order."""
    found = []
    for match in FENCE.finditer(text):
        tags, language = (match[1] or "").split(), match[3].strip()
        if any(t.startswith("needs=") and not is_here(t.removeprefix("needs=")) for t in tags):
            continue
        if language == "python" and "no-run" not in tags or language == "sh" and "run" in tags:
            indent = len(match[2])
            code = "".join(line[indent:] for line in match[4].splitlines(keepends=True))
            found.append(Block(language, "slow" in tags, text.count("\n", 0, match.start(2)) + 1, code))
    return found


def run(page: str, chosen: list[Block], folder: Path) -> None:
    """Run blocks one after another; consecutive Python blocks share a process."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    python = ""
    for i, block in enumerate(chosen):
        if block.language == "python":
            # empty lines keep the page's own line numbers in tracebacks
            python += "\n" * (block.line - python.count("\n")) + block.code
            if i + 1 < len(chosen) and chosen[i + 1].language == "python":
                continue
            (folder / "page.py").write_text(python)
            command, python = [sys.executable, "page.py"], ""
        else:
            command = ["bash", "-euo", "pipefail", "-c", block.code]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, (
            f"{page}, block at line {block.line}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )


PAGES = {
    str(path.relative_to(ROOT)): found
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.exists() and (found := blocks(path.read_text()))
}
QUICK = {
    "README.md",
    *(f"docs/{name}.md" for name in ("agents", "security")),
    "docs/environments/toytext.md",
    "docs/how-to/math.md",
}
"""What is read first, and a page of each kind that takes a few seconds. The others run with the slow tests."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.slow] * (p not in QUICK))
        for p in PAGES
        if any(not block.slow for block in PAGES[p])
    ],
)
def test_page(page, tmp_path):
    run(page, [block for block in PAGES[page] if not block.slow], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.slow for b in PAGES[p])])
def test_slow_page(page, tmp_path):
    run(page, PAGES[page], tmp_path)


def test_quick_pages_have_blocks():
    assert QUICK <= set(PAGES)


def test_the_rule(tmp_path):
    text = "\n".join(
        ["x", "```python", "a = 1", "```", "<!-- test: no-run -->", "```python", "1/0", "```", "```sh", "false", "```"]
        + ["1. item", "   ```python", "   assert a == 1", "   ```"]
        + ["<!-- test: run -->", "```sh", "echo hi > out", "```", "<!-- test: slow -->", "```python", "b = 2", "```"]
    )
    found = blocks(text)
    assert [(b.language, b.slow, b.line) for b in found] == [
        ("python", False, 2),
        ("python", False, 13),
        ("sh", False, 17),
        ("python", True, 21),
    ]
    run("page", found, tmp_path)
    assert (tmp_path / "out").read_text() == "hi\n"
    with pytest.raises(AssertionError, match="line 1:(.|\n)*ZeroDivisionError"):
        run("page", blocks("```python\n1/0\n```\n"), tmp_path)


def test_links_between_pages_lead_somewhere():
    missing = []
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text())):
            if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.split("#")[0]).exists():
                missing.append(f"{path.relative_to(ROOT)}: {target}")
    assert not missing
