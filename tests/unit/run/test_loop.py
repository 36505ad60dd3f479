from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.run import loop, metrics, progress, pytrees as trees
from llmrl_jax.run.checkpoint import CheckpointError, Checkpoints
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import FINISHED, LOCK, evaluations, held, opened, read_status
from llmrl_jax.run.loop import RunStopped, train
from llmrl_jax.run.signals import StopRequest
from tests.resume.tiny import TinyLearner, evaluate


def run_config(tmp_path, **options) -> RunConfig:
    return RunConfig(**{"name": "run", "out": str(tmp_path), "progress": "off", **options})


def test_what_a_run_writes(tmp_path, pictures):
    config = run_config(tmp_path, log_every=5, eval_every=10, checkpoint_every=7, keep=2)
    result = train(TinyLearner(), config, num_updates=24, evaluate=evaluate)
    assert (result.update, result.steps, result.stopped) == (24, 24 * 16, "")
    assert int(result.state.update) == 24 and result.compile_seconds > 0 and result.steps_per_second > 0
    assert json.loads((result.folder / "config.json").read_text())["log_every"] == 5
    assert (result.folder / "learning_curve.png").stat().st_size > 5000
    lines = metrics.read(result.folder / "metrics.jsonl")
    # a line at every multiple of 5, and before every checkpoint, so that a resumed run continues with a whole window
    train_lines = [x for x in lines if x["kind"] == "train"]
    assert [x["update"] for x in train_lines] == [5, 7, 10, 14, 15, 20, 21, 24]
    assert [x["updates"] for x in train_lines] == [5, 2, 3, 4, 1, 5, 1, 3]
    assert [x["update"] for x in lines if x["kind"] == "eval"] == [0, 10, 20, 24]
    assert all(x["steps"] == 16 * x["update"] for x in lines)
    with Checkpoints(result.folder, read_only=True) as saved:
        assert saved.updates() == [21, 24]


def test_a_run_whose_picture_cannot_be_written_is_finished(tmp_path, pictures, capsys):
    (tmp_path / "run" / "learning_curve.png").mkdir(parents=True)
    result = train(TinyLearner(), run_config(tmp_path), num_updates=2, folder=tmp_path / "run")
    status = read_status(result.folder)
    assert result.update == 2 and status is not None and status.ended == FINISHED
    assert "IsADirectoryError" in capsys.readouterr().err


def test_a_log_line_is_the_mean_of_its_updates(tmp_path):
    each = train(TinyLearner(), run_config(tmp_path, name="each"), num_updates=6)
    every = train(TinyLearner(), run_config(tmp_path, name="every", log_every=3), num_updates=6)
    single = [x["loss"] for x in metrics.read(each.folder / "metrics.jsonl")]
    windows = [x["loss"] for x in metrics.read(every.folder / "metrics.jsonl")]
    np.testing.assert_allclose(windows, [np.mean(single[:3]), np.mean(single[3:])], rtol=1e-12)


def test_a_run_that_another_process_writes_is_left_alone(tmp_path):
    done = train(TinyLearner(), run_config(tmp_path), num_updates=4)
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    with held(done.folder):
        with ThreadPoolExecutor(1) as other, pytest.raises(BlockingIOError, match=r"process \d+"):
            other.submit(train, TinyLearner(), run_config(tmp_path, resume=True), num_updates=8).result()
        assert before == {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    assert train(TinyLearner(), run_config(tmp_path, resume=True), num_updates=8).update == 8


@dataclasses.dataclass(frozen=True)
class Taught(TinyLearner):
    """It is given tokens to learn from."""

    tokens: tuple[int, ...] = (1, 2, 3)
    learn: tuple[bool, ...] = (False, True, True)

    def init(self, key):
        state = super().init(key)
        taught = {"tokens": jnp.asarray(self.tokens, jnp.int32), "learn": jnp.asarray(self.learn)}
        return state.replace(frozen={**state.frozen, **taught})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tokens": (1, 2, 3, 4)}, "tokens"),
        ({"tokens": (3, 2, 1)}, "tokens"),
        ({"learn": (False, False, True)}, "learn"),
    ],
    ids=["longer", "in another order", "another part is taught"],
)
def test_data_that_changed_are_refused_and_named(tmp_path, changed, named):
    train(Taught(), run_config(tmp_path, checkpoint_every=2), num_updates=4)
    with pytest.raises(CheckpointError, match=f"checkpoint 4.*{named}"):
        train(Taught(**changed), run_config(tmp_path, resume=True), num_updates=8)
    assert train(Taught(), run_config(tmp_path, resume=True), num_updates=8).update == 8


