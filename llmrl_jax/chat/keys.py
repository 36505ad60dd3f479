"""API keys of servers: from environment variables, never from the command line or from files of this package."""

from __future__ import annotations

import os


def read_key(variable: str, use: str) -> str:
    """The key in an environment variable; empty if no variable is named.

    **Arguments:** `variable`, its name; `use`, the purpose of the key, for the error.
    **Raises:** `ValueError` if the variable is empty or its value is not a valid key; the key is never shown.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(f"the environment variable {variable} is empty; it must hold the key {use}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"the environment variable {variable} holds a blank or an unprintable character; mend it")
    return key
