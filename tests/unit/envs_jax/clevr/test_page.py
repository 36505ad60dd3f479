"""The world's page has the numbers of the committed comparison with C MuJoCo."""

from __future__ import annotations

import json

from tests.paths import ROOT


def test_the_distances_are_those_of_the_page():
    page = (ROOT / "docs" / "environments" / "clevr.md").read_text()
    record = json.loads((ROOT / "experiments" / "results" / "clevr_backends" / "backends.json").read_text())
    assert record["command"] in page
    for name, found in record["backends"].items():
        median, largest = (f"{found[which]:.1e}".replace("e-0", "e-") for which in ("median", "largest"))
        said = "MuJoCo beside itself, starts moved by 6e-8 m" if name == "moved" else f"`{name}`"
        row = f"| {said} | {found['close']} | {median} m | {largest} m | "
        row += f"{found['seconds']:.1f} s, and {found['compile_seconds']:.1f} s" if "seconds" in found else "|"
        assert row in page, name
