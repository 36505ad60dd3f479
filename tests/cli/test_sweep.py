"""`llmrl sweep`: which jobs a file gives, what is refused before any runs, what runs again, and the table."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmrl_jax.cli import group as lines_of_one_program, main as cli, sweep
from llmrl_jax.core.config import stamped
from llmrl_jax.core.statistics import mean_interval
from llmrl_jax.report import results
from llmrl_jax.run.folder import Status, write_status
from llmrl_jax.workflows import group
from tests.paths import ROOT


try:
    import submitit  # not in a test: it replaces the handlers of logs, pytest's too
except ModuleNotFoundError:
    submitit = None

FILE = """
command = "rl train"
seeds = 3

[options]
env = "CartPole-v1"
steps = 2e4
ppo.normalize-advantages = false
dqn.n-step = 3

[grid]
algo = ["ppo", "dqn"]

[[points]]
network.hidden = [32]

[[points]]
network.hidden = [8, 8]
"""

# a stand-in for a command: it writes a run as `rl train` would, or fails, or waits for a signal
PROGRAM = """
import json, os, pathlib, signal, sys, time
args = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[3:] if "=" in arg)
folder = pathlib.Path(args["run.out"]) / args["run.name"]
with open("started", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if args["run.seed"] == "1" and os.path.exists("broken"):
    sys.exit(1)
folder.mkdir(parents=True, exist_ok=True)
config = json.loads(pathlib.Path("settings", folder.name + ".json").read_text())
(folder / "config.json").write_text(json.dumps(config))
status = {"update": 1, "updates": 2, "ended": "", "why": "", "saved": 1}
def stop(number, frame):
    (folder / "status.json").write_text(json.dumps(status | {"ended": "stopped", "why": "asked"}))
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
if os.path.exists("wait"):
    os.rename("wait", "waiting")
    time.sleep(60)
(folder / "status.json").write_text(json.dumps(status | {"ended": "finished"}))
returns = [float(args["run.seed"]) + i + 10 * config["ppo"]["gamma"] for i in range(config["seeds"])]
values = {"greedy/episode_return": sum(returns) / len(returns)}
values |= {"greedy/episode_return_runs": returns} if len(returns) > 1 else {}
(folder / "summary.json").write_text(json.dumps(values))
"""

# a stand-in for a process of several jobs
GROUP = """
import json, pathlib, subprocess, sys
program = pathlib.Path(__file__).with_name("program.py")
lines = json.loads(pathlib.Path(sys.argv[1]).read_text())
sys.exit(max(subprocess.run([sys.executable, str(program), *line]).returncode for line in lines))
"""

POINTS = """
command = "rl train"
seeds = [0, 1]
one_program = false
options = {env = "CartPole-v1", steps = 100}
grid = {"ppo.gamma" = [0.5, 0.25]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "group.py").write_text(GROUP)
    monkeypatch.setattr(sweep, "PROGRAM", (sys.executable, str(tmp_path / "program.py")))
    monkeypatch.setattr(sweep, "GROUP", (sys.executable, str(tmp_path / "group.py")))
    return tmp_path


def planned(text: str, name: str = "mine.toml") -> sweep.Sweep:
    Path(name).write_text(text)
    plan = sweep.read_sweep(name, Path("sweeps"))
    Path("settings").mkdir(exist_ok=True)
    for job in plan.jobs:
        (Path("settings") / f"{job.folder.name}.json").write_text(json.dumps(stamped(sweep.located(job))))
    return plan


def started() -> list[list[str]]:
    """The command lines of the jobs that were started since the last call."""
    if not Path("started").exists():
        return []
    lines = [json.loads(line) for line in Path("started").read_text().splitlines()]
    Path("started").unlink()
    return lines


def test_the_jobs_of_a_file():
    plan = planned(FILE)
    assert plan.folder == Path("sweeps/mine") and len(plan.points) == 4
    found = [(job.settings.algo, job.settings.network.hidden, job.settings.seeds, job.seeds) for job in plan.jobs]
    assert found == [(a, h, 1, (i,)) for h in ((32,), (8, 8)) for a in ("ppo", "dqn") for i in range(3)]
    assert all(job.settings.steps == 20000 for job in plan.jobs)
    # an option of one algorithm is left out at the other
    assert plan.jobs[0].settings.ppo.normalize_advantages is False and plan.jobs[3].settings.dqn.n_step == 3
    assert "--ppo.no-normalize-advantages" in plan.jobs[0].args
    assert not any(arg.startswith("--ppo") for arg in plan.jobs[3].args)
    # the same in JSON and in YAML, and with nested tables
    values = {"command": "rl train", "grid": {"ppo": {"gamma": [0.5, 0.25]}}, "seeds": [0, 1], "one_program": False}
    values["options"] = {"env": "CartPole-v1", "steps": 100}
    a, b = planned(POINTS), planned(json.dumps(values), "mine.json")
    c = planned(json.dumps(values), "mine.yaml")
    assert [job.args for job in a.jobs] == [job.args for job in b.jobs] == [job.args for job in c.jobs]
    assert [job.seeds for job in a.jobs] == [(0,), (1,), (0,), (1,)]


def test_names_say_what_decides_the_results():
    names = [job.folder.name for job in planned(POINTS).jobs]
    assert len(set(names)) == 4 and names[0].startswith("gamma=0.5-") and names[0].endswith("-seed0")
    longer = planned(POINTS.replace("steps = 100", "steps = 200").replace("0.25]", "0.25, 0.125]"))
    assert [job.folder.name for job in longer.jobs][:4] == names, "steps may change in a resumed run"
    other = planned(POINTS.replace("steps = 100", 'steps = 100, "ppo.num-envs" = 4'))
    assert not {job.folder.name for job in other.jobs} & set(names)
    spelled = planned(POINTS.replace("0.5", "5e-1").replace("steps = 100", "steps = 1e2"))
    assert [job.folder.name for job in spelled.jobs] == names


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("rl train", "rl trian", "did you mean 'train'"),
        ("rl train", "runs list", "no command that makes a run"),
        ("rl train", "nothing", "there is no command 'nothing'"),
        ("seeds = [0, 1]", "seed = 1", "there is no 'seed' in a sweep; did you mean 'seeds'"),
        ("[0, 1]", "0", "seeds is 0"),
        ("[0, 1]", "[0, 0]", "seeds has 0 twice"),
        ("[0, 1]", "[-1]", "a seed is -1"),
        ("false", "1", "one_program is 1"),
        ("steps", "stepz", "no point has the option 'stepz'; did you mean 'steps'"),
        ("steps = 100", '"dqn.n-step" = 1', "no point has the option 'dqn.n-step'"),
        ("steps = 100", '"run.seed" = 1', "the option 'run.seed' is not possible in a sweep: give `seeds`"),
        ("steps = 100", '"run.name" = "x"', "'run.name' is not possible in a sweep"),
        ("steps = 100", '"ppo.gamma" = 0.5', "'ppo.gamma' is in options and in grid"),
        ("steps = 100", "steps = 0", r"point 1 \(ppo.gamma 0.5\): --steps is 0; at least 1"),
        ("ppo.gamma", "ppo.gama", "has no option 'ppo.gama' there; did you mean 'ppo.gamma'"),
        ("[0.5, 0.25]", "[0.5, 2.5]", r"point 2 \(ppo.gamma 2.5\): --ppo.gamma is 2.5; from 0 to 1"),
        ("[0.5, 0.25]", '[0.5, "x"]', r"point 2 .*could not convert string to float: 'x'"),
        ("[0.5, 0.25]", "[0.5, 0.5]", "points 1 .* and 2 .* have the same settings"),
        ("[0.5, 0.25]", "0.5", "'ppo.gamma' is 0.5 in the grid; a list"),
        ("[0.5, 0.25]", "[]", "a list of values is needed"),
        ("grid =", "metrics = [1]\ngrid =", "metrics is"),
        ("grid =", "points = []\ngrid =", "points is"),
        ("grid =", 'points = [{algo = "ppp"}]\ngrid =', "point 1 .*did you mean 'ppo'"),
        ("steps = 100", "steps = 2026-11-27", "'steps' is datetime.date"),
        ("grid =", "grid ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(old, new, message, folder):
    assert old in POINTS
    (folder / "mine.toml").write_text(POINTS.replace(old, new))
    with pytest.raises(ValueError, match=message):
        sweep.read_sweep("mine.toml", Path("sweeps"))
    assert not (folder / "sweeps").exists()


def test_a_sweep_runs_each_job_once_and_continues(folder, capfd):
    plan = planned(POINTS)
    (folder / "broken").touch()
    assert cli.main(["sweep", "--config", "mine.toml"]) == 1
    assert len(started()) == 4, "a job that fails does not end the sweep"
    out = capfd.readouterr().out
    assert "ended with code 1" in out and "1 of 2" in out and "not started" in out
    (folder / "broken").unlink()
    assert cli.main(["sweep", "--config", "mine.toml", "--json"]) == 0
    assert [dict(a.split("=", 1) for a in line[2:])["--run.seed"] for line in started()] == ["1", "1"]
    facts = json.loads(capfd.readouterr().out)
    assert facts == json.loads((plan.folder / "sweep.json").read_text())
    for point, gamma in zip(facts["points"], (0.5, 0.25), strict=True):
        mean, low, high, n = mean_interval([10 * gamma, 10 * gamma + 1])
        expected = {"mean": mean, "low": pytest.approx(low), "high": pytest.approx(high), "n": n}
        assert point["options"] == {"ppo.gamma": gamma} and point["results"]["greedy/episode_return"] == expected
        assert [job["state"] for job in point["jobs"]] == ["finished"] * 2
    assert cli.main(["sweep", "--config", "mine.toml"]) == 0 and started() == []
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["ppo.gamma", "seeds", "state", "greedy/episode_return"]
    assert lines[1].split(maxsplit=5) == ["0.5", "2", "of", "2", "finished", results.estimate_text(
        mean_interval([5.0, 6.0]))]  # fmt: skip
    # more steps: every job resumes
    planned(POINTS.replace("steps = 100", "steps = 200"))
    assert cli.main(["sweep", "--config", "mine.toml"]) == 0
    lines = started()
    assert len(lines) == 4 and all(line[-1].startswith("--run.resume=sweeps/mine/gamma") for line in lines)
    assert cli.main(["sweep", "--config", "mine.toml", "--table"]) == 0 and started() == []


def test_jobs_that_differ_in_seeds_and_floats_run_in_one_program(folder, capfd):
    plan = planned(POINTS.replace("one_program = false", "").replace("grid = {", 'grid = {"ppo.num-envs" = [2, 4], '))
    programs = [
        [(job.settings.ppo.num_envs, job.settings.ppo.gamma, job.seeds) for job in jobs]
        for jobs in sweep.unfinished(plan)
    ]
    assert programs == [[(n, gamma, (i,)) for gamma in (0.5, 0.25) for i in (0, 1)] for n in (2, 4)]
    meshed = POINTS.replace("steps = 100", "steps = 100, mesh = 'data=1'").replace("one_program = false", "")
    for text in (meshed, POINTS):
        assert [len(jobs) for jobs in sweep.unfinished(planned(text))] == [1] * 4
    (plan,) = planned('command = "bkrl train"\nseeds = 3\noptions = {steps = 100}').jobs
    assert plan.seeds == (0, 1, 2) and plan.settings.seeds == 3 and not plan.program, "seeds as one run"
    for command, options in (
        ("bkrl train", "mesh = 'data=1'"),
        ("bkrl train", "alg = 'random', data = 'runs/collected'"),
        ("ellm pretrain", "suggester = 'chat'"),
    ):
        plans = planned(f'command = "{command}"\nseeds = 3\noptions = {{steps = 100, {options}}}').jobs
        assert [(plan.seeds, plan.settings.seeds) for plan in plans] == [((i,), 1) for i in range(3)], options
    planned(POINTS.replace("one_program = false", "").replace("[0, 1]", "[2, 3, 4]"))
    assert cli.main(["sweep", "--config", "mine.toml"]) == 0
    assert [[a for a in line if "seed" in a][:1] for line in started()] == [[f"--run.seed={i}"] for i in (2, 3, 4)] * 2
    out = capfd.readouterr().out
    assert results.estimate_text(mean_interval([7.0, 8.0, 9.0])) in out and "jobs 1, 2, 3, 4, 5, 6 of 6" in out


def test_metrics_of_the_table(capfd):
    planned(POINTS.replace("grid =", 'metrics = ["nope"]\ngrid ='))
    assert cli.main(["sweep", "--config", "mine.toml"]) == 2
    err = capfd.readouterr().err
    assert "'nope'" in err and "greedy/episode_return" in err


@pytest.mark.slow
def test_an_interrupted_sweep_resumes_its_job(folder):
    planned(POINTS)
    (folder / "wait").touch()
    code = "import sys; from llmrl_jax.cli import main, sweep; sweep.PROGRAM = (sys.executable, sys.argv[1]); "
    code += "sys.exit(main.main(['sweep', '--config', 'mine.toml']))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", code, str(folder / "program.py")], env=environ)
    deadline = time.monotonic() + 120
    while not (folder / "waiting").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert len(started()) == 1
    plan = sweep.read_sweep("mine.toml", Path("sweeps"))
    assert [job.state for job in plan.jobs] == ["stopped", "", "", ""]
    assert sweep.run(plan)
    lines = started()
    assert [line[-1].startswith("--run.resume=") for line in lines] == [True, False, False, False]


