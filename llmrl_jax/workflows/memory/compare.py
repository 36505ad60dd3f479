"""Two reports of `llmrl lm fit --json`, of two settings or two versions of the code, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmrl_jax.core.files import expanded
from llmrl_jax.workflows.memory.roofline import milliseconds
from llmrl_jax.workflows.memory.sizes import size


def compare(paths: tuple[str, str]) -> dict[str, tuple[Any, Any]]:
    """What differs between two reports: name -> the two values; None where a report has none.

    Numbers of the program (memory, time, bytes, collectives, ...) are all there, also equal ones; the commit and
    settings only if they differ.
    **Raises:** `FileNotFoundError`, or `ValueError` for a file that is no report.
    """
    return differences(*map(_read, paths))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`compare` of two reports that have been read."""
    one, other = ({"commit": report.get("commit"), **report.get("settings", {})} for report in (a, b))
    rows = {n: (one.get(n), other.get(n)) for n in [*one, *(set(other) - set(one))] if one.get(n) != other.get(n)}
    left, right = _numbers(a), _numbers(b)
    return rows | {name: (left.get(name), right.get(name)) for name in [*left, *(n for n in right if n not in left)]}


def _numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    found = {"fits": report["fits"], "memory": report["total"]}
    found |= {f"memory: {name}": part["per_device"] for name, part in report["parts"].items()}
    prediction = report.get("prediction")
    if prediction:
        found |= {name: prediction[name] for name in ("seconds", "share", "flops", "bytes", "kernels")}
        for op, known in prediction["collectives"].items():
            found |= {f"{op}: count": known["count"], f"{op}: bytes": known["bytes"]}
    return found | {"compile seconds": report["seconds"]}


def _read(path: str) -> dict[str, Any]:
    file: Path = expanded(path)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no report of llmrl lm fit --json: {error}") from None
    if not isinstance(report, dict) or not {"total", "parts", "fits"} <= set(report):
        raise ValueError(f"{path} is no report of llmrl lm fit --json: it has no total and no parts")
    return report


def table(rows: Mapping[str, tuple[Any, Any]], names: tuple[str, str]) -> str:
    """The differences as a table, with the second value as a multiple of the first."""
    cells: list[tuple[str, ...]] = [("", *names, "ratio")]
    for name, pair in rows.items():
        a, b = pair
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair)
        ratio = f"{b / a:.2f}" if numbers and a else ""
        cells.append((name, *(_text(name, x) for x in pair), ratio))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        for row in cells
    )


def _text(name: str, value: Any) -> str:
    shown: Callable[[Any], str] = str
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or "-"
    if name == "seconds":
        shown = milliseconds
    elif name == "share":
        shown = "{:.1%}".format
    elif name.startswith("memory") or name.endswith("bytes"):
        return size(int(value))
    elif isinstance(value, float):
        shown = "{:.4g}".format
    return shown(value)