def test_a_checkpoint_to_go_back_to_must_be_there(tmp_path):
    done = train(TinyLearner(), run_config(tmp_path, checkpoint_every=0), num_updates=4)
    shutil.move(done.folder / "checkpoints", done.folder / "moved")
    before = (done.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(FileNotFoundError, match="--run.resume-from.*4"):
        train(TinyLearner(), run_config(tmp_path, resume=True, resume_from=4), num_updates=8)
    with pytest.raises(FileNotFoundError, match="although.*update 4"):
        train(TinyLearner(), run_config(tmp_path, resume=True), num_updates=8)
    assert (done.folder / "metrics.jsonl").read_bytes() == before and not (done.folder / "checkpoints").exists()


def test_a_stop_says_how_the_run_goes_on(tmp_path, capsys):
    config = run_config(tmp_path, name="", progress="lines", max_seconds=1e-9, log_every=1)
    done = train(TinyLearner(), config, num_updates=100)
    assert f"continue it with --run.resume {done.folder}" in capsys.readouterr().out
    train(TinyLearner(), replace(config, name="other"), num_updates=100, again="the same command goes on")
    assert "; the same command goes on" in capsys.readouterr().out


def test_an_evaluation_that_fails_at_the_end_loses_nothing(tmp_path):
    def broken(state, key):
        if int(state.update) == 6:
            raise RuntimeError("the judge is out")
        return evaluate(state, key)

    config = run_config(tmp_path, eval_every=3, checkpoint_every=0)
    with pytest.raises(RuntimeError, match="judge"):
        train(TinyLearner(), config, num_updates=6, evaluate=broken)
    done = train(TinyLearner(), dataclasses.replace(config, resume=True), num_updates=6, evaluate=evaluate)
    lines = metrics.read(done.folder / "metrics.jsonl")
    assert [line["update"] for line in lines if line["kind"] == "eval"] == [0, 3, 6]
    whole = train(TinyLearner(), run_config(tmp_path, name="whole", eval_every=3), num_updates=6, evaluate=evaluate)
    assert lines[-1]["error"] == metrics.read(whole.folder / "metrics.jsonl")[-1]["error"]


def test_an_evaluation_that_fails_between_lines_of_the_log_loses_nothing(tmp_path):
    """The log reaches the checkpoint that is saved then, or a resume would refuse it."""

    def broken(state, key):
        if int(state.update) == 5:
            raise RuntimeError("the judge is out")
        return evaluate(state, key)

    config = run_config(tmp_path, eval_every=5, log_every=10, checkpoint_every=0)
    with pytest.raises(RuntimeError, match="judge"):
        train(TinyLearner(), config, num_updates=10, evaluate=broken)
    done = train(TinyLearner(), replace(config, resume=True), num_updates=10, evaluate=evaluate)
    lines = metrics.read(done.folder / "metrics.jsonl")
    assert [(x["kind"], x["update"]) for x in lines] == [
        ("eval", 0), ("train", 5), ("eval", 5), ("train", 10), ("eval", 10)
    ]  # fmt: skip


def test_chunks_do_not_change_the_bits(tmp_path, monkeypatch):
    one = train(TinyLearner(), run_config(tmp_path, name="one", log_every=1), num_updates=12)
    monkeypatch.setattr(loop, "CHUNK_SECONDS", 1e9)
    other = train(TinyLearner(), run_config(tmp_path, name="other", log_every=5, checkpoint_every=4), num_updates=12)
    a, b = trees.named_leaves(one.state), trees.named_leaves(other.state)
    for name in a:
        x, y = (jax.random.key_data(v) if trees.is_key(v) else v for v in (a[name], b[name]))
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=name)


def test_the_update_is_compiled_once(tmp_path):
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counting(TinyLearner):
        def update(self, state):
            traces.append(1)
            return super().update(state)

    train(Counting(), run_config(tmp_path, log_every=3, checkpoint_every=5), num_updates=11)
    assert len(traces) <= 3  # shapes, the loop's body, and its check of types: never once per length of chunk


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    config = run_config(tmp_path, log_every=2, checkpoint_every=4)
    with pytest.raises(RunStopped, match="loss.*nan.*update 11.*update 8"):
        train(TinyLearner(break_at=11), config, num_updates=40)
    with Checkpoints(tmp_path / "run", read_only=True) as saved:
        assert saved.updates() == [4, 8]
        state, update = saved.restore(TinyLearner().init(jax.random.key(0)))
    assert update == 8 and not trees.non_finite(state.params)


