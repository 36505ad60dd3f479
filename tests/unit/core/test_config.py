from __future__ import annotations

import enum
import json
import math
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import jax
import pytest

from llmrl_jax.core import config as configs
from llmrl_jax.core.config import FREE
from llmrl_jax.run.config import RunConfig, use_compilation_cache
from llmrl_jax.run.folder import held, holder, open_folder, write_summary


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Inner:
    rates: tuple[float, ...] = (0.1, math.inf)
    pair: tuple[int, str] = (1, "x")
    colour: Colour = Colour.BLUE
    kind: Literal["a", "b"] = "b"


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    path: Path | None = None
    table: dict[str, int] = field(default_factory=lambda: {"k": 3})
    total: int = field(default=5, metadata=FREE)
    run: RunConfig = field(default_factory=RunConfig)


def test_round_trip(tmp_path):
    config = Outer(path=Path("a/b"), inner=Inner(rates=(1.0, 2.5), colour=Colour.RED))
    for value in (Outer(), config):
        configs.save_config(value, tmp_path / "config.json")
        assert configs.load_config(Outer, tmp_path / "config.json") == value
    json.loads((tmp_path / "config.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    "value, message",
    [
        ({"iner": {}}, "Outer.*'iner'.*'inner'"),
        ({"inner": {"rate": []}}, "Inner.*'rate'.*'rates'"),
        ({"inner": {"rates": ["x"]}}, r"inner.rates\[0\].*'x'.*float"),
        ({"inner": {"pair": [1]}}, "inner.pair.*2"),
        ({"inner": {"kind": "c"}}, "inner.kind.*'c'.*'a', 'b'"),
        ({"inner": {"colour": "GREEN"}}, "RED, BLUE"),
        ({"total": True}, "total.*True.*int"),
        ({"table": {"k": "x"}}, "table.k.*'x'.*int"),
        ({"path": 3}, "path.*3.*Path.*NoneType"),
    ],
)
def test_wrong_json_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        configs.from_json(Outer, value)


def test_a_whole_number_may_be_written_as_a_float():
    assert configs.from_json(Outer, {"total": 1e6}).total == 1_000_000
    with pytest.raises(ValueError, match="total.*1.5.*int"):
        configs.from_json(Outer, {"total": 1.5})


def test_missing_and_torn_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        configs.load_config(Outer, tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"inner": ')
    with pytest.raises(ValueError, match=r"torn\.json.*JSON"):
        configs.load_config(Outer, tmp_path / "torn.json")
    (tmp_path / "model.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    with pytest.raises(ValueError, match="llama.*--model"):
        configs.load_config(Outer, tmp_path / "model.json")
    (tmp_path / "other.json").write_text('{"nonesuch": 1}')
    with pytest.raises(ValueError, match=r"other\.json.*Outer.*'nonesuch'"):
        configs.load_config(Outer, tmp_path / "other.json")


def test_a_configuration_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    configs.save_config(Outer(total=1), path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            configs.save_config(Outer(total=2), path)
    assert configs.load_config(Outer, path).total == 1
    configs.save_config(Outer(total=3), path)
    assert configs.load_config(Outer, path).total == 3 and [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_a_value_that_json_cannot_hold():
    with pytest.raises(TypeError, match="object object"):
        configs.to_json({"x": object()})


def test_identity_leaves_out_what_may_change():
    one = Outer()
    other = replace(one, total=9, run=replace(one.run, name="n", log_every=7, keep=5))
    assert configs.identity(one) == configs.identity(other)
    assert configs.differences(configs.identity(one), configs.identity(other)) == []
    third = replace(one, inner=replace(one.inner, kind="a"), run=replace(one.run, seed=1))
    found = configs.differences(configs.identity(one), configs.identity(third))
    assert found == ['inner.kind: "b" -> "a"', "run.seed: 0 -> 1"]
    assert configs.differences({"a": 1}, {"b": 2}) == ["a: 1 -> absent", "b: absent -> 2"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"log_every": 0}, "run.log_every.*0.*1"),
        ({"seed": -1}, "--run.seed.*-1.*0.*4294967295"),
        ({"seed": 2**32}, "--run.seed.*4294967296.*0"),
        ({"max_seconds": -2.0}, "run.max_seconds.*-2.0.*0"),
        ({"name": "a/b"}, "--run.name.*'a/b'"),
        ({"name": "a\0"}, r"--run\.name.*'a"),
        ({"out": "a\0"}, r"--run\.out.*'a"),
        ({"resume": True}, "--run.resume runs/NAME"),
        ({"resume_from": 3}, "--run.resume-from.*3"),
    ],
)
def test_run_config_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**options).check_new()


def test_folders(tmp_path):
    out = str(tmp_path)
    folder = open_folder(RunConfig(name="alpha", out=out))
    (folder / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=rf"--run\.resume {out}/alpha"):
        open_folder(RunConfig(name="alpha", out=out))
    assert open_folder(RunConfig(name="alpha", out=out, resume=True)) == folder
    with pytest.raises(FileNotFoundError, match="'alpha'"):
        open_folder(RunConfig(name="alpa", out=out, resume=True))
    first = open_folder(RunConfig(out=out), "demo")
    (first / "config.json").write_text("{}")
    second = open_folder(RunConfig(out=out), "demo")
    assert first.name.startswith("demo-") and second != first


def test_runs_without_names_that_start_at_once_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")
    found = [open_folder(RunConfig(out=str(tmp_path / "runs")), "demo").name for _ in range(3)]
    assert found == ["demo-20260102-030405", "demo-20260102-030405-2", "demo-20260102-030405-3"]
    # a folder of a given name may be there already: SLURM's logs are
    (tmp_path / "runs" / "given" / "slurm").mkdir(parents=True)
    assert open_folder(RunConfig(name="given", out=str(tmp_path / "runs"))).name == "given"


def test_an_experiment_that_ended_while_its_prior_was_made_goes_on(tmp_path):
    """Its own run has not begun then; whether it exists at all is said by the prior's."""
    from experiments.props_finetune import begun

    run = RunConfig(name="e", out=str(tmp_path), resume=True, keep=5)
    with pytest.raises(FileNotFoundError, match="run 'e'"):
        open_folder(begun(run))
    (tmp_path / "e-prior").mkdir()
    (tmp_path / "e-prior" / "config.json").write_text("{}")
    assert begun(run) == replace(run, resume=False)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.json").write_text("{}")
    assert begun(run) == run and begun(replace(run, resume=False)) == replace(run, resume=False)


def test_a_run_of_several_processes_needs_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="give --run.name"):
        open_folder(RunConfig(out=str(tmp_path)), "demo")
    assert open_folder(RunConfig(name="given", out=str(tmp_path))).is_dir()


