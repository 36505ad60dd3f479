"""The page on offline RL has the numbers of the committed table, for what ours alone was run of."""

from __future__ import annotations

import itertools
import json

from tests.paths import ROOT


def test_what_ours_alone_was_run_of_is_those_of_the_page():
    page = (ROOT / "docs" / "offline-rl.md").read_text()
    worlds = json.loads((ROOT / "experiments" / "results" / "offline_mujoco" / "results.json").read_text())["worlds"]
    for world in ("HalfCheetah-v5", "Hopper-v5"):
        section = page[page.index(f"**{world}.**") :].partition("| medium, ")[0]
        for name in ("awac", "prdc", "bcq", "combo"):
            found = worlds[world]["sets"]["medium-replay"]["algorithms"][name]["ours"]
            returns = ", ".join(f"{x:,.0f}" for x in found["returns"])
            row = f"| | {name.upper()} | {found['gradient_steps']:,} | {found['mean']:,.0f} ± "
            assert f"{row}{found['standard_error']:,.0f} ({returns}) | not made | {found['score']:.1f}, - |" in section


def test_cql_is_that_of_the_page():
    page = (ROOT / "docs" / "offline-rl.md").read_text()
    worlds = json.loads((ROOT / "experiments" / "results" / "offline_mujoco" / "results.json").read_text())["worlds"]
    for world, name in itertools.product(("HalfCheetah-v5", "Hopper-v5"), ("medium-replay", "medium", "expert")):
        found = worlds[world]["sets"][name]["algorithms"]["cql"]
        sides = [found[side] for side in ("ours", "d3rlpy")]
        cells = [
            f"{x['mean']:,.0f} ± {x['standard_error']:,.0f} ({', '.join(f'{y:,.0f}' for y in x['returns'])})"
            for x in sides
        ]
        scores = ", ".join(f"{x['score']:.1f}" for x in sides)
        difference = f"{found['compared']['difference']:,.0f} ± {found['compared']['standard_error']:,.0f}"
        assert f"| | CQL | 3,000 | {' | '.join(cells)} | {scores} | {difference} |" in page
