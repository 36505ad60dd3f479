"""Prices of tokens: a dated table in USD per million, which users can extend; other models have no known cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmrl_jax.chat.protocol import Usage


TABLE = Path(__file__).parent / "prices.json"
"""List prices of OpenAI's models, with the month of retrieval. Prices change: compare with the provider's page before a
paid run."""


@dataclass(frozen=True)
class Price:
    """The prices of one model, in USD per million tokens."""

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
    """The library's table, updated by a user's.

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
    """The cost of a model's tokens in USD; None, not 0, if the tokens or the price are unknown."""
    price = prices.get(model)
    if usage is None or price is None:
        return None
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    at = price.input if price.cached_input is None else price.cached_input
    total = (usage.prompt_tokens - cached) * price.input + cached * at + usage.completion_tokens * price.output
    return total / 1e6
