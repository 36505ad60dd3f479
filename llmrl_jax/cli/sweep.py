"""Sweeps: one command over seeds and settings, from a file, as jobs that run one after another or as a SLURM array.

The file (TOML, JSON or YAML) has

* `command`, the full name of a command that makes a run, such as `rl train`;
* `seeds`, a number of seeds from 0 on, or a list of seeds;
* `options`, for every point: flags without dashes, with their values. Nested tables are flags with dots;
* `grid`, flags with lists of values, of which every combination is a point;
* `points`, a list of tables of flags, each a point; with a `grid`, each is combined with all of it;
* `one_program`, whether jobs that differ in seeds and floats alone run in one program (the default): where the command
  has it, each as a run of its own (`SHARES_PROGRAM`), else the seeds of a point as one run where it has `--seeds` with
  such settings;
* `metrics`, the results to print; by default the main ones.

A fixed option that only some points have, as those of one of two algorithms, is left out at the others. Every command
line is parsed before the first is run. A job's folder is named after what decides its results, so that a changed file
keeps the jobs that are still in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl_jax.cli.parsing import RunCommand, arguments, by_flag, flags_of, run_command
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import check_seed, nearest
from llmrl_jax.core.files import check_writable, expanded, json_text, write_whole
from llmrl_jax.core.statistics import Estimate
from llmrl_jax.options.settings import read_values
from llmrl_jax.report import results, runs
from llmrl_jax.report.figures import text_table
from llmrl_jax.run import info
from llmrl_jax.run.folder import FINISHED, held
from llmrl_jax.run.signals import StopRequest


KEYS = ("command", "seeds", "options", "grid", "points", "one_program", "metrics")
"""What a file of a sweep may have."""
OF_THE_SWEEP = {
    "run.seed": "give `seeds` beside `command`",
    "seeds": "give `seeds` beside `command`",
    "run.name": "the sweep names its runs",
    "run.out": "--out says where the sweep is",
    "run.resume": "a sweep resumes its runs by itself",
    "run.resume-from": "a sweep resumes its runs from their newest checkpoints",
    "config": "write its options into the file of the sweep",
    "print-config": "leave it out",
}
"""Options that a file may not give, and the remedy."""
NAME_LENGTH = 60
"""Letters of the settings in the name of a run, before its digest."""
FILE = "sweep.json"
PROGRAM = (sys.executable, "-m", "llmrl_jax.cli.main")
GROUP = (sys.executable, "-m", "llmrl_jax.cli.group")

ERRORS = (ValueError, KeyError, TypeError, OSError)


@dataclass(frozen=True)
class Job:
    """A run of a sweep: a point with one seed, or with several in one program."""

    point: int
    """The number of its point, from 0."""
    seeds: tuple[int, ...]
    folder: Path
    args: tuple[str, ...]
    """The command line after `llmrl`, with the command's name."""
    settings: Any
    """Its settings, parsed from `args`."""
    program: str = ""
    """Equal for jobs that may run in one program; empty: a process of its own."""

    @property
    def state(self) -> str:
        """`finished`, `running`, `stopped`, `failed`, or empty if it was never started."""
        if runs.read_values(self.folder) is None:
            return ""
        state = runs.read_facts(self.folder, self.folder.parent).state
        complete = (self.folder / "summary.json").is_file() and self._has_options()
        return runs.STOPPED if state == FINISHED and not complete else state

    def _has_options(self) -> bool:
        """Return whether the run has the options that a resumed run may change, as its steps; all others name it."""
        saved = runs.flat(runs.read_values(self.folder) or {})
        options = runs.flat(configs.to_json(self.settings))
        free = [name for name in options.keys() - configs.identity(self.settings) if not name.startswith("run.")]
        return all(name not in saved or saved[name] == options[name] for name in free)

    def next_args(self) -> list[str]:
        """The command line of the next start, which continues a run that was started before."""
        started = runs.read_values(self.folder) is not None
        return [*self.args, *([f"--run.resume={self.folder}"] if started else [])]


