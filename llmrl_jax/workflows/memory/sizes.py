"""Formatting of numbers and sizes, and parsing of sizes."""

from __future__ import annotations

import re


def count(n: int) -> str:
    """A number with three digits and a unit: 1.10B, 27.3M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return str(n)


def size(n: int) -> str:
    """Bytes with a unit: 512 B, 1.5 MiB, 13.3 GiB."""
    value, unit = float(n), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"


def parse_bytes(text: str) -> int:
    """`16GiB`, `80GB`, `512 MiB` or a plain number of bytes. **Raises:** `ValueError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"the memory is {text!r}; a size is needed, as 16GiB or 80GB")
    power = "KMGT".index(match[2].upper()) + 1 if match[2] else 0
    n = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if not n:
        raise ValueError(f"the memory is {text!r}; a device has some")
    return n
