"""A budget: requests that could exceed it are not sent."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmrl_jax.chat.protocol import (
    BudgetExceeded,
    CacheError,
    ChatError,
    ChatModel,
    ChatReply,
    ChatRequest,
    ServerError,
    Usage,
    outcomes_of,
    settle,
)
from llmrl_jax.chat.store import read_jsonl


MESSAGE_TOKENS = 16
"""Tokens that a chat template may add to a message."""
REQUEST_TOKENS = 64
"""Tokens that a chat template may add to a conversation: a short system message, and where the answer begins."""


@dataclass(frozen=True)
class Spent:
    """Amounts spent."""

    calls: int = 0
    """Requests that were sent: one per sample where samples are asked for one at a time."""
    tokens: int = 0
    """Prompt and completion tokens."""
    usd: float | None = 0.0
    """Cost in USD; None once a price was unknown."""

    def __add__(self, other: Spent) -> Spent:
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Spent(self.calls + other.calls, self.tokens + other.tokens, usd)

    def __sub__(self, other: Spent) -> Spent:
        usd = None if self.usd is None or other.usd is None else self.usd - other.usd
        return Spent(self.calls - other.calls, self.tokens - other.tokens, usd)


def prompt_bound(request: ChatRequest) -> int:
    """An upper bound of the prompt's tokens: byte-level tokenizers, and those that fall back to bytes, make at most one
    token per byte. It is about four times the actual count in English; a tokenizer's own count is tighter.

    It holds if the chat template adds no more than `REQUEST_TOKENS` and `MESSAGE_TOKENS` per message, as those of
    SmolLM2, Llama 3 and Qwen2.5 do. One with a long system message of its own, or with tools or a schema from `extra`,
    may add more."""
    return REQUEST_TOKENS + sum(len(m.content.encode()) + MESSAGE_TOKENS for m in request.messages)


class Budget:
    """Limits of calls, tokens or dollars; can be shared by several models and threads.

    Before a request is sent, its maximum is reserved: its prompt (`count`) and `n` times `max_tokens`. When the reply
    arrives, the actual amount is spent and the rest is released. So the sum ends slightly below a limit. Amounts billed
    without a report (a reply without usage, an attempt that was cut off or timed out) are counted at their maximum.
    What carries the sum past a limit, and then stops all later requests, is known only afterwards: retries of the
    wrapped client, requests for single samples after a server refused `n`, and a prompt of more tokens than `count`
    says.

    **Arguments:** `calls`, `tokens`, `usd`, limits, or None; `prices`, by model name (None: those of `load_prices`);
    `count`, a bound on a request's prompt tokens; `spent`, the initial amounts of a resumed run.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        usd: float | None = None,
        prices: Prices | None = None,
        count: Callable[[ChatRequest], int] = prompt_bound,
        spent: Spent | None = None,
    ):
        self.limits: dict[str, float | None] = {"calls": calls, "tokens": tokens, "usd": usd}
        for name, limit in self.limits.items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"the budget of {name} is {limit}; it must be at least 0, or None for no limit")
        self.prices = load_prices() if prices is None else prices
        self._count = count
        self._spent = spent or Spent()
        self._reserved = Spent()
        self._in_flight = 0
        self._changed = threading.Condition()

    @property
    def spent(self) -> Spent:
        """Amounts spent so far."""
        with self._changed:
            return self._spent

    def report(self) -> Mapping[str, Any]:
        """`calls`, `tokens` and `usd` spent, for logs."""
        return asdict(self.spent)

    def check(self, model: str) -> None:
        """**Raises:** `ValueError` if dollars are limited and the model's price is unknown."""
        if self.limits["usd"] is not None and model not in self.prices:
            raise ValueError(
                f"the budget is in USD and {model!r} has no price; add one to prices (Price(0, 0) if it is free), "
                "or limit calls or tokens"
            )

    def maximum(self, model: str, request: ChatRequest, split: bool = False) -> Spent:
        """Maximum that one attempt of a request can spend. Some servers bill the prompt once per sample.

        **Arguments:** `split`, whether each sample is a request of its own."""
        usage = Usage(self._count(request) * request.n, request.n * request.max_tokens)
        return Spent(request.n if split else 1, usage.total, cost(usage, model, self.prices))

    def admit(self, maxima: Sequence[Spent]) -> int:
        """Reserve the maxima of as many requests, from the first, as fit; if not even the first fits, wait for those in
        flight.

        **Arguments:** `maxima`, those of each request (`maximum`).
        **Returns:** the number of admitted requests, at least 1; each must be passed to `settle` afterwards.
        **Raises:** `BudgetExceeded` if the first does not fit, and nothing is in flight.
        """
        with self._changed:
            while True:
                admitted = 0
                for maximum in maxima:
                    if not self._fits(self._spent + self._reserved + maximum):
                        break
                    self._reserved += maximum
                    self._in_flight += 1
                    admitted += 1
                if admitted:
                    return admitted
                if not self._in_flight:
                    raise BudgetExceeded(self._refusal(maxima[0]))
                self._changed.wait()

    def settle(self, model: str, maximum: Spent, outcome: ChatReply | ChatError | None) -> None:
        """Spend a request's actual amounts and release the rest; None is a request with an unknown outcome."""
        amounts = self._amounts(model, maximum, outcome)
        with self._changed:
            self._reserved -= maximum
            self._in_flight -= 1
            if not self._in_flight:
                self._reserved = Spent()  # removes rounding errors and an unknown price
            self._spent += amounts
            self._changed.notify_all()

    def recall(self, path: str | Path) -> None:
        """Spend the amounts of an earlier recording (`Recorder`), for a resumed run.

        **Raises:** `CacheError` naming a line that cannot be read.
        """
        for number, line in enumerate(read_jsonl(path), 1):
            outcome: ChatReply | ChatError
            try:
                model, request = str(line["model"]), ChatRequest.from_json(line["request"])
                calls = int(line.get("calls", 1))
                if "reply" in line:
                    reply = ChatReply.from_json(line["reply"])
                    outcome = replace(reply, cached=line["cached"], calls=calls)
                elif line["error"]["type"] == BudgetExceeded.__name__:
                    continue  # it was not sent
                else:
                    outcome = ServerError(line["error"]["message"], lost=line["error"].get("lost", 0))
                    outcome.calls = calls
            except (ValueError, TypeError, KeyError) as error:
                raise CacheError(
                    f"line {number} of {path} is none of a recording: {type(error).__name__}: {error}; name the file "
                    "that a recorder wrote"
                ) from error
            amounts = self._amounts(model, self.maximum(model, request), outcome)
            with self._changed:
                self._spent += amounts

    def _amounts(self, model: str, maximum: Spent, outcome: ChatReply | ChatError | None) -> Spent:
        """The amounts spent by a request, at most `maximum` per attempt at all of its samples."""
        if outcome is None:
            return maximum
        if isinstance(outcome, ChatError):
            amounts = Spent(outcome.calls)
        elif outcome.cached >= len(outcome.choices):
            amounts = Spent()
        elif outcome.usage is None:
            amounts = replace(maximum, calls=outcome.calls)
        else:
            amounts = Spent(outcome.calls, outcome.usage.total, cost(outcome.usage, model, self.prices))
        parts = max(1, outcome.calls)  # an attempt is at one of them
        usd = None if maximum.usd is None else maximum.usd / parts
        for _ in range(outcome.lost):
            amounts += Spent(0, math.ceil(maximum.tokens / parts), usd)
        return amounts

    def _fits(self, total: Spent) -> bool:
        for name, limit in self.limits.items():
            value = getattr(total, name)
            if limit is not None and (value is None or value > limit):
                return False
        return True

    def _refusal(self, maximum: Spent) -> str:
        parts = []
        for name, limit in self.limits.items():
            if limit is not None:
                spent, next_amount = (_number(getattr(x, name)) for x in (self._spent, maximum))
                parts.append(
                    f"{spent} of {_number(limit)} {name} are spent, and the next request may take {next_amount}"
                )
        return f"the budget stops here: {'; '.join(parts)}; raise it, or lower max_tokens"