def test_parameters_that_are_not_finite_are_never_saved(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Breaks(TinyLearner):
        def update(self, state):
            state, found = super().update(state)
            w = jax.numpy.where(state.update == 4, math.nan, state.params["w"])
            return state.replace(params={**state.params, "w": w}), found

    with pytest.raises(RunStopped, match="update 4.*update 2"):
        train(Breaks(), run_config(tmp_path, checkpoint_every=2), num_updates=8)


def test_a_bound_that_is_exceeded_stops_the_run(tmp_path):
    with pytest.raises(RunStopped, match=r"ratio_error.*0\.001.*update 3.*1e-05"):
        train(TinyLearner(off_at=3), run_config(tmp_path), num_updates=8)


def test_an_alarm_stops_the_run_by_its_reason(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Alarmed(TinyLearner):
        @property
        def alarms(self):
            return {"alarm/echo": "rewards became equal"}

        def update(self, state):
            state, found = super().update(state)
            return state, {**found, "alarm/echo": jax.numpy.float32(state.update == 5)}

    with pytest.raises(RunStopped, match="alarm/echo.*update 5.*rewards.*update 4"):
        train(Alarmed(), run_config(tmp_path, checkpoint_every=2), num_updates=8)


def test_a_bound_of_no_metric_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Wrong(TinyLearner):
        @property
        def bounds(self):
            return {"ratio_eror": 1e-5}

    with pytest.raises(ValueError, match="'ratio_eror'.*'ratio_error'"):
        train(Wrong(), run_config(tmp_path), num_updates=8)


def test_a_metric_that_is_no_scalar_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Wrong(TinyLearner):
        def update(self, state):
            state, found = super().update(state)
            return state, {**found, "rows": jax.numpy.zeros(3)}

    with pytest.raises(ValueError, match=r"'rows'.*\(3,\)"):
        train(Wrong(), run_config(tmp_path), num_updates=8)


def test_time_budget(tmp_path):
    result = train(TinyLearner(), run_config(tmp_path, max_seconds=1e-4, checkpoint_every=0), num_updates=10**6)
    assert result.stopped == "time budget" and 0 < result.update < 10**6
    with Checkpoints(result.folder, read_only=True) as saved:
        assert saved.latest() == result.update


def test_best_checkpoint_is_kept(tmp_path):
    found = iter([0.1, 0.9, 0.3, 0.2, 0.1])
    config = run_config(tmp_path, eval_every=2, checkpoint_every=2, keep=1, best="eval/score")
    train(TinyLearner(), config, num_updates=8, evaluate=lambda state, key: {"score": next(found)})
    with Checkpoints(tmp_path / "run", read_only=True) as saved:
        assert saved.updates() == [2, 8]


def test_best_of_no_metric_is_refused(tmp_path):
    """Before the update is compiled or anything is written; of an evaluation, at the first."""
    config = run_config(tmp_path, best="los", checkpoint_every=50)
    with opened(config) as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "compile_chunk", lambda *args: pytest.fail("compiled"))
        with pytest.raises(ValueError, match="--run.best.*los.*'loss'"):
            train(TinyLearner(), config, num_updates=3, folder=folder)
        with pytest.raises(ValueError, match=r"--run\.best.*zz.*episodes, loss"):
            train(TinyLearner(), replace(config, best="zz"), num_updates=3, folder=folder)
        with pytest.raises(ValueError, match="--run.best.*eval/error.*--run.eval-every"):
            train(TinyLearner(), replace(config, best="eval/error"), num_updates=3, folder=folder)
        assert not [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    scored = replace(config, name="evaluated", best="eval/eror", eval_every=9)
    with pytest.raises(ValueError, match="--run.best.*eval/eror.*'eval/error'"):
        train(TinyLearner(), scored, num_updates=3, evaluate=evaluate)


def test_a_run_that_is_done_compiles_nothing(tmp_path, capsys, monkeypatch):
    done = train(TinyLearner(), run_config(tmp_path), num_updates=3)
    monkeypatch.setattr(loop, "compile_chunk", lambda *args: pytest.fail("compiled"))
    result = train(TinyLearner(), run_config(tmp_path, resume=True), num_updates=3)
    assert "note: " in (said := capsys.readouterr().err) and "3 updates already" in said
    assert (result.update, result.stopped, result.compile_seconds) == (3, "", 0.0)
    np.testing.assert_array_equal(result.state.params["w"], done.state.params["w"])


def test_the_lines_up_to_a_checkpoint_survive_a_power_failure(tmp_path, monkeypatch):
    """They are synced before the checkpoint that counts on them begins."""
    events = []

    class Watched(metrics.JsonLines):
        def write(self, line):
            super().write(line)
            events.append(line["update"])

        def sync(self):
            super().sync()
            events.append("sync")

    save = Checkpoints.save
    monkeypatch.setattr(loop, "JsonLines", Watched)
    monkeypatch.setattr(Checkpoints, "save", lambda self, *args: events.append("save") or save(self, *args))
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino) or fsync(descriptor))
    done = train(TinyLearner(), run_config(tmp_path, checkpoint_every=2), num_updates=4)
    assert events == [1, 2, "sync", "save", 3, 4, "sync", "save"]
    assert synced.count((done.folder / "metrics.jsonl").stat().st_ino) == 2


