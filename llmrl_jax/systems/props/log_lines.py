"""What a line of a search's log must have, for a search to resume from it (`llmrl_jax.systems.props.study`)."""

from __future__ import annotations

from typing import Any


NUMBER = (int, float)


def fault(line: Any, num_params: int, asks: bool) -> str:
    """What a line lacks; empty if it has everything that is read from it, apart from the parts of `record`.

    **Arguments:** `line`, the JSON value; `num_params`, of a policy; `asks`, whether the method queries a language
    model."""
    if not isinstance(line, dict) or not isinstance(line.get("round"), int):
        return "an object with the number of its `round`"
    if "stopped" in line:
        return ""
    columns: list[Any] = [line.get(name) for name in ("params", "values", "returns", "lengths")]
    params, values, returns, lengths = columns
    if not all(isinstance(x, list) for x in columns):
        return "a list of each of `params`, `values`, `returns` and `lengths`"
    if not len(params) == len(values) == len(returns) == len(lengths):
        return "one of each of `params`, `values`, `returns` and `lengths` for every policy"
    dropped = line.get("dropped", [])
    if not isinstance(dropped, list) or not all(isinstance(one, dict) for one in dropped):
        return "a list of objects in `dropped`"
    if not all(_are((*NUMBER, str), x) for x in (*returns, *(one.get("returns") for one in dropped))):
        return "numbers of the episodes in `returns`"  # in `dropped` they are written as words
    if not all(_are(int, x) for x in (*lengths, *(one.get("lengths") for one in dropped))):
        return "numbers of the episodes in `lengths`"
    if not _are(NUMBER, values) or not all(_are(NUMBER, x) and len(x) == num_params for x in params):
        return f"a number for each of `values`, and {num_params} for each of `params`,"
    if asks and not isinstance(line.get("record"), dict):
        return "the `record` of the queries"
    if not all(isinstance(line.get(name), NUMBER) for name in ("best", "episodes")):  # which the figures show
        return "numbers in `best` and `episodes`"
    return ""


def _are(kind: Any, x: Any) -> bool:
    """Whether `x` is a list of values of a type."""
    return isinstance(x, list) and all(isinstance(value, kind) for value in x)
