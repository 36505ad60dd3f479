"""Submitting a command to SLURM: `llmrl <group> <command> ... --slurm.partition gpu --slurm.nodes 2`.

submitit (extra `slurm`) writes the batch script and passes it to sbatch. The job runs the same command line without the
`--slurm.*` flags, in a child process; the processes of the job connect through `--hosts.mode`. Shortly before the time
limit SLURM sends SIGUSR2: the run saves and stops, and the job is requeued; its next start continues with
`--run.resume`. On SIGTERM (preemption, or `scancel`) the run saves and stops as well; SLURM then decides whether the
job is requeued.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from envs_jax.extras import require
from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveInt
from llmrl_jax.core.files import expanded
from llmrl_jax.run.config import BaseRunConfig, RunConfig, flag, resume_value


_SAVE_SIGNAL = "USR2"
"""The signal that SLURM sends shortly before the time limit. (submitit's choice; NCCL may use USR1.)"""
_LINGER_S = 600
"""Seconds that a process waits for SLURM to end it after saving."""


@dataclass(frozen=True)
class SlurmConfig(Checked):
    """Resources of a job. With any of these flags a command is submitted instead of run."""

    PREFIX: ClassVar[str] = "slurm."

    partition: str = ""
    """Queue; empty: the cluster's default."""
    time: str = "1:00:00"
    """Time limit, in the formats of sbatch: MINUTES, H:MM:SS or D-HH:MM:SS."""
    nodes: PositiveInt = 1
    """Number of nodes."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs per node; 0: none."""
    mode: Literal["per-gpu", "per-node"] = "per-node"
    """One process per node, with all its GPUs, or one per GPU."""
    cpus_per_task: NonNegativeInt = 0
    """CPU cores per process; 0: the cluster's default."""
    mem: str = ""
    """Memory per node, such as 64G; empty: the cluster's default."""
    account: str = ""
    """Account to charge; empty: the user's default."""
    qos: str = ""
    """Quality of service; empty: the default."""
    constraint: str = ""
    """Required features of the nodes."""
    exclude: str = ""
    """Nodes to exclude."""
    nodelist: str = ""
    """Nodes to use."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch, as NAME=VALUE or NAME: `--slurm.extra reservation=mine exclusive`."""
    setup: tuple[str, ...] = ()
    """Shell commands that the batch script runs first, such as 'module load cuda'."""
    name: str = ""
    """Name of the job; empty: that of the run."""
    folder: str = ""
    """Folder of the script and logs, visible to every node. Empty: `slurm/` in the run's folder, or `slurm/` here."""
    grace: PositiveInt = 120
    """Seconds before the time limit at which the run saves and stops."""
    requeues: NonNegativeInt = 100
    """How often the job may be requeued and resume; 0: it ends at its time limit, and when preempted."""

    def __post_init__(self):
        super().__post_init__()
        if self.mode == "per-gpu" and not self.gpus_per_node:
            raise ValueError("--slurm.mode per-gpu starts a process for each GPU: give --slurm.gpus-per-node as well")
        if self.grace >= self.seconds:
            raise ValueError(f"--slurm.grace is {self.grace} s, but the job's time is {self.time} ({self.seconds} s)")

    @property
    def seconds(self) -> int:
        """Time limit. **Raises:** `ValueError` for a format that sbatch does not accept."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", self.time)
        if not match:
            raise ValueError(f"--slurm.time is {self.time!r}; MINUTES, H:MM:SS or D-HH:MM:SS is needed")
        days, *parts = match.groups()
        a, b, c = (int(x) if x is not None else 0 for x in parts)
        if days is not None:  # D-HH[:MM[:SS]]
            total = ((int(days) * 24 + a) * 60 + b) * 60 + c
        else:  # MM, MM:SS or HH:MM:SS
            total = (a * 60 + b) * 60 + c if parts[2] is not None else a * 60 + b
        if not total:
            raise ValueError(f"--slurm.time is {self.time!r}; a job needs some time")
        return total

    @property
    def tasks_per_node(self) -> int:
        """Processes on each node."""
        return self.gpus_per_node if self.mode == "per-gpu" else 1


@dataclass(frozen=True)
class Job:
    """The function that each process of a job calls: it runs the command line in a child process."""

    args: tuple[str, ...]
    """Arguments of `llmrl`, without `--slurm.*`."""
    run: str
    """The run's folder, which has a config.json once it can be resumed; empty: the command keeps no run."""
    requeues: int
    program: tuple[str, ...] = (sys.executable, "-m", "llmrl_jax.cli.main")
    again: tuple[str, ...] = ()
    """Further arguments of later starts, which take back what applies to the first only, also if a file says it."""

    def command(self, restarts: int) -> list[str]:
        """The command line of the job's first start (0) or a later one, which resumes from the newest checkpoint."""
        if not (restarts and self.run and (Path(self.run) / "config.json").exists()):
            return [*self.program, *self.args]
        args, resume = _remove_flag(self.args, "--run.resume-from"), flag(self.args, "--run.resume")
        if resume is None:
            args.append("--run.resume")
        elif resume_value(resume) is False:  # which said that the first start is a new run, whatever a file names
            args = [*_remove_flag(args, "--run.resume"), "--run.resume", Path(self.run).name]
        return [*self.program, *args, *self.again]

    def __call__(self) -> None:
        """Run the command; on a signal of SLURM make it save and stop. Ends the process with its exit code."""
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        signals: list[int] = []
        save = getattr(signal, f"SIG{_SAVE_SIGNAL}")
        # a child inherits ignored signals but not handlers; some clusters signal the children too
        signal.signal(save, signal.SIG_IGN)
        command = self.command(restarts)
        print(f"start {restarts + 1}: {' '.join(command)}", flush=True)
        child = subprocess.Popen(command)

        def ask(number: int, frame: Any) -> None:
            signals.append(number)
            child.send_signal(signal.SIGTERM)

        for number in (save, signal.SIGTERM):
            signal.signal(number, ask)
        code = child.wait()
        # the passed-on SIGTERM ends a run that is not in its updates: the next start goes on from the last checkpoint
        if signals and code in (0, -signal.SIGTERM):
            self._leave(signals, restarts)
        if code:
            sys.exit(code if code > 0 else 128 - code)

    def _leave(self, signals: Sequence[int], restarts: int) -> None:
        """After the run has ended on a signal: requeue the job if its time is up, and wait for SLURM to end the
        process."""
        if signal.SIGTERM in signals:
            print("SIGTERM: the run has ended; SLURM decides whether the job is queued again", flush=True)
        elif restarts >= self.requeues:
            print(f"the time is up, and the job was queued again {restarts} times already: it ends here", flush=True)
            return
        elif int(os.environ.get("SLURM_PROCID", "0")) == 0:
            job = os.environ["SLURM_JOB_ID"]
            print(f"the time is up: the run has ended; job {job} goes back to the queue", flush=True)
            subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
        time.sleep(_LINGER_S)
        sys.exit(128 + signal.SIGTERM)


def _remove_flag(args: Iterable[str], name: str) -> list[str]:
    """The arguments without a flag and its value, `--name value` or `--name=value`. tyro treats `_` as `-`."""
    args = [*args]
    left, value_follows = [], False
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        argument, equals, _ = arg.partition("=")
        if value_follows:
            value_follows = False
        elif argument.replace("_", "-") == name:
            value_follows = not equals and not following.startswith("--")
        else:
            left.append(arg)
    return left


def submit(config: SlurmConfig, args: Sequence[str], parsed: Iterable[Any] = ()) -> str:
    """Submit a command, and print the job's id and where its logs go.

    **Arguments:** `config`; `args`, the command line without `--slurm.*`; `parsed`, the values that the command's
    function would receive, which are searched for the options of its run.
    **Returns:** the job's id.
    **Raises:** `ModuleNotFoundError` without submitit, `FileNotFoundError` without SLURM, `ValueError` for options that
    sbatch rejects.
    """
    job, name = make_job(config, args, parsed)
    folder = expanded(config.folder or (Path(job.run) / "slurm" if job.run else "slurm")).absolute()
    [submitted] = _submitted(config, [job], name, folder)
    processes = config.nodes * config.tasks_per_node
    print(
        f"job {submitted.job_id} ({name}): {config.nodes} nodes x {config.tasks_per_node} = {processes} processes "
        f"({config.mode}), {config.gpus_per_node} GPUs a node, {config.time}\n"
        f"script: {submitted.paths.submission_file}\n"
        f"logs:   {submitted.paths.stdout}, {submitted.paths.stderr} (of process 0)\n"
        f"cancel: scancel {submitted.job_id}"
    )
    return submitted.job_id


def submit_array(
    config: SlurmConfig, lines: Sequence[tuple[Sequence[str], Iterable[Any]]], name: str, folder: Path
) -> list[str]:
    """Submit several commands as an array of jobs, each with the resources of `config`, and print their ids.

    **Arguments:** `lines`, `args` and `parsed` of each, as those of `submit`, with a run that has a name; `name`, of
    the array; `folder`, of the script and logs, unless `config` has one.
    **Returns:** the ids of the jobs. **Raises:** as `submit`.
    """
    jobs = [make_job(config, args, parsed)[0] for args, parsed in lines]
    submitted = _submitted(config, jobs, config.name or name, expanded(config.folder or folder).absolute())
    array = submitted[0].job_id.partition("_")[0]
    print(
        f"jobs {submitted[0].job_id} to {submitted[-1].job_id} ({config.name or name}): {len(jobs)} jobs of "
        f"{config.nodes} nodes, {config.gpus_per_node} GPUs a node, {config.time}\n"
        f"logs:   {submitted[0].paths.stdout} and so on\n"
        f"cancel: scancel {array}"
    )
    return [job.job_id for job in submitted]


def _submitted(config: SlurmConfig, jobs: Sequence[Job], name: str, folder: Path) -> list[Any]:
    """Submit jobs, several of them as one array. **Returns:** submitit's jobs. **Raises:** as `submit`."""
    submitit: Any = require("submitting to SLURM", "slurm", "submitit")
    if missing := [tool for tool in ("sbatch", "srun") if not shutil.which(tool)]:
        raise FileNotFoundError(f"{' and '.join(missing)} not found: submit from a machine with SLURM's commands")
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=config.requeues)
    executor.update_parameters(**parameters(config, name))
    try:
        if len(jobs) == 1:
            return [executor.submit(jobs[0])]
        with executor.batch():
            submitted = [executor.submit(job) for job in jobs]
        return submitted
    except submitit.core.utils.FailedJobError as error:
        message = " ".join(str(error).split())
        raise ValueError(f"sbatch refused the job: {message[:500]}") from None


