"""Write `docs/benchmarks.md` from the recorded results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ELSEWHERE, OURS, RESULTS, ROOT, less_is_better, load, number


PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Our speed and that of peers, measured in one run on one machine (`make bench`). Medians of at least five repetitions
after warm-up, with the range in brackets; compilation is excluded and has its own column. Observations are folded into
the carry, so that the compiler cannot remove them. The last column is our fastest median in the case divided by that of
the row: above 1 we are faster. If a peer has several rows in a case, its fastest one counts: the sentences below a
table compare that one with our fastest. Peers that compute on one core also have a row with as many processes as there
are cores.

An aim is met if our lower quartile and the peer's upper quartile still reach it, and missed if our upper and the peer's
lower quartile do not; otherwise it is within the noise, and the range is given.

Figures of a loaded machine are lower bounds; its load average is given with each table. The commit is the last one that
changed the code (`-dirty`: with other changes). Ratios depend on the processor (torch multiplies matrices by Intel's
library): where the same commit was also measured on another one, the last line has its ratios there.
"""


def _ratio(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    if row["who"] == OURS or math.isnan(row["median"]):
        return ""
    ours = [r["median"] for r in rows if (r["case"], r["who"], r["unit"]) == (row["case"], OURS, row["unit"])]
    if not ours or not row["median"]:
        return ""
    return f"{row['median'] / min(ours) if less_is_better(row['unit']) else max(ours) / row['median']:.3g}"


def _made(result: dict[str, Any]) -> str:
    return f"{result['date']}, commit {result.get('commit') or 'unknown'}"


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
        f"- {_made(result)}: {machine['cpu']}, {machine['cores']} cores, {machine['devices']}; load average "
        f"{machine['load_average']} before and {machine['load_average_after']} after; Python {versions['python']}, "
        f"jax {versions['jax']}; peak memory {result['peak_memory_gib']} GiB; {result['took_seconds']:.0f} s in all."
    )
    for other in others:
        it = other["machine"]
        when = f"{_made(other)}, load average {it['load_average']} before and {it['load_average_after']} after"
        lines.append(f"- On another processor, {it['cpu']} ({when}): {'; '.join(other['bars'])}.")
    return "\n".join(lines) + "\n"


def page(folder: Path = RESULTS) -> str:
    """The whole page; results of quick runs are omitted."""
    results = {path.stem: load(path) for path in sorted(folder.glob("*.json"))}
    others = {name: [load(path) for path in sorted((folder / ELSEWHERE).glob(f"{name}--*.json"))] for name in results}
    return "\n".join([HEAD, *(section(r, others[name]) for name, r in results.items() if not r["quick"])])


def write() -> Path:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return PAGE
