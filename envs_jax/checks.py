"""Checks of what a user gives, and their messages."""

from __future__ import annotations

import difflib


def nearest(name: str, names: list[str], n: int = 3) -> str:
    """A clause that suggests the names closest to a wrong one; empty when none is close."""
    lower = {candidate.lower(): candidate for candidate in names}
    close = [lower[c] for c in difflib.get_close_matches(name.lower(), list(lower), n=n, cutoff=0.5)]
    return f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
