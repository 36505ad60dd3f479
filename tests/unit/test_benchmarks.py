from __future__ import annotations

import json
import time
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
    table,
    torch_peer,
)
from benchmarks.harness import OURS, Result, Row
from benchmarks.torch_peer import Way
from llmrl_jax.agents.population import episode_keys
from llmrl_jax.run.chunk import compile_chunk


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
    harness.record("fake", "A fake, quick", fake, quick=True)
    page = table.page(tmp_path)
    assert "| stepping | **llmrl_jax** | 200 (100 to 300) | steps/s | 1.50 |  |" in page
    assert "| stepping | peer: older | 50 (50 to 50) | steps/s |  | 4 |" in page
    assert "| loading | peer | 6 | s |  | 3 |" in page  # seconds: less is better
    assert "| loading | broken peer: no compiler | failed | s |  |  |" in page
    assert "- A bar: met." in page and "load average" in page and "quick" not in page
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
    assert "- A bar: met." in page
    path.write_text(json.dumps(old))  # back on that processor: its last record is the one of the table
    harness.keep_elsewhere(path, "Another CPU")
    harness.keep_elsewhere(path, "Some (R) CPU")
    assert not (tmp_path / "elsewhere" / "fake--some-r-cpu.json").exists()


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


def test_a_ratio_compares_the_fastest_rows_of_both_sides():
    def of(unit, *medians):
        return [Row("case", "who", unit, [median] * 5) for median in medians]

    nan = float("nan")
    assert harness.speedup(of("steps/s", 8, 12), of("steps/s", nan, 3, 6, nan)) == 2  # not 4 or 1.3
    assert harness.speedup(of("s", 5, 2), of("s", 6, 9)) == 3  # seconds: less is better
    assert harness.fastest(of("s to compile", 5, 2)).median == 2
    with pytest.raises(ValueError, match="rows of 2 units"):
        harness.fastest(of("s", 1) + of("steps/s", 1))
    with pytest.raises(ValueError, match="cannot be compared"):
        harness.speedup(of("s", 1), of("steps/s", 1))


@pytest.mark.parametrize(
    ("value", "bar", "below", "text"),
    [
        (495.0, 495, False, "(aim: at least 495, met)"),
        (494.9, 495, False, "(aim: at least 495, missed)"),
        (5.0, 5, True, "(aim: below 5, missed)"),
        (4.9, 5, True, "(aim: below 5, met)"),
        (float("nan"), 1, False, "(aim: at least 1, missed)"),
    ],
)
def test_the_printed_bar_is_the_checked_one(value, bar, below, text):
    assert harness.aim(value, bar, below=below) == text


def test_the_bar_of_cartpole_is_the_one_that_is_checked(monkeypatch):
    half = {"samples": [100.0] * 3, "returns": [480.0] * 3, "compile_seconds": 1.0}
    monkeypatch.setattr(ppo_cartpole, "run_peer", lambda *args: half)
    monkeypatch.setattr(ppo_cartpole, "ours", lambda steps, repeats: ([110.0] * 5, 1.0, [496.0] * 5))
    speed, reached = ppo_cartpole.run(quick=True).bars
    assert "1.10 times" in speed and "496.0" in reached and f"at least {ppo_cartpole.BAR_RETURN}, met" in reached


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
    assert envs_babyai.peer_bars("ours", [row(OURS, 4.0), row(OURS, 1.0)], peers) == [
        "ours: 0.50 times navix A, another level (pool): we are slower",
        "ours: 2.00 times xland B, another level (pool)",
    ]


def test_the_page_is_that_of_the_recorded_results():
    assert table.page() == table.PAGE.read_text()


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
