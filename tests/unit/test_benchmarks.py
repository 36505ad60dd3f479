from __future__ import annotations

import importlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from benchmarks import (
    __main__ as program,
    envs_babyai,
    harness,
    mujoco_rollout,
    offline_rl,
    peer_grids,
    ppo_cartpole,
    processes,
    table,
    torch_peer,
)
from benchmarks.harness import OURS, Figure, Result, Row
from benchmarks.torch_peer import Way
from llmrl_jax.agents.population import episode_keys
from llmrl_jax.run import info
from llmrl_jax.run.chunk import compile_chunk


COMMIT = "0123456789ab"


@pytest.fixture(autouse=True)
def stated_commit(monkeypatch):
    monkeypatch.setenv(info.COMMIT, COMMIT)


def fake(quick: bool) -> Result:
    times = harness.seconds(lambda: jnp.ones(3) + 1)
    assert len(times) == 5 and all(t > 0 for t in times)
    return Result(
        [
            Row("stepping", OURS, "steps/s", [100.0, 300.0, 200.0, 250.0, 150.0], compile_seconds=1.5),
            Row("stepping", "peer", "steps/s", [50.0] * 5, note="older"),
            Row("loading", OURS, "s", [2.0]),
            Row("loading", "peer", "s", [6.0]),
            Row("loading", "broken peer", "s", [float("nan")], note="no compiler"),
        ],
        bars=["A bar: met."],
    )


def test_a_benchmark_is_recorded_with_its_conditions_and_enters_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    path = harness.record("fake", "A fake", fake, quick=False)
    value = json.loads(path.read_text())
    assert value["rows"][0]["median"] == 200.0 and value["machine"]["cores"] >= 1 and value["versions"]["jax"]
    assert value["commit"] == COMMIT
    harness.record("fake", "A fake, quick", fake, quick=True)
    page = table.page(tmp_path)
    assert "| stepping | **llmrl_jax** | 200 (100 to 300) | steps/s | 1.50 |  |" in page
    assert "| stepping | peer: older | 50 (50 to 50) | steps/s |  | 4 |" in page
    assert "| loading | peer | 6 | s |  | 3 |" in page  # seconds: less is better
    assert "| loading | broken peer: no compiler | failed | s |  |  |" in page
    assert "- A bar: met." in page and "load average" in page and "quick" not in page
    assert page.count(f", commit {COMMIT}: ") == 1
    assert "stepping" in capsys.readouterr().out


def test_the_record_of_another_processor_is_kept_and_its_bars_are_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    path = harness.record("fake", "A fake", fake, quick=False)
    old = json.loads(path.read_text())
    old["machine"]["cpu"], old["bars"] = "Some (R) CPU", ["An older bar: missed"]
    path.write_text(json.dumps(old))
    harness.record("fake", "A fake", fake, quick=True)  # does not move it
    assert not (tmp_path / "elsewhere").exists()
    harness.record("fake", "A fake", fake, quick=False)
    assert json.loads((tmp_path / "elsewhere" / "fake--some-r-cpu.json").read_text()) == old
    page = table.page(tmp_path)
    assert page.count("- On another processor, Some (R) CPU (") == 1 and "after): An older bar: missed." in page
    assert "- A bar: met." in page and page.count(f", commit {COMMIT}") == 2
    path.write_text(json.dumps(old))  # back on that processor: its last record is the one of the table
    harness.keep_elsewhere(path, "Another CPU", COMMIT)
    harness.keep_elsewhere(path, "Some (R) CPU", COMMIT)
    assert not (tmp_path / "elsewhere" / "fake--some-r-cpu.json").exists()


def test_records_of_other_commits_are_not_kept_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    path = harness.record("fake", "A fake", fake, quick=False)
    old = json.loads(path.read_text())
    for digits in (None, "9876543210ab"):
        path.write_text(json.dumps(old | {"machine": {**old["machine"], "cpu": "Some CPU"}, "commit": digits}))
        harness.record("fake", "A fake", fake, quick=False)
        assert [p.name for p in tmp_path.rglob("*.json")] == ["fake.json"]


