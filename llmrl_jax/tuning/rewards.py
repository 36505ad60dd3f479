"""Rewards on text for GRPO: a few built-in ones, and the user's own from a file or module."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from envs_jax.threads import spare_thread
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.functions import load_function
from llmrl_jax.lm import Generation, StopStrings


spare_thread()  # rewards are computed in callbacks

Rewards = Float[Array, "P n"]
Reward = Callable[[Generation, Int[Array, " P"]], Rewards | dict[str, Rewards]]
"""From the continuations of `P` prompts, and the prompts' indices in the data, to a reward for each, inside jit; or to
several by name, whose sum is the reward and each of which is reported."""


TextFunction = Callable[[list[str], list[str], list[Mapping[str, Any]]], Any]
TextReward = Callable[[list[str], list[str], list[Mapping[str, Any]]], Sequence[float]]
"""`function(prompts, completions, rows) -> floats`: one for each completion; `rows` are the complete data rows. What
continues a `prompt` begins with the space between the two, if the model writes one; a reply to `messages` does not."""

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+\u2212]?\d{{1,3}}(?!\w))?"
NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}.])[-\u2212])?(?:\\?[$\u20ac\u00a3](?P<inner>[-\u2212])?)?"
    rf"(?:(?<![\d/.])(?P<fraction>(?:{_INTEGER}\ )?\d+/\d+)(?![/\d]|\.\d)|(?P<plain>{_DECIMAL}))"
)
"""A number as people write it: -1,234.5, .50, 1e-3, 3/4, 1 3/4, $5. Not a minus: the one in 5-3 or a-1."""


def read_number(text: str) -> Fraction | None:
    """The last number of a text, exactly; None if there is none.

    It may have a sign, thousands in groups of three (1,234), decimals (.50), an exponent (1e-3), or be a fraction, also
    a mixed one (1 3/4). Units are not read: 50% and $50 are 50."""
    matches = deque(NUMBER.finditer(text), maxlen=1)
    if not matches:
        return None
    last = matches[0]
    if last["fraction"]:
        *integer, fraction = last["fraction"].split()
        numerator, denominator = (Fraction(Decimal(n)) for n in fraction.split("/"))
        if not denominator:
            return denominator  # the last number of "1/0" is its 0
        value = numerator / denominator
        if integer and numerator < denominator:
            value += Fraction(Decimal(integer[0].replace(",", "")))
    else:
        value = Fraction(Decimal(last["plain"].replace(",", "").replace("\u2212", "-")))
    return -value if last["sign"] or last["inner"] else value


def exact(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the completion equals the row's `response`, ignoring white space at both ends; else 0."""
    return [float(text.strip() == row["response"].strip()) for text, row in zip(completions, rows, strict=True)]


def contains(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the row's `response` occurs in the completion; else 0, also for a blank `response`."""
    targets = [row["response"].strip() for row in rows]
    return [float(bool(target) and target in text) for text, target in zip(completions, targets, strict=True)]


def last_number(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]]) -> list[float]:
    """1 if the last number of the completion equals the last one of the row's `response`, as in GSM8K; else 0. See
    `read_number`."""
    targets = [read_number(row["response"]) for row in rows]
    return [
        float(target is not None and read_number(text) == target)
        for text, target in zip(completions, targets, strict=True)
    ]


REWARDS: dict[str, TextReward] = {"exact": exact, "contains": contains, "last-number": last_number}
"""Built-in rewards on text by name, each 0 or 1."""


def check_response(reward: str, row: Mapping[str, Any], name: str) -> None:
    """**Raises** `ValueError`, naming the row, if no completion of it can earn a reward of `REWARDS`."""
    response = row.get("response")
    if not isinstance(response, str):
        raise ValueError(f"{name} has no `response` (a text), which the reward {reward} reads")
    if reward == "contains" and not response.strip():
        raise ValueError(f"{name}: the `response` is blank; the reward contains needs a text to search for")
    if reward == "last-number" and read_number(response) is None:
        raise ValueError(f"{name}: the `response` {response[:60]!r} has no number, which the reward last-number reads")


def load_reward(name: str) -> TextReward:
    """Reward by its name in `REWARDS`, or as `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    The file or module is the user's own program and is executed: it is named on the command line and never by a model,
    a checkpoint or the data.

    **Raises:** `ValueError` for an unknown name, a missing function, or an error in the user's file or module, also of
    its imports; `FileNotFoundError`; `ModuleNotFoundError` without such a module.
    """
    if ":" not in name:
        if name not in REWARDS:
            raise ValueError(
                f"no reward {name!r}{nearest(name, list(REWARDS))}; there are {', '.join(REWARDS)}, or give "
                "FILE.py:FUNCTION"
            )
        return REWARDS[name]
    return load_function(name, "reward", f", or one of {', '.join(REWARDS)}")


class RewardError(ValueError):
    """Function of a reward that raised an error, or gave something other than a finite number for each text."""


