"""The program in a model's reply."""

from __future__ import annotations

import re

from llmrl_jax.advice.sandbox.errors import SandboxError
from llmrl_jax.chat.thinking import strip_thinking


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_PYTHON = ("python", "py", "python3")


def code_block(reply: str) -> str:
    """The one Python block of a reply without its thoughts, between lines of three backquotes; a block without a
    language counts only if no block is marked as Python.

    **Raises:** `SandboxError` if there is none, more than one, or one without an end.
    """
    reply = strip_thinking(reply)
    blocks: list[tuple[str, str]] = []
    at = 0
    while opening := _FENCE.search(reply, at):
        closing = re.compile(rf"^[ \t]*{re.escape(opening[1])}[ \t]*$", re.MULTILINE).search(reply, opening.end())
        if closing is None:
            raise SandboxError("the code block has no end: close it by a line of three backquotes, and write less")
        blocks.append((opening[2].lower(), reply[opening.end() + 1 : closing.start()]))
        at = closing.end()
    marked = [code for language, code in blocks if language in _PYTHON]
    found = marked or [code for language, code in blocks if not language]
    if len(found) != 1:
        number = "no Python code block" if not found else f"{len(found)} Python code blocks"
        raise SandboxError(
            f"the reply has {number}; exactly one is needed, which starts with ```python and ends with ```"
        )
    if not found[0].strip():
        raise SandboxError("the code block is empty")
    return found[0]