@pytest.mark.skipif(submitit is None, reason="needs the extra slurm")
def test_a_sweep_is_submitted_as_an_array(folder, monkeypatch, capsys):
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("sbatch", f'cp "$1" {folder}/script.sh\necho "Submitted batch job 4711"\n'), ("srun", "")):
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod((programs / name).stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    plan = planned(POINTS)
    finished = plan.jobs[0].folder
    finished.mkdir(parents=True)
    (finished / "config.json").write_text((Path("settings") / f"{finished.name}.json").read_text())
    (finished / "summary.json").write_text("{}")
    write_status(finished, Status(1, 1, "finished"))
    assert cli.main(["sweep", "--config", "mine.toml", "--slurm.partition", "gpu", "--slurm.gpus-per-node", "1"]) == 0
    script = (folder / "script.sh").read_text()
    assert "#SBATCH --array=0-2" in script and "#SBATCH --partition=gpu" in script and "--job-name=mine" in script
    assert "4711_0 to 4711_2" in capsys.readouterr().out and started() == []
    jobs = []
    for i in range(3):
        path = folder / "sweeps" / "mine" / "slurm" / f"4711_{i}_submitted.pkl"
        jobs.append(submitit.core.utils.DelayedSubmission.load(path).function)
    assert [Path(job.run) for job in jobs] == [job.folder.absolute() for job in plan.jobs[1:]]
    assert list(jobs[0].args[:2]) == ["rl", "train"] and jobs[0].args[-2:] == ("--hosts.mode", "per-node")
    assert f"--run.out={folder / 'sweeps' / 'mine'}" in jobs[0].args
    assert cli.main(["sweep", "--config", "mine.toml", "--table", "--slurm.partition", "gpu"]) == 2


@pytest.mark.slow
def test_a_sweep_of_real_runs(monkeypatch, capfd):
    monkeypatch.setattr(sweep, "PROGRAM", (sys.executable, "-m", "llmrl_jax.cli.main"))
    monkeypatch.setattr(sweep, "GROUP", (sys.executable, "-m", "llmrl_jax.cli.group"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = POINTS.replace("steps = 100", 'steps = 100, eval-episodes = 2, "ppo.num-envs" = 2, "ppo.num-steps" = 8')
    Path("real.toml").write_text(text.replace("one_program = false", ""))
    assert cli.main(["sweep", "--config", "real.toml"]) == 0
    assert capfd.readouterr().out.splitlines()[-3].split()[:5] == ["0.5", "2", "of", "2", "finished"]
    assert cli.main(["report", "sweeps/real"]) == 0


SMALL = "--network.hidden 4 --eval-episodes 2"
REAL = {
    "dqn": f"--env CartPole-v1 --steps 512 --dqn.num-envs 4 --dqn.learning-starts 64 --dqn.batch-size 8 {SMALL} "
    "--dqn.replay-size 256 --dqn.learning-rate {}",
    "sac": f"--env Pendulum-v1 --steps 64 --sac.num-envs 4 --sac.learning-starts 16 --sac.batch-size 8 {SMALL} "
    "--sac.replay-size 64 --sac.gradient-steps 4 --sac.critic-learning-rate {}",
    "iql": "--data steps.npz --steps 12 --iql.gradient-steps 4 --iql.batch-size 8 --iql.hidden 4 "
    "--iql.learning-rate {}",
}
"""Options of runs of an algorithm, for a learning rate."""


@pytest.mark.slow
@pytest.mark.parametrize("algo", REAL)
def test_runs_of_one_program_are_as_they_are_alone(algo, monkeypatch):
    """Two seeds of two learning rates: each of four runs has its own folder, and one program computes all."""
    programs = []

    def counted(*inputs):
        programs.append(inputs)
        return compile_chunk(*inputs)

    compile_chunk = group.compile_chunk
    monkeypatch.setattr(group, "compile_chunk", counted)
    draw = np.random.default_rng(0)
    ends = {"terminated": np.arange(40) % 8 == 7, "truncated": np.zeros(40, bool)}
    obs = {name: draw.normal(size=(40, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    np.savez("steps.npz", **obs, **ends, action=draw.integers(0, 2, 40), reward=draw.normal(size=40).astype(np.float32))

    def line(out, rate, seed):
        run = f"--run.out {out} --run.name {rate}-{seed} --run.seed {seed} --run.log-every 1 --run.progress off"
        return f"rl train --algo {algo} {REAL[algo].format(rate)} {run}".split()

    def losses(out, rate, seed):
        rows = map(json.loads, Path(out, f"{rate}-{seed}", "metrics.jsonl").read_text().splitlines())
        values = [[x for name, x in row.items() if name.endswith("loss")] for row in rows]
        assert len(values) > 2 and any(values[-1])
        return np.array(values)

    runs = [(rate, seed) for rate in ("1e-2", "1e-3") for seed in (0, 1)]
    assert lines_of_one_program.main([line("together", *run) for run in runs]) == 0
    assert len(programs) == 1
    together = [losses("together", *run) for run in runs]
    assert len({x.tobytes() for x in together}) == len(runs)
    for i in (0, 3):
        assert cli.main(line("alone", *runs[i])) == 0
        np.testing.assert_allclose(together[i], losses("alone", *runs[i]), rtol=1e-4, atol=1e-6)
        first, second = (Path(out, "-".join(map(str, runs[i]))) for out in ("together", "alone"))
        assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in second.iterdir())