def rate(
    function: TextFunction,
    prompts: list[str],
    completions: list[str],
    rows: list[Mapping[str, Any]],
    shape: tuple[int, ...] = (),
    finite: bool = True,
) -> np.ndarray:
    """The values of a function on text for texts, float32 `[N, *shape]`; finite ones only, if `finite`. **Raises**
    `RewardError` for a function that fails."""
    try:
        result = function(prompts, completions, rows)
    except Exception as error:
        line = str(error).split("\n")[0]
        raise RewardError(f"the reward's function raised {type(error).__name__}: {line}") from error
    try:
        values = np.asarray(result, np.float32)
    except (TypeError, ValueError, OverflowError) as error:  # OverflowError: an integer beyond all floats
        raise RewardError(
            f"the reward's function gave {_shortened(result)!r}, which is no array of numbers: {error}"
        ) from error
    if values.shape != (len(completions), *shape):
        expected = f"an array of {list(shape)}" if shape else "one number"
        raise RewardError(
            f"the reward's function gave an array of {list(values.shape)}, not {expected} for each of "
            f"{len(completions)} texts"
        )
    if finite and not (sound := np.isfinite(values)).all():
        first = int(np.argmin(sound.reshape(len(values), -1).all(-1)))
        raise RewardError(
            f"the reward's function gave {result[first]!r} for the text {completions[first][:60]!r}; a finite number "
            "is needed (0 for what earns nothing)"
        )
    return values


def _shortened(result: Any) -> str:
    """The beginning of a function's result, as text."""
    try:
        return str(result)[:60]
    except ValueError:  # an integer of over 4,300 digits
        return f"a {type(result).__name__}"


def try_reward(function: TextReward, row: Mapping[str, Any]) -> None:
    """Call a reward for two completions of a row, its `response` and the empty one, so that a function that fails is
    found before anything is compiled. **Raises** `RewardError`."""
    completions = [str(row.get("response") or ""), ""]
    try:
        rate(function, [str(row.get("prompt", ""))] * 2, completions, [row] * 2)
    except RewardError as error:
        raise RewardError(f"{error} (tried on the first row, with the completions {completions})") from error


def total_and_parts(rewards: Rewards | dict[str, Rewards]) -> tuple[Rewards, dict[str, Rewards]]:
    """The result of a `Reward` as the total rewards and, under `reward/<name>`, the parts."""
    if not isinstance(rewards, dict):
        return rewards.astype(jnp.float32), {}
    parts = {f"reward/{name}": part.astype(jnp.float32) for name, part in rewards.items()}
    return sum(parts.values(), start=jnp.float32(0)), parts


def from_text(
    function: TextFunction,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    stops: StopStrings | None = None,
    shape: tuple[int, ...] = (),
) -> FromText:
    """Python function on text, inside jit: the device waits for the host.

    **Arguments:** `function(prompts, completions, rows)`, which returns an array of `shape` for each completion, and
    is deterministic (a resumed run relies on it); `tokenizer`; `rows`, the data, whose `prompt` is passed on; `stops`,
    strings that end a completion.
    **Returns:** float32 `[P, n, *shape]` from `n` continuations of each of `P` prompts.
    """

    return FromText(function, tokenizer, rows, stops, shape, finite=False)


class FromText:
    """See `from_text`."""

    def __init__(
        self,
        function: TextFunction,
        tokenizer: Any,
        rows: Sequence[Mapping[str, Any]],
        stops: StopStrings | None,
        shape: tuple[int, ...],
        finite: bool,
    ):
        self._function, self._tokenizer, self._rows = function, tokenizer, rows
        self._stops, self._shape, self._finite = stops, shape, finite
        self.failure: RewardError | None = None
        """The last error on the host, which JAX reports as one of its own, see `rewards_named`."""

    def __call__(self, generation: Generation, indices: Int[Array, " P"]) -> Float[Array, "P n ..."]:
        output = jax.ShapeDtypeStruct((*generation.tokens.shape[:2], *self._shape), jnp.float32)
        return jax.pure_callback(
            self._on_host, output, generation.tokens, generation.lengths, generation.finish, indices
        )

    def _on_host(self, tokens: Any, lengths: Any, finish: Any, indices: Any) -> np.ndarray:
        generation = Generation(tokens, lengths, tokens, tokens, finish)
        starts = [not _continues(self._rows[int(i)]) for i in indices]
        by_start = {x: generation.texts(self._tokenizer, self._stops, start=x) for x in set(starts)}
        texts = [text for i, start in enumerate(starts) for text in by_start[start][i]]
        chosen = [self._rows[int(i)] for i in indices for _ in range(tokens.shape[1])]
        prompts = [str(row.get("prompt", "")) for row in chosen]
        try:
            values = rate(self._function, prompts, texts, chosen, self._shape, self._finite)
        except RewardError as error:
            self.failure = error
            raise
        return values.reshape(*tokens.shape[:2], *self._shape)


def _continues(row: Mapping[str, Any]) -> bool:
    """Return whether a completion of a row continues its prompt (`encode_prompt`)."""
    return row.get("messages") is None and "prompt" in row


def text_reward(
    function: TextReward, tokenizer: Any, rows: Sequence[Mapping[str, Any]], stops: StopStrings | None = None
) -> FromText:
    """Python function on text as a `Reward`, see `from_text`: a finite number for each completion."""
    return FromText(function, tokenizer, rows, stops, (), finite=True)


@contextmanager
def rewards_named(*rewards: Reward | None) -> Iterator[None]:
    """Replace JAX's error for a failed callback, and the traceback that it logs, by the `RewardError` that was raised
    in it."""

    def keep_record(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], RewardError))

    log = logging.getLogger("jax._src.callback")
    log.addFilter(keep_record)
    try:
        yield
    except Exception as error:
        for reward in rewards:
            failure = getattr(reward, "failure", None)
            if failure is not None:
                raise RewardError(str(failure)) from error
        raise
    finally:
        log.removeFilter(keep_record)
