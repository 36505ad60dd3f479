"""`python -m benchmarks [names] [--quick]`: run and record benchmarks, and write the page."""

from __future__ import annotations

import importlib
import math
import signal
import sys
from typing import Annotated

import tyro

from benchmarks import harness, table
from envs_jax.checks import nearest
from llmrl_jax.core.checks import in_interval
from llmrl_jax.run import info


ORDER = (
    "envs_babyai",
    "crafter",
    "babyai_bot",
    "glam_loop",
    "agent_loop",
    "agent_host",
    "mujoco",
    "scoring",
    "language_model",
    "ppo_cartpole",
    "offline_rl",
    "kalm_imagine",
    "envs_babyai_mazes",
    "lora_gradient",
    "language_model_110m",
    "mixed_precision",
    "dqn",
    "metaworld",
    "clevr",
    "bkrl",
    "props_evaluate",
    "housekeep",
    "prompts",
    "quantize",
    "seeds",
    "textgames",
)
"""All benchmarks, the most important first."""


def current(name: str) -> bool:
    """Return whether the record of a benchmark is of this commit and this processor."""
    record = harness.load(harness.path_of(name))
    return bool(record) and (record.get("commit"), record["machine"]["cpu"]) == (harness.commit(), info.cpu())


def listed(names: tuple[str, ...]) -> None:
    """Print the benchmarks with the minutes that they took and their records' date and commit."""
    minutes = 0.0
    for name in names:
        record = harness.load(harness.path_of(name))
        took = record.get("took_seconds", math.nan) / 60
        minutes += took
        made = f"{record['date']}, {record.get('commit') or 'no commit'}" if record else "no record"
        print(f"{name:<20} {took:5.1f} minutes   {made}{' (current)' if current(name) else ''}")
    print(f"{'in all':<20} {minutes:5.1f} minutes")


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    quick: bool = False,
    resume: bool = False,
    limit_minutes: float = 30,
    list: bool = False,
    here: bool = False,
) -> int:
    """Run benchmarks and their peers, each in a process of its own, and write the page after each of them.

    Args:
        names: Benchmarks to run; none: all, the most important first.
        quick: A short smoke test; its numbers are not written to the page.
        resume: Skip those with a record of this commit and processor.
        limit_minutes: Time after which a benchmark is stopped, and the next one begins.
        list: List the benchmarks, how long each took and the commit of its record, and run none.
        here: Run in this process; for one name.
    """
    for name in names:
        if name not in ORDER:
            raise ValueError(f"there is no benchmark {name!r}{nearest(name, [*ORDER])} (known: {', '.join(ORDER)})")
    in_interval("limit_minutes", limit_minutes, "(0, inf]")
    chosen, digits = names or ORDER, harness.commit()
    if here:
        for name in chosen:
            module = importlib.import_module(f"benchmarks.{name}")
            harness.record(name, module.TITLE, module.run, quick)
        return 0
    if list:
        listed(chosen)
        return 0
    if digits.endswith("-dirty") and not quick:
        print(f"warning: the code differs from its last commit; records will name {digits}", file=sys.stderr)
    failed = {}
    for name in chosen:
        if resume and not quick and current(name):
            print(f"{name}: there is a record of {digits}", flush=True)
            continue
        print(f"{name}:", flush=True)
        if reason := harness.execute(name, quick, 60 * limit_minutes):
            failed[name] = reason
            print(f"{name}: {reason}", file=sys.stderr, flush=True)
        if not quick:
            table.write()
    if not quick:
        print(f"the table is {table.PAGE.relative_to(harness.ROOT)}")
    if failed:
        print("failed: " + "; ".join(f"{name} ({reason})" for name, reason in failed.items()), file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    from llmrl_jax.cli import main as cli

    # so that what a benchmark started ends with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(cli.guard(lambda: tyro.cli(main, prog="python -m benchmarks")))
