"""Settings of all tests: eight simulated CPU devices, shapes and types checked at run time, a compilation cache."""

from __future__ import annotations

import gc
import importlib.util
import os
from pathlib import Path

import pytest

from tests.compilation import compile_less, xla_flags


CACHE = Path(__file__).parent.parent / ".jax_cache"

os.environ["JAX_PLATFORMS"] = "cpu"
# `make test` compiles quickly; `make test-all` has XLA's own way, which is what users run.
QUICK = os.environ.get("LLMRL_QUICK_COMPILE") == "1"
os.environ.setdefault("XLA_FLAGS", xla_flags(QUICK))
if QUICK:  # no file and line beside every operation of a program: a sixth of tracing and lowering
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# A first run gains nothing from a cache, and filling it takes 7% of its time; with a full one it takes a third less.
# `make check` makes the folder: who runs the tests more than once.
if CACHE.is_dir():
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
else:
    os.environ.setdefault("LLMRL_COMPILATION_CACHE", "off")
gc.set_threshold(50_000, 20, 50)  # traces are millions of small objects, and nearly all of them stay

if os.environ.get("LLMRL_TYPECHECK", "1") != "0":
    import typecheck  # noqa: F401 - replaces the decorator of the hook
    from jaxtyping import install_import_hook

    install_import_hook(["envs_jax", "llmrl_jax"], "typecheck.check")
if QUICK:
    compile_less()
from tests.tokenizer_fixtures import bare, bpe, greedy, sentencepiece  # noqa: E402, F401 - fixtures; after the hook above


RUNGS = ("unit", "cli", "conformance", "parity", "learning", "sharding", "resume", "docs")
"""The ladder: the folders of tests, from the smallest thing tested to the largest."""


HEAVY = (
    "agents",
    "envs_jax/babyai",
    "envs_jax/bridges",
    "envs_jax/clevr/test_world.py",
    "envs_jax/crafter",
    "envs_jax/housekeep",
    "envs_jax/metaworld",
    "envs_jax/mujoco",
    "envs_jax/physics",
    "lm/test_encoder.py",
    "lm/test_generate.py",
    "lm/test_peft.py",
    "lm/test_quantize.py",
    "lm/test_sampling.py",
    "lm/test_score.py",
    "lm/test_weights_memory.py",
    "rl/test_bonus.py",
    "rl/test_dqn.py",
    "rl/test_ppo.py",
    "workflows",
    "run/test_checkpoint.py",
    "run/test_loop.py",
    "serve",
    "systems",
    "tuning",
)
"""Below tests/unit: what compiles learners, worlds and language models. `make check` leaves it out, and prints which of
the rest take longest: what needs more than a few seconds belongs here."""


def pytest_collection_modifyitems(config, items):
    """Mark what is heavy, and skip worlds whose package is missing. Of several processes none should get the pages
    last, when the others have nothing to do."""
    paths = {item.path for item in items}
    unit = Path(__file__).parent / "unit"
    heavy = {path for path in paths if any(path.is_relative_to(unit / name) for name in HEAVY)}
    for item in items:
        if item.path in heavy:
            item.add_marker(pytest.mark.heavy)
    if importlib.util.find_spec("metaworld") is None:
        for item in items:
            if str(getattr(item, "callspec", None) and item.callspec.params.get("id")).startswith("MetaWorld"):
                item.add_marker(pytest.mark.skip(reason="its scenes need the package metaworld"))
    if hasattr(config, "workerinput"):
        folders = {path: path.relative_to(config.rootpath).parts[1] for path in paths}
        order = {path: -RUNGS.index(folder) if folder in RUNGS else 0 for path, folder in folders.items()}
        items.sort(key=lambda item: order[item.path])


def pytest_collection_finish():
    """Leave what is there from now on to the end out of garbage collections."""
    gc.freeze()


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