def test_a_run_says_when_its_checkpoint_comes_from_another_jax(tmp_path, capsys, monkeypatch):
    done = train(TinyLearner(), run_config(tmp_path), num_updates=2)
    description = done.folder / "checkpoints" / "2" / "meta" / "metadata"
    meta = json.loads(description.read_text())
    del meta["sum"]  # as an earlier version wrote it
    meta["versions"]["jaxlib"] = "0.0.1"
    description.write_text(json.dumps(meta))
    train(TinyLearner(), run_config(tmp_path, resume=True), num_updates=3)
    assert "jaxlib 0.0.1 -> " in capsys.readouterr().err


def test_a_run_that_is_refused_keeps_its_checkpoints(tmp_path):
    config = run_config(tmp_path, checkpoint_every=1, keep=9)
    done = train(TinyLearner(), config, num_updates=3)
    before = (done.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="--run.best is los"):
        train(TinyLearner(), replace(config, resume=True, resume_from=1, best="los"), num_updates=4)
    assert sorted(p.name for p in (done.folder / "checkpoints").iterdir()) == ["1", "2", "3"]
    assert (done.folder / "metrics.jsonl").read_bytes() == before


def test_a_run_that_a_tracker_refuses_changes_nothing(tmp_path, monkeypatch):
    def refuse(**options):
        raise RuntimeError("no login")

    config = run_config(tmp_path, checkpoint_every=1, keep=9)
    done = train(TinyLearner(), config, num_updates=3)
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse, __spec__=True))
    tracked = replace(config, wandb="p", tensorboard=True)
    with pytest.raises(ValueError, match="Weights & Biases.*login"):
        train(TinyLearner(), replace(tracked, resume=True, resume_from=1), num_updates=4)
    assert before == {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    for _ in range(2):  # a new run can be asked for again
        with pytest.raises(ValueError, match="Weights & Biases.*login"):
            train(TinyLearner(), replace(tracked, name="new"), num_updates=4)
    assert [p.name for p in (tmp_path / "new").rglob("*") if p.is_file()] == [LOCK]


def test_a_new_run_leaves_the_checkpoints_of_another(tmp_path):
    done = train(TinyLearner(), run_config(tmp_path, checkpoint_every=1, keep=9), num_updates=3)
    (done.folder / "config.json").unlink()
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match="1, 2, 3.*metrics.jsonl"):
        train(TinyLearner(), run_config(tmp_path), num_updates=4)
    assert before == {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}


def test_notes_without_a_reader_do_not_end_a_run(tmp_path, monkeypatch):
    train(TinyLearner(), run_config(tmp_path), num_updates=2)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        again = run_config(tmp_path, resume=True, accept_gaps=True)
        assert train(TinyLearner(), again, num_updates=3).update == 3
        assert os.readlink(f"/proc/self/fd/{writer}") == os.devnull, "what is buffered fails no more at the exit"


