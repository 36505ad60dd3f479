"""Our numbers of docs/papers.md are those of the pages of results, which tests compare with the committed records."""

from __future__ import annotations

import json
import re

import pytest

from tests.paths import ROOT


PAGE = (ROOT / "docs" / "papers.md").read_text()
SYSTEMS = ("glam", "ellm", "kalm", "bkrl", "props")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?: \[[^\]]+\]| \+- [\d.]+)?")


def rows(system: str) -> list[list[str]]:
    """The cells of the table in the section that links the results of a system."""
    (section,) = (part for part in PAGE.split("\n## ") if f"(systems/{system}-results.md)." in part)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


@pytest.mark.parametrize("system", SYSTEMS)
def test_our_numbers_are_those_of_the_results(system):
    folder = ROOT / "docs" / "systems"
    results = (folder / f"{system}-results.md").read_text()
    results += (folder / "props-table.md").read_text() if system == "props" else ""
    results = results.replace("*", "")
    count = 0
    for what, _, _, ours, *_ in rows(system):
        ours = re.sub(r"\d+ (?:seeds?|model)\b", "", ours)
        for number in NUMBER.findall(re.sub(r"\(.*?\)", "", ours)):
            number = number.rstrip(",")
            if system == "kalm":
                number = f"{int(number) / 100:.2f}"
            assert number in results, (what, number)
            count += 1
    assert count >= 4


def test_every_row_says_what_theirs_is():
    for system in SYSTEMS:
        for cells in rows(system):
            assert len(cells) == 6 and cells[0] and cells[3], cells


def test_chance_in_balrog_is_as_recorded():
    page = (ROOT / "docs" / "systems" / "balrog-results.md").read_text()
    for path in (ROOT / "experiments" / "results" / "balrog_chance").glob("*.json"):
        for task, row in json.loads(path.read_text())["results"].items():
            low, mean, high = (100 * row[name] for name in ("progression_low", "progression", "progression_high"))
            cells = f"`{task}` | {mean:.1f}% | [{low:.1f}, {high:.1f}] | {row['episodes']} | {row['steps']:,.0f} |"
            assert f"| {cells}" in page, cells


def test_grpo_in_mountain_car_is_as_recorded():
    page = (ROOT / "docs" / "systems" / "props-results.md").read_text()
    folder = ROOT / "experiments" / "results" / "props_finetune"
    summaries = [json.loads((folder / name / "summary.json").read_text()) for name in ("", "mountain_car/seed_1")]
    for name, digits in (("hard_format", 2), ("policy", 3), ("improvement", 2)):
        cells = [
            " to ".join(f"{x[when][f'reward/{name}']:.{digits}f}" for when in ("before", "after")) for x in summaries
        ]
        assert f" | {' | '.join(cells)} |" in page, name
    scales = [x["scales"]["mountain_car_continuous"] for x in summaries]
    assert f" | {' | '.join(f'{-low / (high - low):.3f}' for low, high in scales)} |" in page
