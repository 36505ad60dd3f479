"""The world's page has the numbers of the committed results."""

from __future__ import annotations

import json

from llmrl_jax.core.statistics import wilson
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


def test_the_expert_and_random_play_are_those_of_the_page():
    page = (ROOT / "docs" / "environments" / "clevr.md").read_text()
    record = json.loads((ROOT / "experiments" / "results" / "control_worlds" / "clevr.json").read_text())
    assert record["command"] in page
    names = {"real": "`real`, `rephrase`", "easy": "`easy`", "hard": "`hard`"}
    names |= {"hard, two relations": "of these, two relations", "hard, three relations": "three relations"}
    names |= {"hard, line": "the line", "hard, gathering": "the gathering"}

    def share(found):
        return f"{wilson(found['solved'], found['of']):.2f} of {found['of']}"

    for name, said in names.items():
        expert, chance = (record["levels"][f"{name}, {who}"] for who in ("expert", "random actions"))
        assert f"| {said} | {share(expert)} | {expert['steps']} | {share(chance)} |" in page, name


def test_the_extremes_of_play_are_those_of_the_page():
    page = (ROOT / "docs" / "environments" / "clevr.md").read_text()
    limits = json.loads((ROOT / "experiments" / "results" / "control_worlds" / "clevr.json").read_text())["limits"]
    assert f"{sum(x['actions'] for x in limits.values()):,} macro-actions" in page
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| `")}
    assert f"{min(x['closest to a wall'] for x in limits.values())} m |" in rows["`in_wall`"]
    moved, most = (max(x[name] for x in limits.values()) for name in ("largest move", "99.9% of moves below"))
    assert f"| {moved} m; 99.9% of steps below {most} m |" in rows["`dynamics`"]
    assert f"| {min(x['closest centres'] for x in limits.values())} m |" in rows["`overlap`"]
