"""A run that is cut and continued in a new process gives the same bits as one that never stopped."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import tyro

from llmrl_jax.core.config import load_config
from llmrl_jax.multiturn.record import REPLY
from llmrl_jax.run import loop, metrics, pytrees as trees
from llmrl_jax.systems.agent.config import TrainConfig
from tests.resume import tiny


SCRIPT = Path(__file__).parent / "tiny.py"
TIMING = ("seconds", "steps_per_second", "exchange_seconds")


def command(out: Path, name: str, *options: str) -> list[str]:
    common = ["--run.out", str(out), "--run.name", name, "--run.log-every", "3", "--run.checkpoint-every", "4"]
    return [sys.executable, str(SCRIPT), *common, "--run.eval-every", "5", *options]


def run(out: Path, name: str, *options: str, code: int = 0, **settings) -> subprocess.CompletedProcess:
    done = subprocess.run(command(out, name, *options), capture_output=True, text=True, timeout=300, **settings)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def here(out: Path, name: str, *options: str) -> None:
    """The same in this process, which saves the seconds of a start: where one of two parts of a run has a process of
    its own, the other needs none."""
    tyro.cli(tiny.main, args=[*command(out, name, *options)[2:], "--run.progress", "off"])


def bits(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "final.npz") as arrays:
        return dict(arrays)


def lines(folder: Path) -> list[dict]:
    """Lines of the log, without the clock's readings."""
    found = metrics.read(folder / "metrics.jsonl")
    return [{n: repr(v) for n, v in line.items() if n not in TIMING} for line in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """40 updates without a stop."""
    out = tmp_path_factory.mktemp("runs")
    here(out, "whole", "--num-updates", "40")
    return out / "whole"


def assert_same(folder: Path, whole: Path) -> None:
    found, wanted = bits(folder), bits(whole)
    assert set(found) == set(wanted) and len(wanted) > 10
    for name in wanted:
        assert found[name].dtype == wanted[name].dtype
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.slow
def test_two_halves_are_the_whole(whole, tmp_path):
    here(tmp_path, "halves", "--num-updates", "20")
    run(tmp_path, "halves", "--num-updates", "40", "--run.resume")
    assert_same(tmp_path / "halves", whole)
    # the first half ended with a line and an evaluation at its own last update, 20, which the whole has not at 20
    train = [x for x in metrics.read(tmp_path / "halves" / "metrics.jsonl") if x["kind"] == "train"]
    assert np.cumsum([x["updates"] for x in train]).tolist() == [x["update"] for x in train]
    assert train[-1]["update"] == 40


def test_killed_in_the_middle(whole, tmp_path):
    """SIGKILL between updates; the lines after the last checkpoint are written again, once."""
    child = subprocess.Popen(
        command(tmp_path, "killed", "--num-updates", "40", "--pause", "0.5"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder = tmp_path / "killed"
    limit = time.monotonic() + 90
    while time.monotonic() < limit:
        saved = [p.name for p in (folder / "checkpoints").glob("*") if p.name.isdigit()]
        written = metrics.read(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        if saved and written and written[-1]["update"] > max(map(int, saved)):
            break
        time.sleep(0.02)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    last = max(int(p.name) for p in (folder / "checkpoints").glob("*") if p.name.isdigit())
    assert 0 < last < 40 and metrics.read(folder / "metrics.jsonl")[-1]["update"] > last
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "upd')  # a torn line
    here(tmp_path, "killed", "--num-updates", "40", "--run.resume")
    assert_same(folder, whole)
    assert lines(folder) == lines(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner, devices",
    [
        ("tiny", 8),
        pytest.param("ppo", 1, marks=pytest.mark.slow),  # the conformance tests of algorithms resume it in one process
        pytest.param("ppo", 4, marks=pytest.mark.slow),
        pytest.param("glam", 1, marks=pytest.mark.slow),  # its commands are resumed in test_glam_commands.py
        pytest.param("glam", 8, marks=pytest.mark.slow),
    ],
)
def test_every_learner_continues_in_the_middle_of_its_episodes(learner, devices, tmp_path):
    """6 updates at once are the same as 3, a death, and 3 in a new process: every leaf, every line of metrics."""
    options = ["--learner", learner, "--devices", str(devices), "--run.eval-every", "0", "--run.checkpoint-every", "3"]
    here(tmp_path, "whole", *options, "--num-updates", "6")
    # what a process leaves that dies after its checkpoint of update 3 and before that of update 6
    shutil.copytree(tmp_path / "whole", tmp_path / "died")
    shutil.rmtree(tmp_path / "died" / "checkpoints" / "6")
    (tmp_path / "died" / "final.npz").unlink()
    run(tmp_path, "died", *options, "--num-updates", "6", "--run.resume")
    assert_same(tmp_path / "died", tmp_path / "whole")
    assert lines(tmp_path / "died") == lines(tmp_path / "whole")


@pytest.mark.parametrize("learner", [pytest.param("asking", marks=pytest.mark.slow), "ahead"])
def test_killed_while_the_host_is_asked(learner, tmp_path, capfd):
    """A new process asks again what was asked since the last checkpoint, and continues with the same bits."""
    options = ["--learner", learner, "--num-updates", "18", "--run.checkpoint-every", "3", "--run.eval-every", "0"]
    printed = []
    here(tmp_path, "whole", *options)
    printed.append(capfd.readouterr().out)
    # what the host is asked is printed by another thread: without a bar, lines do not mix
    killed = run(tmp_path, "killed", *options, "--run.progress", "off", "--die-at", "3", code=-signal.SIGKILL)
    printed.append(killed.stdout)
    here(tmp_path, "killed", *options, "--run.resume", str(tmp_path / "killed"))
    printed.append(capfd.readouterr().out)
    assert_same(tmp_path / "killed", tmp_path / "whole")
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    whole, first, second = [[x for x in out.splitlines() if x.startswith("asked")] for out in printed]
    assert len(whole) == 4 and first == whole[:3] and second == whole[-len(second) :]


@pytest.mark.slow
def test_an_agent_that_writes_is_killed_in_the_middle_of_its_turns(tmp_path):
    """`llmrl agent train`, SIGKILL, and the rest in this process: every leaf is that of a run without a stop."""
    flags = ["--env", "Notes-Recall-v0", "--tune", "full", "--reply-tokens", "5", "--decoding", "constrained"]
    flags += ["--embedded.hidden-size", "16", "--embedded.layers", "1", "--embedded.intermediate-size", "16"]
    flags += ["--value-width", "8", "--ppo.num-envs", "4", "--ppo.num-steps", "21", "--ppo.minibatches", "1"]
    flags += ["--ppo.episode-tokens", "96", "--ppo.pool-size", "4", "--ppo.watch", "--steps", "84000"]
    flags += ["--run.out", str(tmp_path), "--run.name", "killed", "--run.checkpoint-every", "2", "--run.keep", "1"]
    child = subprocess.Popen(
        [sys.executable, "-m", "llmrl_jax", "agent", "train", *flags, "--run.log-every", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder, limit = tmp_path / "killed", time.monotonic() + 120

    def saved():
        return [int(p.name) for p in (folder / "checkpoints").glob("*") if p.name.isdigit()]

    while not saved() and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    last = max(saved())
    config = load_config(TrainConfig, folder / "config.json")
    learner = config.experiment().learner
    states = []
    for run_ in (replace(config.run, resume=True), replace(config.run, name="whole")):
        run_ = replace(run_, progress="off")
        states.append(loop.train(learner, run_, num_updates=last + 3, full_config=replace(config, run=run_)).state)
    assert int(states[0].update) == last + 3
    assert ((np.asarray(states[0].rows.role) == REPLY) | (np.asarray(states[0].rows.read) > 0)).any()
    resumed, whole = (
        {n: np.asarray(jax.random.key_data(x) if trees.is_key(x) else x) for n, x in trees.named_leaves(state).items()}
        for state in states
    )
    assert resumed.keys() == whole.keys() and any(name.startswith("watch") for name in whole)
    for name, x in whole.items():
        np.testing.assert_array_equal(resumed[name], x, err_msg=name)


def test_terminated_and_continued(whole, tmp_path):
    child = subprocess.Popen(
        command(tmp_path, "ended", "--num-updates", "40", "--pause", "0.5"), stdout=subprocess.PIPE, text=True
    )
    folder = tmp_path / "ended"
    limit = time.monotonic() + 90
    while not (folder / "checkpoints" / "4").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and "stopped by SIGTERM: saved at update" in out and "--run.resume" in out
    here(tmp_path, "ended", "--num-updates", "40", "--run.resume")
    assert_same(folder, whole)


def test_back_to_an_older_checkpoint(whole, tmp_path):
    here(tmp_path, "back", "--num-updates", "40", "--run.keep", "9")
    here(tmp_path, "back", "--num-updates", "40", "--run.resume", "--run.resume-from", "24", "--run.keep", "9")
    assert_same(tmp_path / "back", whole)
    assert lines(tmp_path / "back") == lines(whole)


@pytest.mark.slow
def test_nobody_reads_the_progress(whole, tmp_path):
    """As in `llmrl ... | head -1`: the run continues without it, and is saved."""
    quiet = subprocess.Popen(
        command(tmp_path, "quiet", "--num-updates", "40"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert quiet.stdout.readline() and quiet.stdout.close() is None
    said = quiet.stderr.read()
    quiet.stderr.close()
    assert quiet.wait(60) == 0 and "the run continues without it" in said and "Traceback" not in said
    assert_same(tmp_path / "quiet", whole)
    assert lines(tmp_path / "quiet") == lines(whole)


def test_refusals(whole):
    out = whole.parent
    with pytest.raises(FileExistsError, match="--run.resume"):
        here(out, "whole")
    with pytest.raises(ValueError, match="learning_rate: 0.05 -> 0.2"):
        here(out, "whole", "--run.resume", "--learning-rate", "0.2")
    with pytest.raises(FileNotFoundError, match="'whole'"):
        here(out, "whol", "--run.resume")


def test_disk_full(tmp_path):
    """Files may not grow past what one array needs: the next checkpoint stops the run, and the one that it was to
    replace stays whole."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    here(tmp_path, "full", "--size", "256", "--num-updates", "4")
    before = sorted(p.name for p in (tmp_path / "full" / "checkpoints").iterdir())
    done = run(
        tmp_path,
        "full",
        "--size",
        "256",
        "--num-updates",
        "12",
        "--run.resume",
        "--run.keep",
        "1",
        code=1,
        preexec_fn=limit,
        env=_no_cache(),
    )
    assert "Traceback" not in done.stderr and "absl" not in done.stderr, "orbax's own"
    assert "not be written" in done.stderr and "update 4" in done.stderr
    assert [p.name for p in sorted((tmp_path / "full" / "checkpoints").iterdir()) if p.name.isdigit()] == before
    here(tmp_path, "full", "--size", "256", "--num-updates", "12", "--run.resume")


def _no_cache() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