@dataclass(frozen=True)
class Sweep:
    """The jobs of a file."""

    command: RunCommand
    folder: Path
    points: tuple[Mapping[str, Any], ...]
    """The options in which points differ, by flag."""
    options: Mapping[str, Any]
    """The options of all points that have them."""
    jobs: tuple[Job, ...]
    metrics: tuple[str, ...]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_sweep(file: str | Path, out: Path) -> Sweep:
    """Read the file of a sweep, and check the command line of each job with the command's parser.

    **Arguments:** `file`; `out`, the folder of sweeps: this one is in a folder with the file's name.
    **Raises:** `FileNotFoundError` without the file; `ValueError` naming what is wrong, and the point.
    """
    path, values = read_values(file)
    try:
        return _sweep(values, expanded(out) / path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _sweep(values: Mapping[str, Any], folder: Path) -> Sweep:
    if unknown := [name for name in values if name not in KEYS]:
        raise ValueError(
            f"there is no {unknown[0]!r} in a sweep{nearest(unknown[0], list(KEYS))} (known: {', '.join(KEYS)})"
        )
    name, metrics, one_program = values.get("command"), values.get("metrics", []), values.get("one_program", True)
    if not isinstance(name, str):
        raise ValueError(f"command is {name!r}; the full name of a command is needed, as in 'rl train'")
    if not isinstance(metrics, list) or not all(isinstance(metric, str) for metric in metrics):
        raise ValueError(f"metrics is {metrics!r}; a list of names of results is needed")
    if not isinstance(one_program, bool):
        raise ValueError(f"one_program is {one_program!r}; true or false is needed")
    command, seeds = run_command(name), _seeds(values.get("seeds", 1))
    options, grid, points = _tables(values)
    varied = [{**point, **combination} for point in points for combination in _combinations(grid)]
    jobs: list[Job] = []
    read: set[str] = set()
    for i, point in enumerate(varied):
        try:
            flags = command.flags(arguments({**options, **point}))
            if missing := [flag for flag in point if flag not in flags]:
                hint = nearest(missing[0], sorted(flags))
                raise ValueError(f"llmrl {command.name} has no option {missing[0]!r} there{hint}")
            fixed = {flag: value for flag, value in options.items() if flag in flags}
            read |= set(fixed)
            jobs += _jobs(command, i, fixed, point, seeds, one_program, folder)
        except ERRORS as error:
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise ValueError(f"point {i + 1} ({_point_text(point)}): {message}") from None
    if unread := [flag for flag in options if flag not in read]:
        flags = command.flags(arguments({**options, **varied[0]}))
        raise ValueError(f"no point has the option {unread[0]!r}{nearest(unread[0], sorted(flags))}: leave it out")
    _refuse_duplicates(jobs, varied)
    check_writable(folder, "--out", folder=True)
    return Sweep(command, folder, tuple(varied), options, tuple(jobs), tuple(metrics))


def _seeds(value: Any) -> tuple[int, ...]:
    """The seeds: those of a list, or so many from 0 on."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        seeds = tuple(range(value))
    elif isinstance(value, list) and value and all(type(seed) is int for seed in value):
        seeds = tuple(value)
    else:
        raise ValueError(f"seeds is {value!r}; a number of seeds from 1, or a list of seeds, is needed")
    for seed in seeds:
        check_seed("a seed", seed)
    if twice := [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]:
        raise ValueError(f"seeds has {twice[0]} twice: name each once, since every run counts as one seed")
    return seeds


def _tables(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]], list[dict[str, Any]]]:
    """The options, the grid and the points of a file, by flag. **Raises:** `ValueError`."""
    options, grid, points = (values.get(name, kind) for name, kind in (("options", {}), ("grid", {}), ("points", [{}])))
    for name, table in (("options", options), ("grid", grid)):
        if not isinstance(table, Mapping):
            raise ValueError(f"{name} is {table!r}; a table of options is needed")
    if not isinstance(points, list) or not points or not all(isinstance(point, Mapping) for point in points):
        raise ValueError(f"points is {points!r}; a list of tables of options is needed")
    options, grid, points = _flags(options), _flags(grid), [_flags(point) for point in points]
    for flag, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{flag!r} is {choices!r} in the grid; a list of values is needed")
    for flag in {*options, *grid, *(flag for point in points for flag in point)}:
        if flag in OF_THE_SWEEP or flag.startswith(("hosts.", "slurm.")):
            raise ValueError(
                f"the option {flag!r} is not possible in a sweep: {OF_THE_SWEEP.get(flag, 'leave it out')}"
            )
        parts = [name for name, table in (("options", options), ("grid", grid)) if flag in table]
        parts += ["points"] if any(flag in point for point in points) else []
        if len(parts) > 1:
            raise ValueError(f"the option {flag!r} is in {' and in '.join(parts)}: give it once")
    return options, grid, points


def _flags(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table's values by flag. **Raises:** `ValueError` for a value that no flag has, such as a date."""
    values = {str(name).replace("_", "-"): value for name, value in runs.flat(table).items()}
    for flag, value in values.items():
        for x in value if isinstance(value, list) else [value]:
            if not isinstance(x, (bool, int, float, str, list, type(None))):
                raise ValueError(f"{flag!r} is {x!r}; a number, a string, true, false or a list of them is needed")
    return values


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _jobs(
    command: RunCommand,
    point: int,
    fixed: Mapping[str, Any],
    varied: Mapping[str, Any],
    seeds: tuple[int, ...],
    one_program: bool,
    folder: Path,
) -> Iterator[Job]:
    """The jobs of a point, parsed."""
    first = command.settings(arguments({**fixed, **varied, "run.seed": seeds[0]}))
    able = getattr(first, "SHARES_PROGRAM", False)
    consecutive = len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds)))
    shares = one_program and able and not first.mesh
    several = one_program and not able and consecutive and _joins_seeds(first)
    for group in [seeds] if several else [(seed,) for seed in seeds]:
        complete = {**fixed, **varied, "run.seed": group[0], **({"seeds": len(group)} if several else {})}
        settings = command.settings(arguments(complete)) if several else _with_run(first, seed=group[0])
        settings.run.check_new()
        text = f"seed{group[0]}" if len(group) == 1 else f"seeds{group[0]}-{group[-1]}"
        name = f"{_name(command, settings, fixed, varied)}-{text}"
        location = {"run.name": name, "run.out": str(folder)}
        args = (*command.name.split(), *arguments({**complete, **location}))
        yield Job(point, group, folder / name, args, settings, _program(settings) if shares else "")


