"""Rewards on text for GRPO: a few that are useful as they stand, and the user's own from a file or module."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs_jax.registry import nearest


TextReward = Callable[[list[str], list[str], list[Mapping[str, Any]]], Sequence[float]]
"""`function(prompts, completions, rows) -> floats`: one for each completion; `rows` are the data's, whole."""

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 where the completion is the row's `response`, white space at both ends aside."""
    return [float(text.strip() == row["response"].strip()) for text, row in zip(completions, rows, strict=True)]


def contains(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 where the row's `response` occurs in the completion."""
    return [float(row["response"].strip() in text) for text, row in zip(completions, rows, strict=True)]


def last_number(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 where the last number of the completion equals the last one of the row's `response`, as in GSM8K."""

    def last(text: str) -> float | None:
        found = NUMBER.findall(text)
        return float(found[-1].replace(",", "")) if found else None

    return [
        float((wanted := last(row["response"])) is not None and last(text) == wanted)
        for text, row in zip(completions, rows, strict=True)
    ]


REWARDS: dict[str, TextReward] = {"exact": exact, "contains": contains, "last-number": last_number}


def load_reward(name: str) -> TextReward:
    """A reward by its name in `REWARDS`, or as `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    The file or module is the user's own program and is run as such: it is named on the command line and never by a
    model, a checkpoint or the data.

    **Raises:** `ValueError` for an unknown name, `FileNotFoundError`, or `AttributeError` where there is no such
    function.
    """
    where, colon, function = name.rpartition(":")
    if not colon:
        if name not in REWARDS:
            raise ValueError(
                f"no reward {name!r}{nearest(name, list(REWARDS))}; there are {', '.join(REWARDS)}, or give "
                "FILE.py:FUNCTION"
            )
        return REWARDS[name]
    if where.endswith(".py"):
        path = Path(where).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path} to take the reward {function!r} from")
        spec: Any = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    found = getattr(module, function, None)
    if not callable(found):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise AttributeError(f"{where} has no function {function!r}{nearest(function, names)}")
    return found
