"""Several command lines in one process, whose runs share a program: `python -m llmrl_jax.cli.group FILE`, a JSON list
of lists of words.

`llmrl sweep` starts it, with a file: an argument of a process may be too short for some hundred lines."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llmrl_jax.cli.main import main as run_line


def main(lines: Sequence[Sequence[str]]) -> int:
    """Run command lines, without `llmrl`. **Returns:** the largest of their exit codes."""
    from llmrl_jax.workflows.group import run_group

    return max(run_group([functools.partial(run_line, line) for line in lines]))


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