def _joins_seeds(settings: Any) -> bool:
    """Return whether the command has several seeds in one run, with these settings."""
    is_able = isinstance(getattr(settings, "seeds", None), int) and not by_flag(settings).get("mesh")
    return is_able and getattr(settings, "joins_seeds", True)


def _program(settings: Any) -> str:
    """The settings with `float` for each float, and without their seed: equal for jobs that may share a program. The
    group then compares the programs themselves (`llmrl_jax.workflows.group`)."""
    values = {**runs.flat(configs.to_json(settings)), "run.seed": None}
    return json.dumps({name: float.__name__ if isinstance(x, float) else x for name, x in values.items()})


def _name(command: RunCommand, settings: Any, fixed: Mapping[str, Any], varied: Mapping[str, Any]) -> str:
    """The name of the runs of a point: its settings, and a digest of all given options except those that a resumed run
    may change, such as `steps`, if all points share them."""
    identity, parsed = configs.identity(settings), by_flag(settings)
    free = {flag for path, flag in flags_of(type(settings)) if path not in identity}
    given = {flag: value for flag, value in fixed.items() if flag not in free} | dict(varied)
    decisive = {flag: parsed.get(flag, value) for flag, value in given.items()}
    digest = hashlib.sha256(json.dumps([command.name, decisive], sort_keys=True).encode()).hexdigest()[:8]
    words = ",".join(f"{flag.rpartition('.')[2]}={decisive[flag]}" for flag in varied) or command.name
    words = re.sub(r"[^A-Za-z0-9.=,+-]+", "_", words)[:NAME_LENGTH]
    return f"{words}-{digest}".lstrip(".-")


def _refuse_duplicates(jobs: Sequence[Job], points: Sequence[Mapping[str, Any]]) -> None:
    """**Raises** `ValueError` if two points have the same settings, however they are written."""
    first: dict[str, int] = {}
    for job in jobs:
        values = configs.to_json(job.settings)
        text = json.dumps(values, sort_keys=True)
        if first.setdefault(text, job.point) != job.point:
            pair = (first[text], job.point)
            named = " and ".join(f"{i + 1} ({_point_text(points[i])})" for i in pair)
            raise ValueError(f"points {named} have the same settings: leave one out")


def _point_text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{flag} {json.dumps(value, default=str)}" for flag, value in point.items()) or "the only one"


# --- running ----------------------------------------------------------------------------------------------------------


def run(sweep: Sweep, quiet: bool = False) -> bool:
    """Run the jobs that are not finished, one program after another, each in a process of its own.

    **Arguments:** `quiet`, whether stdout is left to the results: what jobs print then goes to stderr.

    A job that fails does not end the sweep. SIGINT and SIGTERM are passed on: the jobs that run save and stop, and no
    other is started. **Returns:** whether all jobs are finished."""
    stream = sys.stderr if quiet else sys.stdout
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with held(sweep.folder), StopRequest() as request:
        for jobs in unfinished(sweep):
            if request.name:
                break
            numbers = ", ".join(str(sweep.jobs.index(job) + 1) for job in jobs)
            label = f"job{'s' * (len(jobs) > 1)} {numbers} of {len(sweep.jobs)}"
            for job in jobs:
                print(f"{label}: {shlex.join(['llmrl', *job.next_args()])}", file=stream, flush=True)
            write(sweep)
            # its own session, so that a terminal's SIGINT reaches it once, through this process
            child = subprocess.Popen(
                _command(sweep, jobs), start_new_session=True, stdout=sys.stderr if quiet else None
            )
            code = _wait(child, request)
            if code and not request.name:
                print(f"{label} ended with code {code}", file=stream, flush=True)
        write(sweep)
        if request.name:
            print(f"{request.name}: the same command continues the sweep", file=stream, flush=True)
    return all(job.state == FINISHED for job in sweep.jobs)


