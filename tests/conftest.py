"""Settings of all tests: eight simulated CPU devices, a compilation cache, shapes and types checked at run time."""

from __future__ import annotations

import os
from pathlib import Path

from tests.compilation import xla_flags


CACHE = Path(__file__).parent.parent / ".jax_cache"

os.environ["JAX_PLATFORMS"] = "cpu"
# `make test` compiles quickly; `make test-all` has XLA's own way, which is what users run.
os.environ.setdefault("XLA_FLAGS", xla_flags(os.environ.get("LLMRL_QUICK_COMPILE") == "1"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

if os.environ.get("LLMRL_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook(["envs_jax", "llmrl_jax"], "typecheck.check")
from tests.tokenizer_fixtures import bpe, greedy, sentencepiece  # noqa: E402, F401 - fixtures; after the hook above


RUNGS = ("unit", "cli", "conformance", "parity", "learning", "sharding", "resume", "docs")
"""The ladder: the folders of tests, from the smallest thing tested to the largest."""


def pytest_terminal_summary(terminalreporter):
    """Say which rungs of the ladder were climbed."""
    folders = {}
    for outcome in ("passed", "failed", "error", "skipped", "deselected"):
        for report in terminalreporter.stats.get(outcome, []):
            parts = getattr(report, "nodeid", "").split("/")
            if len(parts) > 2 and (outcome != "passed" or report.when == "call"):
                counts = folders.setdefault(parts[1], {})
                counts[outcome] = counts.get(outcome, 0) + 1
    terminalreporter.section("rungs")
    for rung in (*RUNGS, *sorted(set(folders) - set(RUNGS))):
        counts = ", ".join(f"{n} {outcome}" for outcome, n in folders.get(rung, {}).items())
        terminalreporter.write_line(f"{rung:<12} {counts or 'did not run'}")
