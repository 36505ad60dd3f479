"""Rewards on text for GRPO: a few built-in ones, and the user's own from a file or module."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llmrl_jax.core.checks import nearest
from llmrl_jax.lm import Generation, StopStrings


Rewards = Float[Array, "P n"]
Reward = Callable[[Generation, Int[Array, " P"]], Rewards | dict[str, Rewards]]
"""From the continuations of `P` prompts, and the prompts' indices in the data, to a reward for each, inside jit; or to
several by name, whose sum is the reward and each of which is reported."""


TextFunction = Callable[[list[str], list[str], list[Mapping[str, Any]]], Any]
TextReward = Callable[[list[str], list[str], list[Mapping[str, Any]]], Sequence[float]]
"""`function(prompts, completions, rows) -> floats`: one for each completion; `rows` are the complete data rows."""

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the completion equals the row's `response`, ignoring white space at both ends; else 0."""
    return [float(text.strip() == row["response"].strip()) for text, row in zip(completions, rows, strict=True)]


def contains(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the row's `response` occurs in the completion; else 0."""
    return [float(row["response"].strip() in text) for text, row in zip(completions, rows, strict=True)]


def last_number(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the last number of the completion equals the last one of the row's `response`, as in GSM8K; else 0."""

    def last(text: str) -> float | None:
        numbers = NUMBER.findall(text)
        return float(numbers[-1].replace(",", "")) if numbers else None

    return [
        float((wanted := last(row["response"])) is not None and last(text) == wanted)
        for text, row in zip(completions, rows, strict=True)
    ]


REWARDS: dict[str, TextReward] = {"exact": exact, "contains": contains, "last-number": last_number}


def load_reward(name: str) -> TextReward:
    """A reward by its name in `REWARDS`, or as `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    The file or module is the user's own program and is executed: it is named on the command line and never by a model,
    a checkpoint or the data.

    **Raises:** `ValueError` for an unknown name, `FileNotFoundError`, or `AttributeError` if there is no such
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
        own = f"_llmrl_reward_{path.stem}"
        spec: Any = importlib.util.spec_from_file_location(own, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[own] = module  # where dataclasses and pickle look for it
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[own]
            raise
    else:
        module = importlib.import_module(where)
    reward = getattr(module, function, None)
    if not callable(reward):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise AttributeError(f"{where} has no function {function!r}{nearest(function, names)}")
    return reward


def total_and_parts(found: Rewards | dict[str, Rewards]) -> tuple[Rewards, dict[str, Rewards]]:
    """The result of a `Reward` as the total rewards and, under `reward/<name>`, the parts."""
    if not isinstance(found, dict):
        return found.astype(jnp.float32), {}
    parts = {f"reward/{name}": part.astype(jnp.float32) for name, part in found.items()}
    return sum(parts.values(), start=jnp.float32(0)), parts


def _numbers(given: Any) -> np.ndarray:
    try:
        return np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the function on text gave what is no array of numbers: {error}") from None


def from_text(
    function: TextFunction,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    stops: StopStrings | None = None,
    shape: tuple[int, ...] = (),
) -> Callable[[Generation, Int[Array, " P"]], Float[Array, "P n ..."]]:
    """A Python function on text, inside jit: the device waits for the host.

    **Arguments:** `function(prompts, completions, rows)`, which returns an array of `shape` for each completion, and
    is deterministic (a resumed run relies on it); `tokenizer`; `rows`, the data, whose `prompt` is passed on; `stops`,
    strings that end a completion.
    **Returns:** float32 `[P, n, *shape]` from `n` continuations of each of `P` prompts.
    """

    def on_host(tokens, lengths, finish, places):
        generation = Generation(tokens, lengths, tokens, tokens, finish)
        texts = [text for row in generation.texts(tokenizer, stops) for text in row]
        chosen = [rows[int(i)] for i in places for _ in range(tokens.shape[1])]
        given = function([str(row.get("prompt", "")) for row in chosen], texts, chosen)
        values = _numbers(given)
        if values.shape != (len(texts), *shape):
            each = f"an array of {list(shape)}" if shape else "one number"
            raise ValueError(
                f"the function on text gave {list(values.shape)}, not {each} for each of {len(texts)} texts"
            )
        return values.reshape(*tokens.shape[:2], *shape)

    def read(generation: Generation, places: Int[Array, " P"]) -> Float[Array, "P n ..."]:
        out = jax.ShapeDtypeStruct((*generation.tokens.shape[:2], *shape), jnp.float32)
        return jax.pure_callback(on_host, out, generation.tokens, generation.lengths, generation.finish, places)

    return read


def text_reward(
    function: TextReward, tokenizer: Any, rows: Sequence[Mapping[str, Any]], stops: StopStrings | None = None
) -> Reward:
    """A Python function on text as a `Reward`, see `from_text`: a finite number for each completion."""

    def finite(prompts: list[str], completions: list[str], asked: list[Mapping[str, Any]]) -> np.ndarray:
        given = function(prompts, completions, asked)
        values = _numbers(given)
        if values.shape == (len(completions),) and not (sound := np.isfinite(values)).all():
            first = int(np.argmin(sound))
            raise ValueError(
                f"the reward gave {given[first]!r} for the text {completions[first][:60]!r}; a finite number is "
                "needed (0 for what earns nothing)"
            )
        return values

    return from_text(finite, tokenizer, rows, stops)
