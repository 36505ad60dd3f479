from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

from benchmarks import __main__ as program, harness, table
from benchmarks.harness import OURS, Result, Row


def fake(quick: bool) -> Result:
    times = harness.seconds(lambda: jnp.ones(3) + 1)
    assert len(times) == 5 and all(t > 0 for t in times)
    return Result(
        [
            Row("stepping", OURS, "steps/s", [100.0, 300.0, 200.0, 250.0, 150.0], compile_seconds=1.5),
            Row("stepping", "peer", "steps/s", [50.0] * 5, note="older"),
            Row("loading", OURS, "s", [2.0]),
            Row("loading", "peer", "s", [6.0]),
        ],
        bars=["A bar: met."],
    )


def test_a_benchmark_is_recorded_with_its_conditions_and_enters_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    path = harness.record("fake", "A fake", fake, quick=False)
    value = json.loads(path.read_text())
    assert value["rows"][0]["median"] == 200.0 and value["machine"]["cores"] >= 1 and value["versions"]["jax"]
    harness.record("fake", "A fake, quick", fake, quick=True)
    page = table.page(tmp_path)
    assert "| stepping | **llmrl_jax** | 200 (100 to 300) | steps/s | 1.50 |  |" in page
    assert "| stepping | peer: older | 50 (50 to 50) | steps/s |  | 4 |" in page
    assert "| loading | peer | 6 | s |  | 3 |" in page  # seconds: less is better
    assert "- A bar: met." in page and "load average" in page and "quick" not in page
    assert "stepping" in capsys.readouterr().out


def test_fewer_than_five_repetitions_are_refused():
    with pytest.raises(ValueError, match="at least 5"):
        harness.seconds(lambda: None, repeats=3)


def test_compilation_is_measured_apart():
    program, took = harness.compiled(lambda x: x * 2, jnp.ones(3))
    assert took > 0 and program(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_numbers():
    assert [table.number(x) for x in (0.01234, 4.567, 789.4, 12345, 1.234e6)] == [
        "0.0123",
        "4.57",
        "789",
        "12.3k",
        "1.23M",
    ]


def test_unknown_benchmarks_are_refused(monkeypatch):
    monkeypatch.setattr(program, "known", lambda: ["envs_babyai", "prompts"])
    with pytest.raises(ValueError, match="no benchmark 'promts'; did you mean 'prompts'"):
        program.main(("promts",))


def test_a_missing_peer_environment_is_named(monkeypatch):
    monkeypatch.setenv("LLMRL_PEERS", "nowhere")
    with pytest.raises(FileNotFoundError, match="make bench"):
        harness.run_peer("x.py")
