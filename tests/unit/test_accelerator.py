from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from benchmarks.accelerator import __main__ as program, counts, record
from benchmarks.accelerator.__main__ import OUT
from benchmarks.accelerator.counts import Peak
from benchmarks.accelerator.record import PARTS, Case, Measured, Settings
from llmrl_jax import lm
from llmrl_jax.run import info
from tests.paths import ROOT


# N = 2 layers x (queries 16 + keys and values 16 + output 16 + MLP 72) + head 40
SMALL = lm.LlamaConfig(10, 4, 6, 2, 2, 1)
TINY = Settings("tiny")


def test_operations_and_bytes_by_hand():
    assert SMALL.matmul_params == 280
    assert counts.training_flop(SMALL, 3) == 4 * 280 * 3
    # scores and values of a causal context of 5: 2 x 2 layers x 5 x 4 = 80, twice for training, per token
    assert counts.training_flop_with_attention(SMALL, 3, 5) == (4 * 280 + 2 * 80) * 3
    assert counts.weight_bytes(SMALL, 2) == 560
    assert counts.cache_bytes(SMALL, 2) == 2 * 2 * 1 * 2 * 2
    # 3 steps after a prompt of 5, which read 6, 7 and 8 tokens of 16 bytes in each of 3 rows
    assert counts.decoding_bytes(SMALL, 3, 5, 4, 2) == 3 * 560 + 3 * (6 + 7 + 8) * 16
    # the shared first token is the only node of the tree: 6 tokens, 36 pairs, 2 predictions
    one = 2 * (6 * 120 + 36 * 8) + 2 * 40
    assert counts.scoring_flop(SMALL, 5, lm.Candidates([[1, 2], [1, 3]])) == 2 * one


def test_the_measured_shapes_have_the_published_sizes():
    from benchmarks.accelerator.shapes import SHAPES

    # weights of the published models, with the table of embeddings once where it is tied, norms left out
    assert {name: round(c.matmul_params / 1e6) for name, c in SHAPES.items()} == {"135M": 134, "1B": 1236, "7B": 6607}


