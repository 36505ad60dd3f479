"""`python -m tests.parity.babyai_table`: plays every BabyAI level beside minigrid and writes the table of the docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import envs_jax
from tests.parity.babyai_compare import IDS, UNSOLVED, Comparison, compare, spelled


DOCS = Path(__file__).parent.parent.parent / "docs" / "environments"
RECORD = DOCS / "babyai-parity.json"
PAGE = DOCS / "babyai-parity.md"
SEEDS = 100

INTRODUCTION = """# BabyAI beside minigrid, level by level

For every id, {seeds} episodes of minigrid 3.2.0 were taken over with `import_state`, half of them at random and half
after minigrid's own bot, one action in eight at random (after ours where that one never succeeds: {unsolved}); some at
their start and some in their middle; and played here with the same actions. Compared at every step: the image, the
direction, the mission, the reward, `terminated` and `truncated`. *Steps* are those compared; *reached* are the episodes
that ended in success, *failed* those that a strict mission ended; *differences* counts levels' worlds that came out
otherwise at any step.

Made by `python -m tests.parity.babyai_table`. {count} ids, {steps} steps, {different} differences.

| id | rooms | size | objects | step limit | steps | reached | failed | differences |
|---|---|---|---|---|---|---|---|---|
"""

NOTE = """
Played with `?compat=minigrid`, because by default their worlds or their verdicts are fixed (see [BabyAI](babyai.md)):
{quirky}.
"""


def row(found: Comparison) -> str:
    """A line of the table."""
    level = envs_jax.make(found.id)[0].level
    rooms = level.rooms
    limit = level.max_steps or f"{rooms.size**2 * rooms.rows * rooms.columns} per clause"
    if level.rooms_used is not None:
        limit = f"{rooms.size**2} or {2 * rooms.size**2}"
    cells = (
        f"`{found.id}`",
        f"{rooms.rows} x {rooms.columns}",
        rooms.size,
        level.num_objects,
        limit,
        found.steps,
        found.successes,
        found.failures,
        found.difference or "none",
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def write(found: Iterable[Comparison]) -> None:
    """The page and the record that it is made of."""
    found = sorted(found, key=lambda c: IDS.index(c.id))
    RECORD.write_text(json.dumps([asdict(c) for c in found], indent=0) + "\n")
    head = INTRODUCTION.format(
        seeds=SEEDS,
        unsolved=", ".join(f"`{id}`" for id in UNSOLVED),
        count=len(found),
        steps=f"{sum(c.steps for c in found):,}",
        different=sum(bool(c.difference) for c in found),
    )
    quirky = ", ".join(f"`{c.id}`" for c in found if spelled(c.id) != c.id)
    PAGE.write_text(head + "\n".join(row(c) for c in found) + "\n" + NOTE.format(quirky=quirky))


def main() -> int:
    """Play all levels that the record lacks, or those named; rewrite the page after each."""
    known = {c["id"]: Comparison(**c) for c in json.loads(RECORD.read_text())} if RECORD.exists() else {}
    for id in sys.argv[1:] or [id for id in IDS if id not in known]:
        known[id] = compare(id, SEEDS)
        print(f"{id}: {known[id].steps} steps, {known[id].difference or 'the same'}", flush=True)
        write(known.values())
    return int(any(c.difference for c in known.values()))


if __name__ == "__main__":
    sys.exit(main())
