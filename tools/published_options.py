"""Write `docs/published-options.md`, published options on our commands: `python -m tools.published_options`."""

from __future__ import annotations

import importlib
from pathlib import Path

from llmrl_jax.cli.main import groups
from llmrl_jax.options.published import rows


PAGE = Path(__file__).parent.parent / "docs" / "published-options.md"
HEAD = """# Options of the published programs

Commands of the five systems also read the options of the programs that were published with the papers: `--name value`,
and for ELLM and GLAM the keys of their configurations, as in `env_spec.threshold=.9`. Options that mean the same are
read as ours; others are refused, with what to write instead. Options that are left out have our defaults; presets have
the published values. ProPS's programs have one option, `--config FILE`, which is ours too, and
[reads both published schemas](systems/props.md).

`python -m tools.published_options` writes this page.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for system, group in groups().items():
        for name, command in getattr(importlib.import_module(group.module), "COMMANDS", {}).items():
            table = getattr(command, "published", None)
            if table is None or not table.options:
                continue
            parts.append(f"## llmrl {system} {name}\n\nFor {table.program}.\n\n| published | here |\n|---|---|")
            cells = ((theirs, ours.replace("|", "\\|")) for theirs, ours in rows(table))
            parts[-1] += "".join(f"\n| {theirs} | {ours} |" for theirs, ours in cells) + "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
