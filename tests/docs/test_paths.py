"""Six readers find their page from README in two clicks at most, and what they copy from it runs in the tests.

`test_readme.py` runs the blocks; where one needs a GPU or weights, the page says what was run where."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmrl_jax.cli.parsing import run_command
from tests.docs.test_readme import FENCE, PAGES
from tests.paths import ROOT


LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> set[Path]:
    """The pages of the repository that a page links."""
    targets = (target.partition("#")[0] for target in LINK.findall(FENCE.sub("", page.read_text())))
    found = ((page.parent / target).resolve() for target in targets if target and not re.match(r"[a-z]+:", target))
    return {path for path in found if path.suffix == ".md" and path.exists()}


def clicks() -> dict[Path, int]:
    """The fewest links from README to each page."""
    first = ROOT / "README.md"
    distance, newest = {first: 0}, {first}
    while newest:
        newest = {target for page in newest for target in links(page)} - set(distance)
        distance |= {page: 1 + max(distance.values()) for page in newest}
    return distance


@dataclass(frozen=True)
class Reader:
    """What someone comes for: pages, and parts of the code that the tests run there."""

    pages: tuple[str, ...]
    runs: tuple[str, ...]
    """In blocks of these pages that run, the slow tests included."""
    not_run: tuple[str, ...] = ()
    """In blocks that do not run."""
    says: tuple[str, ...] = field(default=())
    """Of these pages: where it was run, or that it was not."""


READERS = {
    "Llama-3.2-1B with PPO in BabyAI on a GPU": Reader(
        ("docs/install.md", "docs/how-to/model.md"),
        ("llmrl lm fit --model config.json",),
        (
            "pip install -e '.[cuda13]'",
            "llmrl doctor",
            "llmrl glam train --preset glam-lora --model meta-llama/Llama-3.2-1B",
        ),
        ("What was run where", "H100"),
    ),
    "own environment with own model": Reader(
        ("docs/how-to/environment.md",),
        ("envs_jax.register(", "--env Corridor-v0", "--env CorridorText-v0 --model embedded", "check_contract"),
    ),
    "fast BabyAI or Crafter only": Reader(
        ("docs/how-to/worlds.md", "docs/environments/babyai.md", "docs/environments/crafter.md"),
        ("envs_jax.VectorEnv(", "BabyAI-GoToLocal-v0", "CrafterReward-v1", "steps/s"),
    ),
    "offline RL on own parquet": Reader(
        ("docs/how-to/offline.md",),
        ("pq.write_table(", "llmrl rl train --algo iql --data mine.parquet", 'load("runs/mine")'),
    ),
    "GRPO on a math set": Reader(
        ("docs/how-to/math.md",),
        ("llmrl lm sft --model small", "llmrl lm grpo --model runs/before/model --data math.jsonl", "def row("),
        ("llmrl lm grpo --model OWNER/NAME --data train.jsonl",),
        ("not run by us",),
    ),
    "reproduce a paper": Reader(("docs/papers.md", "docs/systems/glam.md", "docs/systems/glam-results.md"), ()),
}


@pytest.mark.parametrize("name", READERS)
def test_the_page_is_two_clicks_away(name):
    distance = clicks()
    for page in READERS[name].pages:
        assert distance[ROOT / page] <= 2, page


@pytest.mark.parametrize("name", READERS)
def test_what_is_copied_from_it_is_run(name):
    reader = READERS[name]
    text = {page: (ROOT / page).read_text() for page in reader.pages}
    run = "\n".join(block.code for page in reader.pages for block in PAGES.get(page, ()))
    shown = "\n".join(match[4] for page in reader.pages for match in FENCE.finditer(text[page]))
    for part in reader.runs:
        assert part in run, part
    for part in reader.not_run:
        assert part in shown and part not in run, part
    prose = " ".join(" ".join(FENCE.sub("", page) for page in text.values()).split())
    for part in reader.says:
        assert part in prose, part


# --- commands that are only shown -------------------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """The command lines of `llmrl` in a page, in blocks of shell and in code within tables, without comments."""
    lines = [line for match in FENCE.finditer(text) if match[3].strip() == "sh" for line in joined(match[4])]
    lines += re.findall(r"`([^`\n]+)`", "\n".join(x for x in FENCE.sub("", text).splitlines() if x.startswith("|")))
    return [line.strip() for line in lines if line.strip().startswith("llmrl ")]


def joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def test_how_commands_are_read():
    page = "| a | `llmrl rl train` |\n\n```sh\nllmrl glam train \\\n    --steps 3   # note\n```\n`llmrl no`\n"
    assert [shlex.split(line, comments=True) for line in commands(page)] == [
        ["llmrl", "glam", "train", "--steps", "3"],
        ["llmrl", "rl", "train"],
    ]


SHOWN = {
    line: str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for line in commands(path.read_text())
}
"""Where a command line is shown."""
ELSEWHERE = ("...", "--algo NAME", "--run.resume", "--config", "--print-config", "--help", "&&", "|")
"""Parts of lines that are not checked: placeholders of choices, files that a reader has by then, other programs."""


def test_commands_that_make_a_run_are_accepted():
    """The options of the command lines on the pages are those of the parsers: nothing is run."""
    wrong, count = [], 0
    for line, page in SHOWN.items():
        _, *words = shlex.split(line.partition(" --slurm.")[0], comments=True)
        if len(words) < 3 or any(part in line for part in ELSEWHERE):
            continue
        try:
            command = run_command(" ".join(words[:2]))
        except ValueError:
            continue  # it makes no run
        try:
            command.settings(words[2:])
            count += 1
        except (ValueError, KeyError, TypeError, OSError) as error:
            wrong.append(f"{page}: {line}: {error}")
    assert not wrong, "\n".join(wrong)
    assert count > 50


def test_programs_of_the_papers_exist():
    programs = re.findall(r"`python (experiments/\w+\.py)", (ROOT / "docs" / "papers.md").read_text())
    assert len(programs) > 5
    assert not [name for name in programs if not (ROOT / name).is_file()]
