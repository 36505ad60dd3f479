"""Reading the fields of a request's body; errors name the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from llmrl_jax.chat.wire import quote
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.served import ContextOverflow, Served


def go_on() -> None:
    """A check that never stops the work."""


def check_model(body: Mapping[str, Any], served: Served) -> None:
    """**Raises:** `ApiError` for a request to another model."""
    name = body.get("model")
    if not isinstance(name, str):
        raise ApiError(f"model is {quote(name)}; this server's is {served.name!r}", param="model")
    if name != served.name:
        raise ApiError(
            f"there is no model {quote(name)!r} here; this server's is {served.name!r}",
            404,
            param="model",
            code="model_not_found",
        )


def blamed(param: str, call: Callable[[], Any]) -> Any:
    """What a call returns; its `ValueError` becomes an `ApiError` for `param` or the field that the message names."""
    try:
        return call()
    except ContextOverflow as error:
        raise ApiError(str(error), param=param or None, code="context_length_exceeded") from None
    except ValueError as error:
        raise ApiError(str(error), param=param or str(error).split()[0]) from None


def is_prompt(value: Any) -> bool:
    """Whether a value is a text or a list of token ids."""
    tokens = isinstance(value, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in value)
    return isinstance(value, str) or tokens


def read_prompts(body: Mapping[str, Any]) -> list[Any]:
    """The prompts of a body, each a text or a list of tokens. **Raises:** `ApiError`."""
    prompt = body.get("prompt")
    if is_prompt(prompt) and prompt != []:
        return [prompt]
    if isinstance(prompt, list) and prompt and all(map(is_prompt, prompt)):
        return prompt
    raise ApiError(
        f"prompt is {quote(prompt)}; a text, a list of token ids, or a list of either is needed", param="prompt"
    )


def tokens_of(served: Served, prompt: Any) -> list[int]:
    """The tokens of a prompt. **Raises:** `ApiError`."""
    return blamed(
        "prompt", lambda: served.encode(checked_text(prompt)) if isinstance(prompt, str) else served.check(prompt)
    )


def checked_text(text: str) -> str:
    """The text. **Raises:** `ValueError` for a lone surrogate, which JSON can contain and no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text cannot be written as UTF-8: {error.reason} at {error.start}") from None
    return text


def integer(body: Mapping[str, Any], name: str, default: int, low: int) -> int:
    """A field's integer, or its default. **Raises:** `ApiError` for anything else, or below `low`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ApiError(f"{name} is {quote(value)}; an integer of at least {low} is needed", param=name)
    return value


def number(body: Mapping[str, Any], name: str, default: float) -> float:
    """A field's number, or its default; infinite beyond 10^30. **Raises:** `ApiError` for anything else."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ApiError(f"{name} is {quote(value)}; a number is needed", param=name)
    return float(value) if abs(value) < 1e30 else math.copysign(math.inf, value)


def boolean(body: Mapping[str, Any], name: str) -> bool:
    """A field's truth value; false without it. **Raises:** `ApiError` for anything else."""
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise ApiError(f"{name} is {quote(value)}; true or false is needed", param=name)
    return bool(value)
