"""`llmrl eval` and `llmrl play` of a run, whatever its kind."""

from __future__ import annotations

import re
from pathlib import Path

from llmrl_jax.cli.main import main


def check_eval_and_play(folder: Path, capsys) -> None:
    """`llmrl eval` obtains the results with which the run ended; `llmrl play` shows an episode."""
    file = max(folder.glob("eval-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    at_end = file.read_text()
    file.unlink()
    assert main(["eval", str(folder)]) == 0
    assert file.read_text() == at_end
    capsys.readouterr()
    assert main(["play", str(folder)]) == 0
    said = capsys.readouterr().out
    (length,) = re.findall(r"^(\d+) steps, return ", said, re.MULTILINE)
    assert int(length) >= 1 and len(re.findall(r"^step \d+: ", said, re.MULTILINE)) == int(length)