def test_without_a_commit_nothing_is_measured_or_written(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(info, "commit", lambda *folders: None)
    with pytest.raises(RuntimeError, match=info.COMMIT):
        harness.record("fake", "A fake", lambda quick: pytest.fail("measured"), quick=False)
    with pytest.raises(RuntimeError, match=info.COMMIT):
        program.main(("prompts",))
    assert not [*tmp_path.iterdir()]


def test_a_change_during_a_benchmark_is_in_its_record(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def run(quick: bool) -> Result:
        monkeypatch.setenv(info.COMMIT, f"{COMMIT}-dirty")
        return fake(quick)

    assert json.loads(harness.record("fake", "A fake", run, quick=False).read_text())["commit"] == f"{COMMIT}-dirty"


def test_fewer_than_five_repetitions_are_refused():
    with pytest.raises(ValueError, match="at least 5"):
        harness.seconds(lambda: None, repeats=3)


def test_compilation_is_measured_apart():
    program, took = harness.compiled(lambda x: x * 2, jnp.ones(3))
    assert took > 0 and program(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_an_update_is_that_of_a_run_and_copies_no_data(monkeypatch):
    learner, _ = offline_rl.learner_of("bc", 600, discrete=False, steps=2)
    state = learner.init(jax.random.key(0))
    programs = []

    def recorded(learner, state, capacity):
        program, took = compile_chunk(learner, state, capacity)
        programs.append(program)
        return program, took

    monkeypatch.setattr(harness, "compile_chunk", recorded)
    call, took = harness.updating(learner, state)
    found = [float(call()["actor_loss"][0]) for _ in range(2)]
    first, metrics = jax.jit(learner.update)(state)  # the state itself was not donated
    np.testing.assert_allclose(
        found, [metrics["actor_loss"], jax.jit(learner.update)(first)[1]["actor_loss"]], rtol=1e-6
    )
    returned = sum(np.prod(x.shape, dtype=int) for x in jax.tree.leaves(programs[0].out_info))
    assert took > 0 and returned < sum(x.size for x in jax.tree.leaves(state.replace(frozen=()))) + 10


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (4.93e-05, "4.93e-05"),
        (0.01234, "0.0123"),
        (0.9996, "1"),
        (4.567, "4.57"),
        (99.96, "100"),
        (789.4, "789"),
        (999.4, "999"),
        (999.6, "1k"),
        (1000, "1k"),
        (12345, "12.3k"),
        (999_400, "999k"),
        (999_600, "1M"),
        (1.234e6, "1.23M"),
        (999.6e6, "1G"),
        (2.5e9, "2.5G"),
        (999.6e9, "1T"),
        (1.15e15, "1150T"),
        (-999_600, "-1M"),
        (float("inf"), "inf"),
        (float("nan"), "failed"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(value, text):
    assert harness.number(value) == text


def test_unknown_benchmarks_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="'promts'.*'prompts'"):
        program.main(("promts",))


def test_every_benchmark_is_in_the_order():
    modules = [p.stem for p in harness.ROOT.glob("benchmarks/*.py") if "\ndef run(quick" in p.read_text()]
    assert sorted(modules) == sorted(program.ORDER)


def test_benchmarks_are_resumed_in_order_and_a_failure_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "PAGE", harness.ROOT / "docs" / "unwritten.md")
    monkeypatch.setattr(table, "write", lambda: None)
    monkeypatch.setattr(program, "ORDER", ("a", "b", "c", "d"))
    harness.record("b", "A fake", fake, quick=False)
    for name, change in {"c": {"commit": f"{COMMIT}-dirty"}, "d": {"machine": {"cpu": "Another CPU"}}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(harness.load(tmp_path / "b.json") | change))
    executed = []
    fails = {"c": "stopped after 2 minutes"}
    monkeypatch.setattr(harness, "execute", lambda *args: executed.append(args) or fails.get(args[0], ""))
    assert program.main(resume=True, limit_minutes=2) == 1
    assert executed == [("a", False, 120), ("c", False, 120), ("d", False, 120)]
    assert "failed: c" in capsys.readouterr().err
    assert program.main(("d", "b")) == 0 and [name for name, *_ in executed[3:]] == ["d", "b"]
    assert program.main(list=True) == 0 and "(current)" in capsys.readouterr().out and len(executed) == 5


def test_a_benchmark_is_stopped_at_its_limit_with_what_it_started(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__main__.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        "sys.exit(3) if 'fails' in sys.argv else time.sleep(60)\n"
    )
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    assert harness.execute("sleeps", False, 3.0) == "stopped after 0.05 minutes"
    for _ in range(100):  # the child of a killed process is reaped by another one
        stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process survived")
    assert harness.execute("fails", True) == "exit code 3"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_missing_peer_environment_is_named(monkeypatch):
    monkeypatch.setenv("LLMRL_PEERS", "nowhere")
    with pytest.raises(FileNotFoundError, match="make bench"):
        harness.run_peer("x.py")


def test_a_ratio_compares_the_fastest_rows_of_both_sides():
    def of(unit, *medians):
        return [Row("case", "who", unit, [median] * 5) for median in medians]

    nan = float("nan")
    assert harness.speedup(of("steps/s", 8, 12), of("steps/s", nan, 3, 6, nan)).value == 2  # not 4 or 1.3
    assert harness.speedup(of("s", 5, 2), of("s", 6, 9)).value == 3  # seconds: less is better
    assert harness.fastest(of("s to compile", 5, 2)).median == 2
    with pytest.raises(ValueError, match="2 units"):
        harness.fastest(of("s", 1) + of("steps/s", 1))
    with pytest.raises(ValueError, match="'s'.*'steps/s'"):
        harness.speedup(of("s", 1), of("steps/s", 1))


def test_a_ratio_has_the_range_of_both_sides():
    ours = [Row("case", OURS, "steps/s", [100.0, 12.0, 10.0, 8.0, 1.0])]  # quartiles 8 and 12
    theirs = [Row("case", "peer", "steps/s", [5.0, 4.0, 6.0, 0.1, 50.0])]  # quartiles 4 and 6
    assert harness.speedup(ours, theirs) == Figure(10 / 5, 8 / 6, 12 / 4)
    for row in (*ours, *theirs):
        row.unit = "s"
    assert harness.speedup(ours, theirs) == Figure(5 / 10, 4 / 12, 6 / 8)
    assert Figure.of([3.0]) == Figure(3, 3, 3) and f"{Figure(1.256, 0, 9):.2f}" == "1.26"
    assert Figure(1.5, 1, 2).scaled(100, plus=-100) == Figure(50, 0, 100)


@pytest.mark.parametrize(
    ("figure", "bar", "below", "judged"),
    [
        (495.0, 495, False, "met"),
        (494.9, 495, False, "missed"),
        (5.0, 5, True, "missed"),
        (4.9, 5, True, "met"),
        (float("nan"), 1, False, "missed"),
        (Figure(2.1, 2.0, 2.4), 2, False, "met"),
        (Figure(2.1, 1.9, 2.4), 2, False, "within the noise"),
        (Figure(1.9, 1.8, 2.1), 2, False, "within the noise"),
        (Figure(1.8, 1.7, 1.9), 2, False, "missed"),
        (Figure(4.0, 3.0, 4.9), 5, True, "met"),
        (Figure(4.0, 3.0, 5.0), 5, True, "within the noise"),
        (Figure(5.0, 5.0, 6.0), 5, True, "missed"),
        (Figure(*[float("nan")] * 3), 1, False, "missed"),
    ],
)
def test_an_aim_is_met_where_all_of_the_range_reaches_it(figure, bar, below, judged):
    assert harness.verdict(figure, bar, below=below) == judged
    assert harness.aim(figure, bar, below=below).startswith(f"(aim: {'below' if below else 'at least'} {bar}, {judged}")


def test_an_aim_within_the_noise_has_its_range():
    assert harness.aim(Figure(1.03, 0.9412, 1.091), 1) == "(aim: at least 1, within the noise: 0.941 to 1.09)"
    assert harness.aim(Figure(2e5, 1.6e5, 2.1e5), 150_000) == "(aim: at least 150k, met)"


def test_the_bar_of_cartpole_is_the_one_that_is_checked(monkeypatch):
    half = {"samples": [100.0] * 3, "returns": [480.0] * 3, "compile_seconds": 1.0}
    monkeypatch.setattr(ppo_cartpole, "run_peer", lambda *args: half)
    monkeypatch.setattr(ppo_cartpole, "ours", lambda steps, repeats: ([110.0] * 5, 1.0, [496.0] * 5))
    speed, reached = ppo_cartpole.run(quick=True).bars
    assert "1.10 times" in speed and "496.0" in reached and f"at least {ppo_cartpole.BAR_RETURN}, met" in reached
    assert "(aim: at least 1, met)" in speed
    half["samples"] = [100.0, 120.0, 100.0]
    assert "within the noise" in ppo_cartpole.run(quick=True).bars[0]


def test_torch_is_measured_in_every_way_that_works(monkeypatch):
    monkeypatch.setattr(torch_peer, "compiler_error", lambda: "")
    calls = {"compiled": 0}

    def slow_first():
        calls["compiled"] += 1
        time.sleep(0.05 if calls["compiled"] == 1 else 0)
        return 7

    def broken():
        raise RuntimeError("no\n kernel")

    seen = []
    ways = [Way("eager", lambda: 7), Way("compiled", slow_first, True), Way("other", broken, True)]
    eager, compiled, failed = torch_peer.rows("case", "torch", "tokens/s", 10, ways, seen.append)
    assert seen == [7, 7] and eager.compile_seconds is None and eager.note == "eager"
    assert len(compiled.samples) == 5 and 0.04 < compiled.compile_seconds < 5
    assert np.isnan(failed.median) and failed.note == "other: torch.compile fails here (RuntimeError: no kernel)"

    monkeypatch.setattr(torch_peer, "compiler_error", lambda: "torch.compile fails here (no compiler)")
    eager, failed = torch_peer.rows("case", "torch", "tokens/s", 10, ways[:2], seen.append)
    assert (
        failed.note == "compiled: torch.compile fails here (no compiler)" and harness.fastest([eager, failed]) is eager
    )

    def wrong(result):
        raise AssertionError("wrong logits")

    with pytest.raises(AssertionError, match="wrong logits"):
        torch_peer.rows("case", "torch", "tokens/s", 10, ways[:1], wrong)
    with pytest.raises(RuntimeError, match="kernel"):  # eager torch must work
        torch_peer.rows("case", "torch", "tokens/s", 10, [Way("eager", broken)], seen.append)


def test_our_faster_emitters_give_the_row_that_others_are_compared_with():
    measured = {"default": ([1.0, 2.0, 3.0], 0.5), "older": ([4.0, 5.0, 1.0], 0.25)}
    first, second = envs_babyai.our_rows("level", measured)
    assert (first.who, first.median, first.compile_seconds) == (OURS, 4.0, 0.25) and "older" in first.note
    assert second.who == f"{OURS}, XLA's defaults" and second.median == 2.0 and "older" not in second.note


def test_rows_of_peers_say_how_they_reset_and_compile(monkeypatch):
    variant = {"reset": "own", "emitters": "older", "samples": [3.0] * 5, "compile_seconds": 1.0}
    answer = {"navix A": [variant, variant | {"reset": "pool", "emitters": "default"}], "navix B": {"error": "E: no"}}
    asked = []
    monkeypatch.setattr(envs_babyai, "run_peer", lambda *args: asked.append(args) or answer)
    own, pool, failed = envs_babyai.peer_rows("level", ["navix:A", "navix:B"], (8, 20, 5, 4, 1))
    assert asked == [("peer_grids.py", "8", "20", "5", "4", "1", "navix:A", "navix:B")]
    assert own.note == "no missions, the whole map; a new world made for every row in every step; older loop emitters"
    assert pool.note.endswith("our pool of resets around its step; XLA's defaults")
    assert np.isnan(failed.median) and failed.note == "E: no"


def test_the_ratio_to_every_level_of_others_is_stated_where_we_are_slower_too():
    def row(who, median, note=""):
        return Row("levels", who, "steps/s", [median] * 5, None, note)

    peers = [row("navix A", 3.0, "own"), row("navix A", 8.0, "pool"), row("xland B", 2.0, "pool")]
    peers.append(row("navix C", float("nan"), "E: no"))
    noisy = replace(peers[2], samples=[3.0, 5.0, 4.5, 4.4, 3.9], who="noisy D")
    assert envs_babyai.peer_bars("ours", [row(OURS, 4.0)], [noisy]) == [
        "ours: 0.91 times noisy D, another level (pool)"
    ]
    assert envs_babyai.peer_bars("ours", [row(OURS, 4.0), row(OURS, 1.0)], peers) == [
        "ours: 0.50 times navix A, another level (pool): we are slower",
        "ours: 2.00 times xland B, another level (pool)",
    ]


def test_the_page_is_that_of_the_recorded_results():
    assert table.page() == table.PAGE.read_text()


def committed_records() -> dict[str, dict]:
    folders = (harness.RESULTS, harness.RESULTS / harness.ELSEWHERE)
    return {
        p.name: harness.load(p) for folder in folders for p in folder.glob("*.json") if not p.stem.endswith("-quick")
    }


def test_every_table_of_the_page_names_the_commit_of_its_record():
    """A table compares what one run measured; tables may be of different commits."""
    page = table.PAGE.read_text()
    for name, record in committed_records().items():
        assert re.fullmatch(r"[0-9a-f]{12}", record.get("commit") or ""), name
        assert f"- {record['date']}, commit {record['commit']}" in page, name


@pytest.mark.slow
@pytest.mark.parametrize("name", program.ORDER)
def test_every_benchmark_runs_at_small_sizes(name):
    """The libraries of peers in their own environments, and torch, where they are installed."""
    try:
        result = importlib.import_module(f"benchmarks.{name}").run(quick=True)
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(str(error))
    assert all(row.samples and min(row.samples) > 0 for row in result.rows if not math.isnan(row.median))
    assert any(row.who == OURS for row in result.rows)


def test_records_are_of_benchmarks_that_exist():
    assert {name.removesuffix(".json").partition("--")[0] for name in committed_records()} <= set(program.ORDER)


# Peers in processes of their own.


def counted(seed: int, piece: float) -> Iterator[float | None]:
    while True:
        time.sleep(piece)
        yield 2
        time.sleep(piece)  # not part of the measurement
        yield None


def fails(seed: int) -> Iterator[float]:
    raise ValueError(f"seed {seed}")
    yield 0


def test_pieces_that_are_not_measured_cost_nothing():
    assert 5 < processes.rate(counted(0, 0.02), 0.1) <= 100


@pytest.mark.slow
def test_a_peer_has_a_row_of_one_process_and_one_of_all_cores(monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda pid: {0, 1})
    one, two = processes.peer_rows("case", "peer", "steps/s", counted, (0.02,), window=0.05, note="a note")
    assert (one.note, two.note) == ("1 process; a note", "2 processes; a note") and len(two.samples) == 5
    assert 5 < one.median <= 100 and 10 < two.median <= 200  # the sum of both


def test_a_peer_that_fails_is_named():
    with pytest.raises(RuntimeError, match="fails"):
        processes.together(fails, (), 1, 0.05, 0.05)


class Count(NamedTuple):
    """A world that counts to its own limit."""

    observation: jax.Array
    limit: jax.Array
    reward: jax.Array


def counting() -> peer_grids.Level:
    def reset(key):
        return Count(jnp.int32(0), jax.random.randint(key, (), 2, 5), jnp.float32(0))

    def step(now, action):
        return Count(now.observation + 1, now.limit, jnp.float32(1))

    def own(now, action):
        after = step(now, action)
        return jax.tree.map(lambda new, old: jnp.where(ended(after), new, old), reset(jax.random.key(0)), after)

    ended = lambda now: now.observation >= now.limit  # noqa: E731
    keep = lambda fresh, now: fresh._replace(reward=now.reward)  # noqa: E731
    return peer_grids.Level(reset, step, ended, own, keep, 3)


def test_a_pool_of_resets_replaces_the_rows_that_ended():
    now = Count(jnp.array([4, 1, 3]), jnp.array([4, 4, 3]), jnp.array([1.0, 2.0, 3.0]))
    pool = Count(jnp.array([0, 0]), jnp.array([2, 3]), jnp.array([9.0, 9.0]))
    after = peer_grids.from_pool(counting(), pool, jnp.array([1, 0, 0]), now)
    assert after.observation.tolist() == [0, 1, 0] and after.limit.tolist() == [3, 4, 2]
    assert after.reward.tolist() == [1.0, 2.0, 3.0]  # kept, as the package's own reset would


def test_a_peer_of_jax_is_measured_with_every_reset_and_both_emitters(monkeypatch):
    monkeypatch.setattr(peer_grids, "LEVELS", {"toy": lambda id: counting()})
    results = peer_grids.main(4, 6, 5, 2, 1, "toy:Count", "none:Count")
    assert results["none Count"] == {"error": "KeyError: 'none'"}  # and the other level is still measured
    variants = results["toy Count"]
    assert [(v["reset"], v["emitters"]) for v in variants] == [
        (reset, name) for reset in ("own", "pool") for name in peer_grids.emitters()
    ]
    assert all(len(v["samples"]) == 5 and min(v["samples"]) > 0 and v["compile_seconds"] > 0 for v in variants)
    assert set(peer_grids.emitters()) == ({"default", "older"} if envs_babyai.compiler_options() else {"default"})


def test_mujoco_rollout_repeats_the_physics_of_our_evaluations_to_the_bit():
    env, env_params = envs_jax.make("InvertedPendulum-v5")
    env_params = env_params.replace(max_steps=12)
    params = np.float32([[0.4, 6.0, 0.6, 2.5, 0.0], [0.0, -40.0, 0.0, 0.0, 0.5]])
    keys = jax.vmap(lambda key: episode_keys(key, 3))(jax.random.split(jax.random.key(0), 2))
    recording = mujoco_rollout.record(env, env_params, params, keys, 12)
    assert recording.lengths[:3].tolist() == [12] * 3 and max(recording.lengths[3:]) < 12  # it balances; it falls
    replay = mujoco_rollout.Replay(env.physics, recording)
    assert replay.steps == 2 * recording.lengths.sum()  # two time steps per step
    replay()
    replay.check(recording)
    other = recording._replace(actions=recording.actions + np.float32(1e-6))
    with pytest.raises(AssertionError):
        mujoco_rollout.Replay(env.physics, other).check(recording)
