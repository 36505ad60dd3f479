"""Write `docs/benchmarks.md` from the recorded results."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ELSEWHERE, OURS, RESULTS, ROOT, less_is_better


PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Our speed and that of peers, measured in one run on one machine (`make bench`). Medians of at least five repetitions
after warm-up, with the range in brackets; compilation is excluded and has its own column. Observations are folded into
the carry, so that the compiler cannot remove them. The last column is our median divided by that of the row: above 1 we
are faster. If a peer has several rows in a case, its fastest one counts: the sentences below a table compare that one
with our fastest. Figures of a loaded machine are lower bounds; its load average is given with each table. Ratios depend
on the processor (torch multiplies matrices by Intel's library): where a benchmark was also run on another one, the last
line has its ratios there.
"""


def number(x: float) -> str:
    """Three significant digits: 0.0123, 4.56, 789, 12.3k, 1.23M; `failed` for NaN."""
    if math.isnan(x):
        return "failed"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}{unit}"
    return f"{x:.3g}"


def _ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    if row["who"] == OURS or math.isnan(row["median"]):
        return ""
    ours = [r for r in rows if r["case"] == row["case"] and r["who"] == OURS and r["unit"] == row["unit"]]
    if not ours or not row["median"]:
        return ""
    best = ours[0]["median"]
    ratio = row["median"] / best if less_is_better(row["unit"]) else best / row["median"]
    return f"{ratio:.3g}"


def section(result: dict[str, Any], others: Sequence[dict[str, Any]] = ()) -> str:
    """One benchmark: its table, the bars, the conditions, and the bars on other processors."""
    rows = result["rows"]
    lines = [f"## {result['title']}", ""]
    lines += ["| case | who | median | unit | compile (s) | ours / theirs |", "|---|---|---|---|---|---|"]
    for row in rows:
        samples = row["samples"]
        spread = f" ({number(min(samples))} to {number(max(samples))})" if len(samples) > 1 else ""
        compile_seconds = "" if row["compile_seconds"] is None else f"{row['compile_seconds']:.2f}"
        who = f"**{row['who']}**" if row["who"] == OURS else row["who"]
        who += f": {row['note']}" if row["note"] else ""
        median = number(statistics.median(samples))
        cells = [row["case"], who, f"{median}{spread}", row["unit"], compile_seconds, _ratio(row, rows)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"- {text}" for text in (*result["bars"], *result["notes"])]
    machine, versions = result["machine"], result["versions"]
    lines.append(
        f"- {result['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['devices']}; load average "
        f"{machine['load_average']} before and {machine['load_average_after']} after; Python {versions['python']}, "
        f"jax {versions['jax']}; peak memory {result['peak_memory_gib']} GiB; {result['took_seconds']:.0f} s in all."
    )
    for other in others:
        it = other["machine"]
        when = f"{other['date']}, load average {it['load_average']} before and {it['load_average_after']} after"
        lines.append(f"- On another processor, {it['cpu']} ({when}): {'; '.join(other['bars'])}.")
    return "\n".join(lines) + "\n"


def page(folder: Path = RESULTS) -> str:
    """The whole page; results of quick runs are omitted."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    others = {
        name: [json.loads(path.read_text()) for path in sorted((folder / ELSEWHERE).glob(f"{name}--*.json"))]
        for name in results
    }
    return "\n".join([HEAD, *(section(r, others[name]) for name, r in results.items() if not r["quick"])])


def write() -> Path:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return PAGE
