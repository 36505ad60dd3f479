"""The command that made a file of results, from an experiment's options."""

from __future__ import annotations

from typing import Any


def command(script: str, x: Any, left_out: tuple[str, ...] = ("out",)) -> str:
    """Command of the experiment `x`, a dataclass whose fields have defaults: `python experiments/<script>` with
    the options that differ from the defaults of its class. Places (`left_out`) do not decide the results."""
    default = type(x)()
    options = [
        f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in vars(x).items()
        if name not in left_out and value != getattr(default, name)
    ]
    return " ".join(["python", f"experiments/{script}", *options])