def _number(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:.6g}"


class Budgeted:
    """Chat model within a budget (`ChatModel`). A cache belongs around it, not inside: cached samples are free.

    **Arguments:** `model`, the wrapped one; if it has `splits` and that is true, as of `OpenAIChat`, each sample is a
    call; `budget`, which other models may share.
    **Raises:** `ValueError` if dollars are limited and the model's price is unknown; `complete` also raises
    `BudgetExceeded`, whose `outcomes` holds the replies to those requests of the batch that fitted.
    """

    def __init__(self, model: ChatModel, budget: Budget):
        budget.check(model.name)
        self.model = model
        self.budget = budget
        self.name = model.name

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch, in parts that fit the budget (`ChatModel.complete`)."""
        split = bool(getattr(self.model, "splits", False))
        maxima = [self.budget.maximum(self.name, request, split) for request in requests]
        outcomes: list[ChatReply | ChatError] = []
        while (start := len(outcomes)) < len(requests):
            try:
                end = start + self.budget.admit(maxima[start:])
            except BudgetExceeded as error:
                outcomes += [error] * (len(requests) - start)
                break
            batch: list[ChatReply | ChatError] = []
            try:
                batch = outcomes_of(self.model, requests[start:end])
            except BaseException as error:  # what a recorder writes of a batch that was interrupted
                sent = [ChatError("interrupted") for _ in maxima[start:end]]
                for interrupted, maximum in zip(sent, maxima[start:end]):
                    interrupted.calls = interrupted.lost = maximum.calls
                unsent = [BudgetExceeded("interrupted before it was sent")] * (len(requests) - end)
                error.outcomes = [*outcomes, *sent, *unsent]  # type: ignore[attr-defined]
                raise
            finally:  # also if the model was interrupted: the reserved amounts are then spent
                for maximum, outcome in itertools.zip_longest(maxima[start:end], batch):
                    self.budget.settle(self.name, maximum, outcome)
            outcomes += batch
        return settle(outcomes)


# --- prices ---------------------------------------------------------------------------------------------------------


TABLE = Path(__file__).parent / "prices.json"
"""List prices of OpenAI's models, with the month of retrieval. Prices change: compare with the provider's page before a
paid run."""


@dataclass(frozen=True)
class Price:
    """Prices of one model, in USD per million tokens."""

    input: float
    """Price of the prompt."""
    output: float
    """Price of the completion, including hidden reasoning."""
    cached_input: float | None = None
    """Price of prompt tokens in the server's cache; None: as `input`."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"a price of {value} USD per million tokens ({name}) is not a price")


