"""What tokens cost: a dated table in USD per million, which users extend; what is not in it has no known cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmrl_jax.chat.protocol import Usage


TABLE = Path(__file__).parent / "prices.json"
"""List prices of OpenAI's models, with the month in which they were looked up. Prices change: compare with the
provider's page before a paid run."""


@dataclass(frozen=True)
class Price:
    """Of one model, in USD per million tokens."""

    input: float
    """Of the prompt."""
    output: float
    """Of the completion, hidden reasoning included."""
    cached_input: float | None = None
    """Of those prompt tokens that the server had in its cache; None: as `input`."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"a price of {value} USD per million tokens ({name}) is not a price")


Prices = Mapping[str, Price]
"""By the model's exact name: a dated version may cost twice what its family does."""


def load_prices(path: str | Path | None = None) -> dict[str, Price]:
    """The table that comes with this library, with a user's over it.

    **Arguments:** `path`, a JSON file like `prices.json`: `{"prices": {"my-model": {"input": 0.2, "output": 0.8}}}`.
    A model of one's own costs `{"input": 0, "output": 0}`; that is a statement, and so not the default.
    **Raises:** `ValueError` for a file of another shape, naming the model.
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
    """The USD that a model's tokens cost; None where the tokens or the price are unknown, which is not 0."""
    price = prices.get(model)
    if usage is None or price is None:
        return None
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    at = price.input if price.cached_input is None else price.cached_input
    total = (usage.prompt_tokens - cached) * price.input + cached * at + usage.completion_tokens * price.output
    return total / 1e6
