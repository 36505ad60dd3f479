"""The OpenAI-compatible wire format: conversion of requests and answers, with every field checked."""

from __future__ import annotations

import email.utils
import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from llmrl_jax.chat.errors import BadReply
from llmrl_jax.chat.protocol import ChatReply, ChatRequest, Choice, Usage


LONGEST_QUOTE = 300
"""Maximum number of characters of a server's text in an error."""


def sample_seed(seed: int, sample: int) -> int:
    """The seed to send for the samples from an index on: the request's own for index 0, else 31 bits of a hash.

    With the same seed a server would draw the same samples for every index."""
    if sample == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:4]) >> 1


def to_wire(model: str, request: ChatRequest, token_limit: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of openai's `create`, and the additional fields of the body."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        token_limit: request.max_tokens,
    }
    for name in ("temperature", "top_p"):
        if getattr(request, name) is not None:
            body[name] = getattr(request, name)
    if request.n != 1:
        body["n"] = request.n
    if request.seed is not None:
        body["seed"] = sample_seed(request.seed, request.sample)
    if request.stop:
        body["stop"] = list(request.stop)
    return body, dict(request.extra)


def _count(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadReply(f"usage.{name} is {value!r}, not a number of tokens")
    return value


def _usage(data: Any) -> Usage | None:
    if data is None:
        return None
    if not isinstance(data, dict):
        raise BadReply(f"usage is {quote(data)}, not an object")
    details = data.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    known = cached if isinstance(cached, int) else 0
    return Usage(_count(data, "prompt_tokens"), _count(data, "completion_tokens"), known)


def _choice(data: Any) -> Choice:
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
        raise BadReply(f"a choice has no message with a text in content: {quote(data)}")
    # null if a filter removed it, or if reasoning used up max_tokens: an empty text, explained by finish_reason
    reason = data.get("finish_reason")
    text = (message.get("content") or "").encode("utf-8", "replace").decode()  # JSON can spell half a character
    return Choice(text, reason if isinstance(reason, str) else "unknown")


def from_wire(body: bytes, request: ChatRequest, model: str, seconds: float) -> ChatReply:
    """The reply of a chat completion's body, checked.

    **Raises:** `BadReply`, with the field and the problem; `transient` if the bytes are not JSON, since a second
    attempt may succeed, unlike with a server of another format.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        text = quote(body.decode("utf-8", "replace"))
        raise BadReply(f"the answer is not JSON: {text}", transient=True, lost=1) from None
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list):
        raise BadReply(f"the answer has no list of choices: {quote(data)}")
    if len(choices) != request.n:
        remedy = "; set split=True, which asks for one sample at a time" if request.n > 1 else ""
        raise BadReply(f"{request.n} samples were asked for and {len(choices)} came{remedy}")
    if all(isinstance(c, dict) and isinstance(c.get("index"), int) for c in choices):
        choices = sorted(choices, key=lambda c: c["index"])
    said, print_ = data.get("model"), data.get("system_fingerprint")
    return ChatReply(
        choices=tuple(_choice(c) for c in choices),
        model=said if isinstance(said, str) and said else model,
        usage=_usage(data.get("usage")),
        fingerprint=print_ if isinstance(print_, str) else None,
        seconds=seconds,
    )


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The seconds that a server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def quote(value: Any) -> str:
    """A server's text, shortened for an error."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."


def redact(text: str, key: str) -> str:
    """The text without the key, including other keys and bearer tokens that a server may quote."""
    if key:
        text = text.replace(key, "[key]")
    text = re.sub(r"\bsk-[\w-]{8,}", "[key]", text)
    return re.sub(r"(?i)\bbearer\s+\S+", "Bearer [key]", text)