def test_fewer_updates_than_a_run_has_are_refused(tmp_path):
    train(TinyLearner(), run_config(tmp_path), num_updates=3)
    with pytest.raises(ValueError, match=r"3.*\(48 environment steps\).*2.*32"):
        train(TinyLearner(), run_config(tmp_path, resume=True), num_updates=2)


@pytest.mark.parametrize("parts", [(12,), (4, 12)])
def test_the_best_of_evaluations_is_a_checkpoint_that_was_evaluated(tmp_path, parts):
    """Those between evaluations have no score, although the last evaluation is known; also after a resume."""
    scores = iter([0.1, 0.9, 0.3, 0.2])
    config = run_config(tmp_path, eval_every=4, checkpoint_every=6, keep=1, best="eval/score")
    for part, updates in enumerate(parts):
        again = replace(config, resume=part > 0)
        train(TinyLearner(), again, num_updates=updates, evaluate=lambda state, key: {"score": next(scores)})
    with Checkpoints(tmp_path / "run", read_only=True) as saved:
        assert saved.updates() == [4, 12]


def test_a_run_is_finished_after_what_comes_at_its_end(tmp_path):
    """Killed or failed in its last evaluation it is not; continued, it loses its summary and later evaluations."""
    calls = []

    def fail(result):
        calls.append((result.update, read_status(tmp_path / "run").ended))
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        train(TinyLearner(), run_config(tmp_path), num_updates=4, finish=fail)
    assert calls == [(4, "")] and read_status(tmp_path / "run").ended == ""
    for name in ("summary.json", "eval-2.json", "eval-4.json", "eval-9.json", "eval-best.json"):
        (tmp_path / "run" / name).write_text("{}")
    again = run_config(tmp_path, resume=True)
    train(TinyLearner(), again, num_updates=6, finish=lambda result: calls.append(sorted(evaluations(result.folder))))
    assert calls[1:] == [[2, 4]] and not (tmp_path / "run" / "summary.json").exists()
    assert (tmp_path / "run" / "eval-best.json").exists() and read_status(tmp_path / "run").ended == "finished"


def test_the_best_of_evaluations_that_a_resume_begins(tmp_path):
    """It evaluates at once: the saves before the next evaluation have a score, and a misspelt metric costs nothing."""
    config = run_config(tmp_path, eval_every=10, checkpoint_every=2, keep=1)
    train(TinyLearner(), run_config(tmp_path), num_updates=3)
    misspelt = replace(config, resume=True, best="eval/eror")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop._Run, "_advance", lambda *args: pytest.fail("trained"))
        with pytest.raises(ValueError, match="--run.best.*eval/eror.*'eval/error'"):
            train(TinyLearner(), misspelt, num_updates=8, evaluate=evaluate)
    again = replace(misspelt, best="eval/error")
    done = train(TinyLearner(), again, num_updates=8, evaluate=evaluate)
    evaluated = [x["update"] for x in metrics.read(done.folder / "metrics.jsonl") if x["kind"] == "eval"]
    assert (done.update, evaluated) == (8, [3, 8])


def test_the_best_before_a_resume_stays_the_best(tmp_path):
    """By what was measured then; what is neither the best nor among the newest is deleted, whichever process wrote
    it."""
    found = iter([0.1, 0.4, 0.9, 0.3, 0.5, 0.2])
    config = run_config(tmp_path, eval_every=2, checkpoint_every=2, keep=1, best="eval/score")

    def scored(state, key):
        return {"score": next(found)}

    train(TinyLearner(), config, num_updates=6, evaluate=scored)
    with Checkpoints(tmp_path / "run", read_only=True) as saved:
        assert saved.updates() == [4, 6]
    train(TinyLearner(), dataclasses.replace(config, resume=True), num_updates=10, evaluate=scored)
    with Checkpoints(tmp_path / "run", read_only=True) as saved:
        assert saved.updates() == [4, 10]


def test_best_of_training_before_the_resume(tmp_path):
    config = run_config(tmp_path, checkpoint_every=2, best="success")
    first = train(TinyLearner(), config, num_updates=3)
    kept = metrics.last(first.folder / "metrics.jsonl", 3)
    assert kept["train"]["update"] == 3
    assert metrics.known(kept).keys() == {"loss", "ratio_error", "episodes", "success"}
    assert metrics.known({"eval": {"kind": "eval", "update": 2, "steps": 32, "score": 0.5, "list": [1.0]}}) == {
        "eval/score": 0.5
    }