def test_a_folder_is_held_by_one_process(tmp_path):
    hold = """
import sys
from llmrl_jax.run.folder import held
with held(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=rf"process {other.pid}\b"):
            with held(tmp_path):
                pass
        other.kill()  # whose lock goes with it
    with held(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
        with held(tmp_path / "." / ""):  # the same thread holds it already
            pass
        assert holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
        with ThreadPoolExecutor(1) as pool, pytest.raises(BlockingIOError, match=r"process \d+"):
            pool.submit(lambda: held(tmp_path).__enter__()).result()
    assert not holder(tmp_path)
    with held(tmp_path):
        pass


def test_summary_says_what_it_was_measured_with(tmp_path):
    path = write_summary(tmp_path, {"success": 0.5, "nested": {"a": (1, 2)}})
    found = json.loads(path.read_text())
    assert found["success"] == 0.5 and found["nested"] == {"a": [1, 2]}
    assert found["versions"]["jax"] == jax.__version__
    assert found["machine"]["cores"] >= 1 and found["peak_memory_gib"] > 0


def test_compilation_cache_fills_a_folder(tmp_path):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    try:
        use_compilation_cache(str(tmp_path / "cache"))
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache")
        assert (tmp_path / "cache").is_dir()
        use_compilation_cache("off")
        assert not jax.config.jax_enable_compilation_cache
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