Prices = Mapping[str, Price]
"""Prices by the model's exact name: a dated version may cost twice as much as its family."""


def load_prices(path: str | Path | None = None) -> dict[str, Price]:
    """Prices of the library's table, updated by a user's.

    **Arguments:** `path`, a JSON file like `prices.json`: `{"prices": {"my-model": {"input": 0.2, "output": 0.8}}}`.
    A self-hosted model has the price `{"input": 0, "output": 0}`, which must be given explicitly.
    **Raises:** `ValueError`, naming the model, for a file of another structure.
    """
    prices: dict[str, Price] = {}
    for source in (TABLE, *([] if path is None else [Path(path)])):
        try:
            data = json.loads(source.read_text())
        except ValueError as error:
            raise ValueError(f"{source} is not JSON: {error}") from None
        table = data.get("prices") if isinstance(data, dict) else None
        if not isinstance(table, dict):
            raise ValueError(f'{source} holds no prices; it should look like {{"prices": {{"model": ...}}}}')
        for model, entry in table.items():
            try:
                prices[model] = Price(**entry)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source}: the price of {model!r} cannot be read: {error}") from None
    return prices


def cost(usage: Usage | None, model: str, prices: Prices) -> float | None:
    """Cost of a model's tokens in USD; None, not 0, if the tokens or the price are unknown."""
    price = prices.get(model)
    if usage is None or price is None:
        return None
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    total = (
        (usage.prompt_tokens - cached) * price.input + cached * cached_price + usage.completion_tokens * price.output
    )
    return total / 1e6