def test_a_run_that_broke_before_its_first_checkpoint_begins_its_lines_anew(tmp_path):
    config = run_config(tmp_path, eval_every=4)
    with pytest.raises(RunStopped, match="no checkpoint"):
        train(TinyLearner(off_at=3), config, num_updates=6, evaluate=evaluate)
    begun = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [x["update"] for x in begun if x["kind"] == "eval"] == [0]
    train(TinyLearner(), dataclasses.replace(config, resume=True), num_updates=6, evaluate=evaluate)
    lines = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [x["update"] for x in lines if x["kind"] == "eval"] == [0, 4, 6]
    assert [x["update"] for x in lines if x["kind"] == "train"] == [1, 2, 3, 4, 5, 6]


def void_from(folder: Path) -> int:
    """The update from which on TensorBoard's newest file says that earlier points are dropped."""
    from tensorboardX.proto.event_pb2 import Event

    data = max(folder.glob("events*"), key=lambda p: p.stat().st_mtime_ns).read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        if event.HasField("session_log"):
            return event.step
        data = data[16 + size :]
    raise AssertionError("it says nothing")


def test_tensorboard_keeps_the_points_that_are_not_written_anew(tmp_path):
    config = run_config(tmp_path, tensorboard=True)
    with pytest.raises(RunStopped):
        train(TinyLearner(off_at=2), config, num_updates=4)
    again, folder = dataclasses.replace(config, resume=True), tmp_path / "run" / "tensorboard"
    assert void_from(folder) == 0
    train(TinyLearner(), again, num_updates=4)
    assert void_from(folder) == 0, "it began again, as there was no checkpoint"
    train(TinyLearner(), again, num_updates=6)
    assert void_from(folder) == 5


def test_signals_ask_once_and_abort_twice():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as request:
        assert request.name == ""
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.name == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is before
    before = signal.getsignal(signal.SIGHUP)
    with StopRequest() as request:  # a terminal that goes away
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.name == ""
    assert signal.getsignal(signal.SIGHUP) is before
    # outside the main thread there are no handlers to set, and none are needed
    thread = threading.Thread(target=lambda: StopRequest().__enter__().__exit__())
    thread.start()
    thread.join()


def test_sigint_saves_and_stops(tmp_path):
    def interrupted(state, key):
        if int(state.update) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    config = run_config(tmp_path, eval_every=3, checkpoint_every=0, log_every=4)
    result = train(TinyLearner(), config, num_updates=100, evaluate=interrupted)
    assert result.stopped == "SIGINT" and 6 < result.update < 100
    with Checkpoints(result.folder, read_only=True) as saved:
        assert saved.updates() == [result.update]


def test_disk_full_while_saving(tmp_path, monkeypatch):
    save = Checkpoints.save

    def full(self, update, state, found=None):
        if update > 4:
            raise OSError(28, "No space left on device")
        save(self, update, state, found)

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(RunStopped, match="6.*No space left.*4"):
        train(TinyLearner(), run_config(tmp_path, checkpoint_every=2), num_updates=8)


def test_disk_full_while_logging(tmp_path, monkeypatch):
    def full(self, line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics.JsonLines, "write", full)
    with pytest.raises(RunStopped, match="of update 1"):
        train(TinyLearner(), run_config(tmp_path), num_updates=8)


def test_disk_full_while_logging_and_closing(tmp_path, monkeypatch):
    """What is left in the file's buffer cannot be written at its end either: the reason stays the first one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to("/dev/full")  # no file, so no log of an earlier run
    closed = []
    monkeypatch.setattr(progress.Progress, "close", lambda self: closed.append(self.title))
    with pytest.raises(RunStopped, match="1.*No space left"):
        train(TinyLearner(), run_config(tmp_path), num_updates=8)
    assert closed == ["run"]


def test_disk_full_at_the_last_line_of_a_sink(tmp_path, monkeypatch):
    close = metrics.JsonLines.close

    def full(self):
        close(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(metrics.JsonLines, "close", full)
    with pytest.raises(RunStopped, match="last metrics.*No space.*update 4"):
        train(TinyLearner(), run_config(tmp_path), num_updates=4)


def test_runs_without_updates_are_refused(tmp_path):
    with pytest.raises(ValueError, match="num_updates.*0"):
        train(TinyLearner(), run_config(tmp_path), num_updates=0)
