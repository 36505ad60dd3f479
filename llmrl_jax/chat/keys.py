"""Keys of servers: from environment variables, never from a command line or a file of ours."""

from __future__ import annotations

import os


def read_key(variable: str, use: str) -> str:
    """The key in an environment variable; none where no variable is named.

    **Arguments:** `variable`, its name; `use`, what the key is for, for the error.
    **Raises:** `ValueError` where the variable is empty, or holds what is no key; the key is never shown.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty; it must hold the key {use}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"the environment variable {variable} holds a blank or an unprintable character; mend it")
    return key