def make_job(config: SlurmConfig, args: Sequence[str], parsed: Iterable[Any] = ()) -> tuple[Job, str]:
    """The function that the job calls, and its name. An unnamed run gets a name, so that a later start finds it."""
    run = _named_run(parsed)
    left = [*args]
    stamp = f"{'-'.join(args[:2])}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = ""
    if run is not None:
        if not run.name:
            left += ["--run.name", stamp]
        folder = str((expanded(run.out) / (run.name or stamp)).absolute())
    left += ["--hosts.mode", config.mode]
    name = config.name or (Path(folder).name if folder else stamp)
    again = ("--run.resume-from=-1",) if isinstance(run, RunConfig) else ()
    return Job(tuple(left), folder, config.requeues, again=again), name


def _named_run(values: Iterable[Any]) -> BaseRunConfig | None:
    """The options of a command's run, from the values that its function would receive; None if it keeps no run."""
    for value in values:
        run = value if isinstance(value, BaseRunConfig) else getattr(value, "run", None)
        if isinstance(run, BaseRunConfig):
            return run
    return None


def parameters(config: SlurmConfig, name: str) -> dict[str, Any]:
    """The parameters for submitit."""
    options: dict[str, Any] = {
        "job_name": name,
        "nodes": config.nodes,
        "ntasks_per_node": config.tasks_per_node,
        # submitit counts in minutes; sbatch gets the time limit as given
        "time": -(-config.seconds // 60),
        "setup": list(config.setup) or None,
    }
    if config.cpus_per_task:
        # srun no longer inherits this from sbatch
        options |= {"cpus_per_task": config.cpus_per_task, "srun_args": [f"--cpus-per-task={config.cpus_per_task}"]}
    options |= {field: value for field in _SAME_NAMES if (value := getattr(config, field))}
    further: dict[str, Any] = {
        "time": config.time,
        "signal": f"{_SAVE_SIGNAL}@{config.grace}",
        "requeue" if config.requeues else "no-requeue": True,
    }
    for option in config.extra:
        key, equals, value = option.removeprefix("--").partition("=")
        if not re.fullmatch(r"[a-z][a-z-]*", key):
            raise ValueError(f"--slurm.extra {option!r} is not NAME=VALUE, or NAME, of an option of sbatch")
        further[key] = value if equals else True
    return {key: value for key, value in options.items() if value is not None} | {"additional_parameters": further}


_SAME_NAMES = ("partition", "gpus_per_node", "mem", "account", "qos", "constraint", "exclude", "nodelist")