def test_a_case_states_its_shares_of_the_peak_where_it_is_known():
    measured = Measured([2.0, 1.0, 4.0], 0.5, 8, "tokens", flop=6e12, flop_formula="f", bytes=3e9, bytes_formula="b")
    case = Case("a case", {"batch": 8}, lambda: measured)
    value = record.attempt(case, Peak(12e12, 3e9))
    assert value["seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0, "samples": [2.0, 1.0, 4.0]}
    assert value["per_second"] == {"median": 4.0, "min": 2.0, "max": 8.0} and value["compile_seconds"] == 0.5
    assert value["flop"] == {"per_call": 6e12, "formula": "f", "per_second": 3e12, "mfu": 0.25}
    assert value["bytes"] == {"per_call": 3e9, "formula": "b", "per_second": 1.5e9, "share": 0.5}
    assert record.line(value).endswith("4 tokens/s, 2000 ms, 3 TFLOP/s, 1.5 GB/s, 25.0% of peak, 50.0% of peak")
    unknown = record.attempt(case, None)
    assert unknown["flop"]["mfu"] is None and unknown["bytes"]["share"] is None and "peak" not in record.line(unknown)


def test_a_result_that_is_not_finite_is_refused():
    with pytest.raises(FloatingPointError, match="not finite"):
        record.clocked(lambda x: (x / x, jnp.int32(1)), jnp.zeros(3))


def spread(value) -> bool:
    """Return whether a value holds a median between its ends, all above zero."""
    return all(value[k] > 0 for k in ("median", "min", "max")) and value["min"] <= value["median"] <= value["max"]


def check_parts(names, tmp_path, capsys, monkeypatch):
    """Measure parts at tiny size and look at what each wrote; none means all."""
    monkeypatch.setenv(info.COMMIT, "0123456789ab")
    assert program.main([*names, "--size", "tiny", "--here", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    names = names or list(PARTS)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        value = json.loads((tmp_path / f"{name}.json").read_text())
        assert (value["name"], value["size"], value["error"] is None) == (name, "tiny", value["status"] == "ok")
        assert f"{name}: {PARTS[name]}" in printed
        where = value["conditions"]
        assert where["platform"] == "cpu" and where["peak_flops"] is None and where["versions"]["jax"]
        assert where["commit"] == "0123456789ab"
        for case in value["cases"]:
            if case["status"] == "skipped":
                assert name == "mjx" and "not installed" in case["error"]
                continue
            assert spread(case["seconds"]) and spread(case["per_second"]) and len(case["seconds"]["samples"]) >= 5
            assert case["compile_seconds"] > 0 and case["amount"] > 0 and case["shape"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["device", "scoring"])
def test_a_part_runs_at_tiny_size(name, tmp_path, capsys, monkeypatch):
    check_parts([name], tmp_path, capsys, monkeypatch)


@pytest.mark.slow
def test_every_part_runs_at_tiny_size(tmp_path, capsys, monkeypatch):
    check_parts([], tmp_path, capsys, monkeypatch)
    cases = {name: json.loads((tmp_path / f"{name}.json").read_text())["cases"] for name in PARTS}
    training, chunked = cases["train_mfu"]
    assert (training["shape"]["head_chunk"], chunked["shape"]["head_chunk"]) == (0, 8)
    assert training["facts"]["loss"] == pytest.approx(chunked["facts"]["loss"], rel=1e-4)
    sizes = training["shape"]
    assert sizes["dtype"] == "float32" and sizes["matmul_params"] == 2 * (32 * 96 + 3 * 32 * 64) + 32 * 512
    assert training["flop"]["per_call"] == 4 * sizes["matmul_params"] * 4 * 16 and training["flop"]["mfu"] is None
    assert training["facts"]["flop_with_attention"]["per_call"] > training["flop"]["per_call"]
    together, alone = (case["bytes"]["per_call"] for case in cases["decode"])
    assert alone == 3 * 4 * sizes["matmul_params"] + (9 + 10 + 11) * 2 * 2 * 2 * 8 * 4 < together
    rollout, update = cases["glam"]
    assert rollout["flop"]["per_call"] < update["flop"]["per_call"] and update["facts"]["metrics"]["nonfinite"] == 0
    assert update["facts"]["metrics"]["first_ratio_error"] < 1e-5
    exact, excess = (
        [case["facts"] for case in cases["agreement"] if case["shape"]["excess_precision"] is x] for x in (False, True)
    )
    assert len(exact) == len(excess) == 2  # actions that were scored, and tokens that were drawn
    assert all(facts["ratio_error"] < 1e-6 and facts["sampling_near_one"] == 1 for facts in exact)
    assert all(facts["ratio_error"] > 1e-4 and facts["sampling_kl"] > 0 for facts in excess)


UNSTAMPED = ("device", "glam", "mjx", "train_mfu")
"""Parts whose committed records are of a borrowed device and older than the stamp."""


def test_committed_records_name_their_commit():
    for path in OUT["full"].glob("*.json"):
        digits = json.loads(path.read_text())["conditions"].get("commit")
        assert (path.stem in UNSTAMPED) == (digits is None), path.stem
        assert digits is None or re.fullmatch(r"[0-9a-f]{7,40}", digits), path.stem


def test_nothing_is_measured_for_a_record_without_a_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(info, "commit", lambda *folders: None)
    with pytest.raises(RuntimeError, match=info.COMMIT):
        program.main(["--out", str(tmp_path / "results")])
    assert not (tmp_path / "results").exists()


def raising(settings):
    def fail():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    yield Case("one that works", {}, lambda: Measured([1.0] * 5, 0.0, 1, "things"))
    yield Case("one that fails", {}, fail)
    yield Case("one after it", {}, lambda: Measured([1.0] * 5, 0.0, 1, "things"))


def broken(settings):
    raise ImportError("no module")
    yield


@pytest.mark.slow
def test_a_part_that_fails_says_so_and_the_others_run(tmp_path, monkeypatch, capsys):
    for name, cases in (("raising", raising), ("broken", broken)):
        monkeypatch.setitem(PARTS, name, "a part")
        monkeypatch.setitem(sys.modules, f"benchmarks.accelerator.{name}", SimpleNamespace(cases=cases))
    names = ["broken", "raising", "device"]
    assert program.main([*names, "--size", "tiny", "--here", "--out", str(tmp_path)]) == 1
    read = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    assert [read[name]["status"] for name in names] == ["failed", "failed", "ok"]
    assert read["broken"]["error"] == "ImportError: no module" and read["raising"]["error"] is None
    assert [case["status"] for case in read["raising"]["cases"]] == ["ok", "failed", "ok"]
    assert read["raising"]["cases"][1]["error"] == "RuntimeError: RESOURCE_EXHAUSTED: out of memory"
    assert "one that fails" in capsys.readouterr().out


class Stubs:
    """Parts of cases that are measured in other processes, by a script: each process writes a line when it starts."""

    SCRIPT = """
import os, sys, time
from types import SimpleNamespace
from benchmarks.accelerator import record
from benchmarks.accelerator.__main__ import main
record.EXPECTED_S = 0.0
def measured():
    return record.Measured([1.0] * 5, 0.0, 1, "things")
def hang():
    time.sleep(60)
def die():
    os._exit(9)
def cases(settings):
    for name, measure in CASES:
        yield record.Case(name, {"n": 1}, measure)
for name in ("first", "second"):
    record.PARTS[name] = "a part"
    sys.modules["benchmarks.accelerator." + name] = SimpleNamespace(cases=cases if name == "first" else OTHER)
sys.exit(main(sys.argv[1:]))
"""

    def __init__(self, tmp_path: Path, monkeypatch, cases: str, other: str = "cases"):
        for name in ("first", "second"):
            monkeypatch.setitem(PARTS, name, "a part")
        self.out, self.script = tmp_path, self.SCRIPT.replace("CASES", cases).replace("OTHER", other)
        self.begun = 0

    def run(self, seconds: float, limit_s: float = 60) -> dict[str, dict]:
        """**Returns:** the JSON of both parts."""
        start = time.time()
        settings = Settings("tiny", command="the command", limit_s=limit_s, run=start)

        def command(*args):
            self.begun += 1
            python, _, _, *words = program.command_of(*args)
            return [python, "-c", self.script, *words]

        budget = record.Budget(start, start + seconds)
        self.statuses = program.run_apart(["first", "second"], settings, self.out, budget, command)
        return {name: json.loads((self.out / f"{name}.json").read_text()) for name in ("first", "second")}


def statuses(value: dict) -> dict[str, str]:
    return {case["case"]: case["status"] for case in value["cases"]}


@pytest.mark.slow
@pytest.mark.heavy
def test_a_case_that_hangs_or_dies_is_recorded_and_the_others_are_measured(tmp_path, monkeypatch):
    others = "lambda settings: [record.Case('z', {'n': 1}, measured)]"
    cases = "[('a', measured), ('b', hang), ('c', measured), ('d', die), ('e', measured)]"
    stubs = Stubs(tmp_path, monkeypatch, cases, others)
    read = stubs.run(600, limit_s=2)
    expected = {"a": "ok", "b": "timeout", "c": "ok", "d": "failed", "e": "ok"}
    assert statuses(read["first"]) == expected and statuses(read["second"]) == {"z": "ok"} and stubs.begun == 3
    assert stubs.statuses == {"first": "failed", "second": "ok"} and read["first"]["running"] is None
    errors = [case["error"] for case in read["first"]["cases"] if "error" in case]
    assert errors == ["it was stopped after 2 s", "its process ended with 9"]
    assert read["first"]["conditions"]["command"] == "the command"


@pytest.mark.heavy
def test_what_another_run_measured_is_measured_again_and_a_part_that_cannot_be_listed_fails(tmp_path, monkeypatch):
    stubs = Stubs(tmp_path, monkeypatch, "[('a', measured)]", other="lambda settings: die()")
    old = {"run": 1.0, "status": "ok", "cases": [{"case": "a", "status": "ok", "of": "another run"}]}
    (tmp_path / "first.json").write_text(json.dumps(old))
    read = stubs.run(600)
    assert statuses(read["first"]) == {"a": "ok"} and "of" not in read["first"]["cases"][0]
    assert read["second"]["status"] == "failed" and read["second"]["error"] == "its process ended with 9"
    assert stubs.begun == 2


@pytest.mark.slow
@pytest.mark.heavy
def test_all_ends_when_the_time_is_over(tmp_path, monkeypatch):
    stubs = Stubs(tmp_path, monkeypatch, "[('a', hang), ('b', measured)]")
    start = time.time()
    read = stubs.run(6)
    assert 5.9 < time.time() - start < 6 + program.CLOSING_S
    assert statuses(read["first"])["a"] == "timeout" and read["first"]["status"] == "failed"
    assert read["second"]["status"] == record.NO_TIME == stubs.statuses["second"]


def part_of(*names: str):
    """A part with these cases."""

    def cases(settings):
        for name in names:
            yield Case(name, {}, lambda: Measured([1.0] * 5, 0.0, 1, "things"))

    return SimpleNamespace(cases=cases)


class Clock:
    """The time, which an attempt of a case moves by `took` seconds."""

    def __init__(self, monkeypatch, took: float):
        self.now, self.ran = 1000.0, []

        def attempt(case, peak):
            self.now += took
            self.ran.append(case.name)
            return {"case": case.name, "status": "ok", "shape": {}, "took_seconds": took} | DONE

        monkeypatch.setattr(record.time, "time", lambda: self.now)
        monkeypatch.setattr(record, "attempt", attempt)


DONE = {"per_second": {"median": 1.0}, "seconds": {"median": 1.0}, "unit": "things"}


def test_a_part_gets_its_share_of_the_time_and_what_is_left_goes_to_what_it_had_no_time_for(tmp_path, monkeypatch):
    for name, part in (("long", part_of(*"abcdefgh")), ("short", part_of("x"))):
        monkeypatch.setitem(PARTS, name, "a part")
        monkeypatch.setitem(record.SHARES, name, 50)
        monkeypatch.setitem(sys.modules, f"benchmarks.accelerator.{name}", part)
    clock = Clock(monkeypatch, 10.0)
    settings = Settings("tiny", limit_s=100.0, run=1000.0)
    budget = record.Budget(1000.0, 1075.0)
    assert budget.slices(["long", "short"]) == {"long": 1037.5, "short": 1075.0}
    found = record.run_parts(["long", "short"], settings, tmp_path, budget)
    # three in half of the time (after them 7.5 s are left), then the other part, then what fits into the rest
    assert clock.ran == ["a", "b", "c", "x", "d", "e", "f"] and clock.now <= budget.end
    assert found == {"long": record.NO_TIME, "short": "ok"}
    value = record.read("long", settings, tmp_path)
    assert [case["status"] for case in value["cases"]] == ["ok"] * 6 + [record.NO_TIME] * 2
    assert value["cases"][-1]["error"] == "5 s are left, and this takes about 10 s"


def test_a_case_is_not_begun_without_the_one_that_compiles_for_it(tmp_path, monkeypatch):
    def cases(settings):
        yield Case("a", {}, lambda: None, expected=30)
        yield Case("b", {}, lambda: None, expected=5, after="a")
        yield Case("c", {}, lambda: None, expected=5)

    monkeypatch.setitem(PARTS, "pairs", "a part")
    monkeypatch.setitem(sys.modules, "benchmarks.accelerator.pairs", SimpleNamespace(cases=cases))
    clock = Clock(monkeypatch, 4.0)
    settings = Settings("tiny", limit_s=100.0, run=1000.0)
    assert record.run_part("pairs", settings, tmp_path, 1020.0, 1100.0) == record.NO_TIME and clock.ran == ["c"]
    assert record.run_part("pairs", settings, tmp_path, 1100.0, 1100.0) == "ok" and clock.ran == ["c", "a", "b"]
    stopped = {"cases": [{"case": "a", "status": "timeout", "took_seconds": 1.0}]}
    assert record.outrun(Case("b", {}, lambda: None, after="a"), stopped, 2000.0)


def test_cases_of_the_full_size_are_named_apart():
    listed = {}
    for name in PARTS:
        part = importlib.import_module(f"benchmarks.accelerator.{name}")
        listed[name] = list(part.cases(Settings("full")))
        names = [case.name for case in listed[name]]
        assert len(set(names)) == len(names) > 0
        assert all(case.after == "" or case.after in names[: names.index(case.name)] for case in listed[name])
    before, after, *_ = listed["train_mfu"]
    # one pair differs in what is compared alone
    changed = {key for key, value in before.shape.items() if after.shape[key] != value}
    assert changed <= {"attention", "head_chunk"} and "head_chunk" in changed
    assert [case.name.split(",")[0] for case in listed["decode"]] == ["1B", "1B", "7B", "7B", "135M", "135M"]


def test_shares_are_of_all_time():
    assert list(record.SHARES) == list(PARTS) and sum(record.SHARES.values()) == 100


def test_long_calls_are_repeated_less_often(monkeypatch):
    took = iter([9.0, 0.5, 0.5, 0.5, 0.5, 0.5, 9.0] + [3.0] * 4)
    now = [0.0]

    def call():
        now[0] += next(took)

    monkeypatch.setattr(record.time, "perf_counter", lambda: now[0])
    assert record.seconds(call) == [0.5] * 3
    took = iter([0.5] * 6)
    assert record.seconds(call) == [0.5] * 5


def test_what_cannot_be_measured_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="'trian_mfu'.*'train_mfu'"):
        program.main(["trian_mfu"])
    for name in ("--limit-s", "--minutes"):
        with pytest.raises(ValueError, match=name.strip("-").replace("-", "_")):
            program.main([name, "0"])
    monkeypatch.setenv(info.COMMIT, "0123456789ab")
    with pytest.raises(ValueError, match="--size tiny"):
        program.main(["device", "--here", "--out", str(tmp_path / "results")])
    assert not (tmp_path / "results").exists()
    with pytest.raises(SystemExit):
        program.main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in PARTS)


def test_a_copied_tree_needs_few_packages():
    """What the parts import is listed in docs/scaling.md, and the worlds' extras are not."""
    listed = ", ".join(f"benchmarks.accelerator.{name}" for name in (*PARTS, "__main__"))
    absent = ("torch", "gymnasium", "mujoco", "brax", "gguf", "matplotlib", "transformers")
    script = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport {listed}"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_what_was_measured_on_a_gpu_is_what_the_page_says():
    page = (ROOT / "docs" / "scaling.md").read_text()
    files = sorted((ROOT / "benchmarks" / "results" / "accelerator").rglob("*.json"))
    assert {file.stem for file in files} <= set(PARTS)
    count = 0
    for file in files:
        part = json.loads(file.read_text())
        assert part["size"] == "full" and part["conditions"]["platform"] == "gpu"
        for case in (case for case in part["cases"] if case["status"] == "ok"):
            row = f"| `{part['name']}` | {case['case']} | {case['per_second']['median']:,.0f} {case['unit']}/s |"
            count += row in page
            shares = [case.get("flop", {}).get("mfu"), case.get("bytes", {}).get("share")]
            assert all(f"| {share:.1%} of peak" in page for share in shares if share)
    assert count == sum(line.startswith("| `") and "/s |" in line for line in page.splitlines())
