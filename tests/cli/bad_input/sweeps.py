"""Bad input of sweeps and reports."""

from __future__ import annotations

from tests.cli.bad_input.row import Row


GRID = 'command = "rl train"\noptions = {steps = 100}\ngrid = {"ppo.gamma" = [0.5, 0.9]}\n'


def of_file(name: str, text: str, error: str) -> Row:
    return Row(f"sweep of {name}", "sweep --config s.toml", error, files={"s.toml": text})


ROWS = [
    Row("sweep of no file", "sweep --config s.toml", r"s\.toml"),
    Row("sweep of a file near", "sweep --config rates.toml", "mean 'rate.toml'", files={"rate.toml": GRID}),
    of_file("no TOML", "command", r"s\.toml.*TOML"),
    of_file("nothing", "", "command is None"),
    of_file("a command that makes no run", GRID.replace("rl train", "glam test"), "glam test"),
    of_file("a fixed option that no point has", GRID.replace("steps", "stepz"), "mean 'steps'"),
    of_file("an option that the point has not", GRID.replace("gamma", "gama"), "mean 'ppo.gamma'"),
    of_file("a value out of bounds", GRID.replace("0.9", "9.0"), r"point 2 \(ppo\.gamma 9\.0\): --ppo\.gamma is 9\.0"),
    of_file("a word for a number", GRID.replace("0.9", '"x"'), r"point 2 .*'x'"),
    of_file("a point twice", GRID.replace("0.9", "5e-1"), "points 1 .* and 2 "),
    of_file("an unknown algorithm", GRID + 'points = [{algo = "pqo"}]', "point 1 .*mean 'ppo'"),
    Row("sweep into a file", "sweep --config s.toml --out s.toml", r"--out.*s\.toml", files={"s.toml": GRID}),
    Row("report on nothing", "report", "of runs"),
    Row("report on no run", "report x", "in x"),
    Row("report by no metric", "report {cartpole} --metrics nope", "--metrics.*'nope'"),
    Row("report as a picture", "report {cartpole} --out a.png", r"\.png.*htm, html"),
    Row("report on a damaged log", "report {cartpole}", r"cartpole/metrics\.jsonl:1 is '\[1\]'",
        files={"cartpole/metrics.jsonl": "[1]\n"}),
]  # fmt: skip
