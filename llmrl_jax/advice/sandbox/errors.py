"""The one error of the sandbox."""

from __future__ import annotations

import re


class SandboxError(ValueError):
    """A program that is refused. The message is written for the author of the program, a language model included.

    **Arguments:** `reason`; `line`, the line of the source, from 1, or None where no single line is the cause;
    `source`, from which the line is quoted.
    """

    def __init__(self, reason: str, line: int | None = None, source: str = ""):
        self.reason, self.line = reason, line
        lines = lines_of(source)
        code = lines[line - 1].strip() if line and line <= len(lines) else ""
        quoted = f" ({code if len(code) <= 80 else code[:77] + '...'})" if code else ""
        super().__init__(f"line {line}{quoted}: {reason}" if line else reason)


def lines_of(source: str) -> list[str]:
    """The lines of a text as Python counts them."""
    return re.split(r"\r\n|\r|\n", source)
