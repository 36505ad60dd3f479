"""Bad input of runs: folders, logs, resumes."""

from __future__ import annotations

from tests.cli.bad_input.row import CARTPOLE, Row


TRAIN = f"rl train {CARTPOLE} --run.out {{tmp}}/runs"

ROWS = (
    # --- the folder ---------------------------------------------------------------------------------------------------
    Row("out is a file", f"rl train {CARTPOLE} --run.out f", "no run can be kept in f .*choose another --run.out",
        files={"f": ""}),
    Row("out is in a file", f"rl train {CARTPOLE} --run.out f/g", "no run can be kept in f/g .*choose another",
        files={"f": ""}),
    Row("out is in /proc", f"rl train {CARTPOLE} --run.out /proc/x", "no run can be kept in /proc/x .*choose another"),
    # --- seeds --------------------------------------------------------------------------------------------------------
    Row("a negative seed", f"{TRAIN} --run.seed=-1", "seed is -1; at least 0 is needed"),
)  # fmt: skip
