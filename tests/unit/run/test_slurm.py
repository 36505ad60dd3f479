"""`--slurm.*`: the batch script says what was asked, and a job saves, goes back to the queue and resumes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.run import slurm


submitit = pytest.importorskip("submitit")

SBATCH = """#!/bin/sh
cp "$1" {record}/script.sh
echo "Submitted batch job 4711"
"""


def tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A PATH with an sbatch that records, and an empty folder to submit from."""
    programs = tmp_path / "bin"
    programs.mkdir()
    tool(programs, "sbatch", SBATCH.format(record=tmp_path))
    tool(programs, "srun", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SFT = ["lm", "sft", "--model", "a folder", "--data", "rows.jsonl", "--run.name", "mine"]


def script(cluster) -> tuple[dict[str, str | bool], list[str]]:
    """The options of the script that was submitted, and its other lines."""
    options: dict[str, str | bool] = {}
    lines = []
    for line in (cluster / "script.sh").read_text().splitlines():
        if line.startswith("#SBATCH --"):
            key, equals, value = line.removeprefix("#SBATCH --").partition("=")
            options[key] = shlex.split(value)[0] if equals else True
        elif line and not line.startswith("#"):
            lines.append(line)
    return options, lines


def test_the_script_says_what_was_asked(cluster, capsys):
    asked = ["--slurm.partition", "gpu", "--slurm.nodes", "2", "--slurm.gpus-per-node", "4", "--slurm.time", "4:00:00"]
    asked += ["--slurm.mode", "per-gpu", "--slurm.cpus-per-task=8", "--slurm.mem", "64G", "--slurm.account", "lab"]
    asked += ["--slurm.setup", "module load cuda", "--slurm.extra", "reservation=mine", "exclusive"]
    assert cli.main([*SFT, *asked]) == 0
    options, lines = script(cluster)
    logs = cluster / "runs" / "mine" / "slurm"
    assert options == {
        "partition": "gpu",
        "nodes": "2",
        "gpus-per-node": "4",
        "ntasks-per-node": "4",
        "cpus-per-task": "8",
        "mem": "64G",
        "account": "lab",
        "time": "4:00:00",
        "job-name": "mine",
        "signal": "USR2@120",
        "requeue": True,
        "reservation": "mine",
        "exclusive": True,
        "output": str(logs / "%j_0_log.out"),
        "error": str(logs / "%j_0_log.err"),
        "open-mode": "append",
        "wckey": "submitit",
    }
    assert lines[0] == "module load cuda"
    start = shlex.split(lines[-1])
    assert start[0] == "srun" and "--cpus-per-task=8" in start and str(logs / "%j_%t_log.out") in start
    out = capsys.readouterr().out
    assert "job 4711 (mine): 2 nodes x 4 = 8 processes (per-gpu), 4 GPUs a node, 4:00:00" in out
    assert str(logs / "4711_0_log.out") in out and (logs / "4711_submission.sh").exists()
    job = submitit.core.utils.DelayedSubmission.load(logs / "4711_submitted.pkl").function
    again = ("--run.resume-from=-1",)
    assert job == slurm.Job((*SFT, "--hosts.mode", "per-gpu"), str(cluster / "runs" / "mine"), 100, again=again)


def test_what_was_not_asked_is_not_said(cluster):
    assert cli.main([*SFT, "--slurm.requeues", "0"]) == 0
    options, _ = script(cluster)
    for name in ("output", "error", "wckey", "open-mode"):
        options.pop(name)
    assert options == {
        "job-name": "mine",
        "nodes": "1",
        "ntasks-per-node": "1",
        "time": "1:00:00",
        "signal": "USR2@120",
        "no-requeue": True,
    }


def test_a_run_without_a_name_gets_one_that_a_later_start_finds():
    from llmrl_jax.run.config import RunConfig

    job, name = slurm.make_job(slurm.SlurmConfig(), ["lm", "sft"], [RunConfig()])
    place = job.args.index("--run.name")
    assert name.startswith("lm-sft-2") and job.args[place + 1] == name and Path(job.run).name == name
    job, _ = slurm.make_job(slurm.SlurmConfig(), ["lm", "generate"], ["a model", 3])
    assert job.run == "" and "--run.name" not in job.args and "--name" not in job.args


def test_a_command_without_a_training_loop_resumes_as_others_do(cluster):
    command = ["props", "run", "--tasks", "nim", "--run.out", str(cluster / "elsewhere")]
    assert cli.main([*command, "--slurm.partition", "gpu"]) == 0
    (file,) = cluster.glob("elsewhere/*/slurm/*_submitted.pkl")
    job = submitit.core.utils.DelayedSubmission.load(file).function
    folder = file.parent.parent
    assert job.args == (*command, "--run.name", folder.name, "--hosts.mode", "per-node")
    assert folder.name.startswith("props-run-2") and job.run == str(folder)
    assert job.command(1) == job.command(0), "killed before there was anything to resume"
    (folder / "config.json").write_text("{}")
    assert job.command(0) == [*job.program, *job.args]
    assert job.command(1) == [*job.program, *job.args, "--run.resume"]
    assert cli.main([*command, "--run.name", "mine", "--run.resume", "--slurm.partition", "gpu"]) == 2, "no such run"
    assert cli.main([*command, "--run.name", "mine", "--slurm.partition", "gpu"]) == 0
    assert (cluster / "elsewhere" / "mine" / "slurm" / "4711_submitted.pkl").exists()


@pytest.mark.parametrize("old", [["--run.resume-from", "24"], ["--run.resume-from=24"], ["--run.resume_from", "24"]])
def test_a_later_start_does_not_go_back_again(tmp_path, old):
    """Its first start did, and discarded what came after."""
    (tmp_path / "config.json").write_text("{}")
    job = slurm.Job(("lm", "sft", "--run.resume", *old, "--length", "9"), str(tmp_path), 5, ("llmrl",))
    assert job.command(0) == ["llmrl", "lm", "sft", "--run.resume", *old, "--length", "9"]
    assert job.command(1) == ["llmrl", "lm", "sft", "--run.resume", "--length", "9"]


@pytest.mark.parametrize("old", [["--run.resume", "False"], ["--run.resume=False"]])
def test_a_later_start_resumes_a_run_that_was_said_to_be_new(tmp_path, old):
    """By its name, since a file may name another run."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    args = ("lm", "sft", "--config", "a.yaml", *old, "--run.name", "mine")
    job = slurm.Job(args, str(folder), 5, ("llmrl",), again=("--run.resume-from=-1",))
    assert job.command(0) == ["llmrl", *args]
    left = ["llmrl", "lm", "sft", "--config", "a.yaml", "--run.name", "mine"]
    assert job.command(1) == [*left, "--run.resume", "mine", "--run.resume-from=-1"]


def test_a_flag_without_a_value_takes_no_other_flag_along():
    assert slurm._remove_flag(["--a", "--b", "1", "--a", "2", "--a"], "--a") == ["--b", "1"]


def test_a_later_start_does_not_go_back_again_because_a_file_says_so(tmp_path):
    from llmrl_jax.run.config import RunConfig

    job, _ = slurm.make_job(slurm.SlurmConfig(), ["lm", "sft", "--config", "a.yaml"], [RunConfig("a", str(tmp_path))])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    assert job.command(1) == [*job.command(0), "--run.resume", "--run.resume-from=-1"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--slurm.partitio", "gpu"], "'--slurm.partitio'"),
        (["--slurm.mode", "per-gpu"], "--slurm.gpus-per-node"),
        (["--slurm.time", "4h"], "--slurm.time is '4h'; MINUTES, H:MM:SS or D-HH:MM:SS"),
        (["--slurm.time", "0:30"], "--slurm.grace is 120"),
        (["--slurm.nodes", "0"], "--slurm.nodes is 0"),
        (["--slurm.nodes", "2", "--hosts.process-id", "0"], "--hosts.process-id beside --slurm.*"),
        (["--slurm.extra", "Bad flag"], "'Bad flag'"),
        (["--slurm.nodes", "2", "--lenght", "3"], "--length"),  # the command line itself is parsed before it is queued
    ],
)
def test_what_cannot_be_submitted(cluster, capsys, asked, message):
    assert cli.main([*SFT, *asked]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (cluster / "script.sh").exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("4:00:00", 14400), ("1-12", 129600), ("2-01:02:03", 176523)],
)
def test_times_are_those_of_sbatch(text, seconds):
    assert slurm.SlurmConfig(time=text).seconds == seconds


def test_no_slurm_and_no_submitit(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main([*SFT, "--slurm.nodes", "2"]) == 2
    assert "srun" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert cli.main([*SFT, "--slurm.nodes", "2"]) == 2
    assert "`slurm`" in capsys.readouterr().err


def test_a_refusal_of_sbatch_is_told(cluster, capsys):
    tool(cluster / "bin", "sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpus' >&2\nexit 1\n")
    assert cli.main([*SFT, "--slurm.partition", "gpus"]) == 2
    assert "job" in (err := capsys.readouterr().err) and "invalid partition" in err


# a stand-in for a run: it says how it was started, waits, and saves when it is told to stop
RUN = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def stop(number, frame):
    (folder / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(folder / "started.json").write_text(json.dumps(sys.argv[2:]))
if "loading" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
while {"wait", "loading"} & set(sys.argv):
    time.sleep(0.02)
sys.exit(3 if "fail" in sys.argv else 0)
"""


def start(folder: Path, *args: str, requeues: int = 5, **environ: str) -> subprocess.Popen:
    """A job's process, on a machine whose scontrol records."""
    (folder / "run.py").write_text(RUN)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    tool(programs, "scontrol", f'#!/bin/sh\necho "$@" > {folder}/new && mv {folder}/new {folder}/scontrol\n')
    job = slurm.Job(args, str(folder), requeues, (sys.executable, str(folder / "run.py"), str(folder)))
    env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "4711", **environ}
    env |= {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([sys.executable, "-c", f"from llmrl_jax.run.slurm import Job\n{job!r}()"], env=env)


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < limit, path
        time.sleep(0.02)


@pytest.mark.parametrize(("state", "saves"), [("wait", True), ("loading", False)])
def test_when_the_time_is_up_it_goes_back_to_the_queue(tmp_path, state, saves):
    """A run in its updates saves first; one that loads or is evaluated is ended by the signal."""
    process = start(tmp_path, state)
    wait_for(tmp_path / "started.json")
    time.sleep(0.2)
    assert json.loads((tmp_path / "started.json").read_text()) == [state]
    process.send_signal(signal.SIGUSR2)
    wait_for(tmp_path / "scontrol")
    assert (tmp_path / "saved").exists() == saves and (tmp_path / "scontrol").read_text() == "requeue 4711\n"
    assert process.poll() is None  # it waits for SLURM to end it
    process.kill()
    process.wait()


def test_a_cancelled_job_saves_and_is_not_queued_again(tmp_path):
    process = start(tmp_path, "wait")
    wait_for(tmp_path / "started.json")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    wait_for(tmp_path / "saved")
    time.sleep(0.3)
    assert not (tmp_path / "scontrol").exists()
    process.kill()
    process.wait()


def test_a_later_start_resumes_and_exit_codes_are_passed_on(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert start(tmp_path, "fail", SLURM_RESTART_COUNT="0").wait(30) == 3
    assert json.loads((tmp_path / "started.json").read_text()) == ["fail"]
    assert start(tmp_path, "fail", SLURM_RESTART_COUNT="1").wait(30) == 3
    assert json.loads((tmp_path / "started.json").read_text()) == ["fail", "--run.resume"]
    # killed before there was anything to resume
    (tmp_path / "config.json").unlink()
    assert start(tmp_path, SLURM_RESTART_COUNT="1").wait(30) == 0
    assert json.loads((tmp_path / "started.json").read_text()) == []


def test_it_runs_as_submitit_runs_it(tmp_path):
    (tmp_path / "run.py").write_text(RUN)
    program = (sys.executable, str(tmp_path / "run.py"), str(tmp_path))
    executor = submitit.LocalExecutor(tmp_path / "logs")
    executor.update_parameters(timeout_min=1)
    job = executor.submit(slurm.Job(("there",), str(tmp_path), 5, program))
    assert job.result() is None
    assert json.loads((tmp_path / "started.json").read_text()) == ["there"]
    assert "start 1:" in job.stdout()
