"""Run a command over seeds and settings from a file, and compare the results: `llmrl sweep --config FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def sweep(config: Path, out: Path = Path("sweeps"), table: bool = False, json: bool = False) -> int:
    """Run a command over seeds and settings from a file, and print a table of the results by setting.

    All command lines are checked before the first is run. Jobs run one after another; with `--slurm.*` they are
    submitted as an array. The same command again continues: finished jobs are not run again, interrupted ones resume.
    Results are means with Student's 95% intervals over seeds; `sweep.json` in the sweep's folder has all of them.

    Args:
        config: File of the sweep, in TOML, JSON or YAML: the command, seeds, options, and a grid or a list of points.
        out: Folder that holds all sweeps; this one is in a folder with the name of its file.
        table: Print the table of what is finished, and run nothing.
        json: Print the results as JSON; what the jobs print goes to stderr.
    """
    from llmrl_jax.cli import sweep as sweeps
    from llmrl_jax.core.files import json_text

    plan = sweeps.read_sweep(config, out)
    complete = all(job.state == sweeps.FINISHED for job in plan.jobs) if table else sweeps.run(plan, quiet=json)
    if json:
        print(json_text(sweeps.facts(plan)))
    else:
        print(sweeps.table(plan))
        if plan.folder.is_dir():
            print(f"Intervals are 95%. All results are in {sweeps.write(plan)}")
    return 0 if complete or table else 1


def submit(slurm_config: Any, config: Path, out: Path = Path("sweeps"), table: bool = False, json: bool = False) -> int:
    """Submit the jobs that are not finished as an array. **Arguments:** `slurm_config`, a `SlurmConfig`; the others as
    those of `sweep`."""
    from llmrl_jax.cli import sweep as sweeps
    from llmrl_jax.run import slurm

    if table or json:
        raise ValueError("--table and --json print results, and --slurm.* submits jobs: leave one of them out")
    plan = sweeps.read_sweep(config, out.absolute())
    if not (jobs := [job for program in sweeps.unfinished(plan) for job in program]):
        print("there is nothing to submit: every job is finished or running")
        return 0
    lines = [(job.next_args(), [sweeps.located(job)]) for job in jobs]
    plan.folder.mkdir(parents=True, exist_ok=True)
    slurm.submit_array(slurm_config, lines, plan.folder.name, plan.folder / "slurm")
    print(f"results: llmrl sweep --config {config} --out {out} --table")
    sweeps.write(plan)
    return 0


sweep.submit = submit  # type: ignore[attr-defined]
COMMAND = sweep
