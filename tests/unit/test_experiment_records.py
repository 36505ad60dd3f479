"""The committed results of experiments name the code that they were computed with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


RESULTS = Path(__file__).parents[2] / "experiments" / "results"
FIRST = "2026-11-28"
"""Results of earlier days have no commit."""


def dated(value: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a record that has a date, and its place."""
    if isinstance(value, dict):
        if isinstance(value.get("date"), str):
            yield where, value
        for name, part in value.items():
            yield from dated(part, f"{where}/{name}")


def nameless(value: Any) -> list[str]:
    """The places of the dated parts without a commit."""
    places = []
    for where, part in dated(value):
        machine = part.get("machine")
        commit = part.get("commit") or (machine.get("commit") if isinstance(machine, dict) else None)
        if part["date"] >= FIRST and not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", commit or ""):
            places.append(where)
    return places


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda p: str(p.relative_to(RESULTS)))
def test_results_name_their_commit(path):
    assert nameless(json.loads(path.read_text())) == []


def test_a_result_without_a_commit_is_refused():
    good = {"date": "2026-11-28", "machine": {"commit": "0123456789ab"}, "rows": [{"date": "2026-11-21"}]}
    assert nameless(good) == [] and nameless({"date": "2026-12-01", "commit": "0123456"}) == []
    for commit in (None, "", "main"):
        bad = {"rows": {"a": {"date": "2026-11-28", "commit": commit}}}
        assert nameless(bad) == ["/rows/a"] and nameless({**good, "machine": {"commit": commit}}) == [""]