def _command(sweep: Sweep, jobs: Sequence[Job]) -> list[str]:
    """The command of a process that runs jobs of one program. Several lines are written to a file of the sweep."""
    lines = [job.next_args() for job in jobs]
    if len(lines) == 1:
        return [*PROGRAM, *lines[0]]
    file = sweep.folder / "lines.json"
    write_whole(file, json.dumps(lines) + "\n")
    return [*GROUP, str(file)]


def _wait(child: subprocess.Popen, request: StopRequest) -> int:
    """Wait for a process, and pass a signal on to it. **Returns:** its exit code."""
    passed = False
    try:
        while True:
            try:
                return child.wait(0.5)
            except subprocess.TimeoutExpired:
                if request.name and not passed:
                    child.send_signal(getattr(signal, request.name))
                    passed = True
    except KeyboardInterrupt:  # the second
        child.send_signal(signal.SIGINT)
        child.wait()
        raise


# --- results ----------------------------------------------------------------------------------------------------------


def estimates(sweep: Sweep) -> list[dict[str, Estimate]]:
    """The results of each point over the seeds of its finished jobs."""
    return [
        results.over_seeds([results.results_of(job.folder) for job in _jobs_of(sweep, i) if job.state == FINISHED])
        for i in range(len(sweep.points))
    ]


def _jobs_of(sweep: Sweep, point: int) -> list[Job]:
    return [job for job in sweep.jobs if job.point == point]


def table(sweep: Sweep) -> str:
    """A line for each point: its settings, how many of its seeds are finished, and its main results.

    **Raises:** `ValueError` if all jobs are finished and none has a result that the file names."""
    numbers = estimates(sweep)
    available = dict.fromkeys(name for row in numbers for name in row)
    metrics = sweep.metrics or tuple(results.main_names(available))
    if all(job.state == FINISHED for job in sweep.jobs):
        for metric in metrics:
            if metric not in available:
                raise ValueError(f"metrics has {metric!r}, which no run has; they have {', '.join(available)}")
    flags = list(dict.fromkeys(flag for point in sweep.points for flag in point))
    rows = [[*flags, "seeds", "state", *metrics]]
    for i, (point, row) in enumerate(zip(sweep.points, numbers, strict=True)):
        cells = [str(point[flag]) if flag in point else "" for flag in flags]
        jobs = _jobs_of(sweep, i)
        done = sum(len(job.seeds) for job in jobs if job.state == FINISHED)
        states = dict.fromkeys(job.state or "not started" for job in jobs)
        values = [results.estimate_text(row[metric]) if metric in row else "" for metric in metrics]
        rows.append([*cells, f"{done} of {sum(len(job.seeds) for job in jobs)}", ", ".join(states), *values])
    return text_table(rows)


def facts(sweep: Sweep) -> dict[str, Any]:
    """The sweep and its results as JSON values."""
    points = [
        {
            "options": point,
            "jobs": [
                {"folder": job.folder.name, "seeds": job.seeds, "state": job.state or "not started"}
                | {"command": shlex.join(["llmrl", *job.args])}
                for job in _jobs_of(sweep, i)
            ],
            "results": row,
        }
        for i, (point, row) in enumerate(zip(sweep.points, estimates(sweep), strict=True))
    ]
    return {
        "command": sweep.command.name,
        "options": sweep.options,
        "commit": info.commit(),
        "versions": info.versions(),
        "points": points,
    }


def write(sweep: Sweep) -> Path:
    """Write `facts` to the sweep's folder. **Returns:** the file."""
    path = sweep.folder / FILE
    write_whole(path, json_text(facts(sweep)) + "\n")
    return path


def unfinished(sweep: Sweep) -> list[list[Job]]:
    """The jobs to run, neither finished nor running, by program, in the order of their first jobs."""
    programs: dict[str, list[Job]] = {}
    for job in sweep.jobs:
        if job.state not in (FINISHED, runs.RUNNING):
            programs.setdefault(job.program or job.folder.name, []).append(job)
    return list(programs.values())


def located(job: Job) -> Any:
    """The settings of a job with the name and folder of its run."""
    return _with_run(job.settings, name=job.folder.name, out=str(job.folder.parent))


def _with_run(settings: Any, **changes: Any) -> Any:
    return dataclasses.replace(settings, run=dataclasses.replace(settings.run, **changes))
