"""The peer of the benchmark of agents that write: it reads and writes what our policy does."""

from __future__ import annotations

import pytest


pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import agent_loop  # noqa: E402


@pytest.mark.slow
def test_the_loop_is_measured():
    """At tiny sizes; what `run` itself asserts, log-probabilities of what each side wrote, is the test."""
    result = agent_loop.run(quick=True)
    cases = agent_loop.settings(quick=True).values()
    sides = [2 + len(agent_loop.CACHES) + 1 + len(case.at_once) for case in cases]
    assert len(result.rows) == 2 * sum(sides) and len(result.bars) == 4 * len(cases)
    assert all(len(row.samples) >= 5 and min(row.samples) > 0 for row in result.rows)
