"""`python -m benchmarks [names] [--quick]`: run and record benchmarks, and write the page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks import harness, table
from envs_jax.checks import nearest


NOT_BENCHMARKS = ("__init__", "__main__", "harness", "table")


def known() -> list[str]:
    """The names of all benchmarks: the modules here that have a `run`."""
    names = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in NOT_BENCHMARKS and "\ndef run(" in path.read_text():
            names.append(path.stem)
    return names


def main(names: Annotated[tuple[str, ...], tyro.conf.Positional] = (), quick: bool = False, here: bool = False) -> int:
    """Run benchmarks and their peers.

    Args:
        names: Benchmarks to run; none: all.
        quick: A short smoke test; its numbers are not written to the page.
        here: Run in this process instead of one per benchmark; for one name.
    """
    everything = known()
    for name in names:
        if name not in everything:
            raise ValueError(
                f"there is no benchmark {name!r}{nearest(name, everything)} (known: {', '.join(everything)})"
            )
    chosen = list(names or everything)
    if here:
        for name in chosen:
            module = importlib.import_module(f"benchmarks.{name}")
            harness.record(name, module.TITLE, module.run, quick)
        return 0
    failed = []
    for name in chosen:
        print(f"{name}:", flush=True)
        if harness.execute(name, quick):
            failed.append(name)
    print(f"the table is {table.write().relative_to(harness.ROOT)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    from llmrl_jax.cli import main as cli

    sys.exit(cli.guard(lambda: tyro.cli(main, prog="python -m benchmarks")))
