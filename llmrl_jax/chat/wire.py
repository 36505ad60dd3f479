"""The OpenAI-compatible wire format: conversion of requests and answers, with every field checked."""

from __future__ import annotations

import email.utils
import hashlib
import json
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from llmrl_jax.chat.protocol import BadReply, ChatReply, ChatRequest, Choice, ContextExceeded, ServerError, Usage


LONGEST_QUOTE = 300
"""Maximum number of characters of a server's text in an error."""


def sample_seed(seed: int, sample: int) -> int:
    """The seed to send for the samples from an index on: the request's own for index 0, else 31 bits of a hash.

    With the same seed a server would return the same samples for every index."""
    if sample == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:4]) >> 1


LIMITS = ("max_tokens", "max_completion_tokens")
"""The names of the token limit; OpenAI's reasoning models know the second only."""

USUALLY_ONE = ("temperature", "top_p")
"""Fields that servers take to be 1 where a request does not have them."""


def to_wire(model: str, request: ChatRequest, omitted: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of openai's `create`, and the additional fields of the body.

    **Arguments:** `omitted`, fields that the model did not accept (`adapted`). Those that change this request's meaning
    are sent all the same, so that the server refuses them."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        _token_limit(omitted): request.max_tokens,
    }
    for name in USUALLY_ONE:
        if getattr(request, name) is not None:
            body[name] = getattr(request, name)
    if request.n != 1:
        body["n"] = request.n
    if request.seed is not None:
        body["seed"] = sample_seed(request.seed, request.sample)
    if request.stop:
        body["stop"] = list(request.stop)
    required = {*LIMITS, *(name for name in USUALLY_ONE if body.get(name) != 1)}
    return {name: value for name, value in body.items() if name not in omitted or name in required}, dict(request.extra)


def _token_limit(omitted: Collection[str]) -> str:
    """The name of the token limit that is still allowed; the first if both are refused."""
    return next((name for name in LIMITS if name not in omitted), LIMITS[0])


def adapted(field: str, request: ChatRequest, omitted: Collection[str]) -> set[str] | None:
    """The fields to leave out after a server refused one, if the request then has the same meaning; None otherwise.

    Without `stop`, replies are cut here. Without `seed`, sampling cannot be repeated, as on servers that ignore it.
    The token limit has a second name. Without `n`, samples are requested one at a time. `temperature` and `top_p`
    may be left out at 1, the servers' default."""
    equivalent = {
        "stop": True,
        "seed": True,
        "n": request.n > 1,
        **{name: getattr(request, name) == 1 for name in USUALLY_ONE},
    }
    usable = equivalent.get(field, False) if field not in LIMITS else not set(LIMITS) - {field} <= set(omitted)
    return {*omitted, field} if usable and field not in omitted else None


def _choice(data: Any, stop: Sequence[str]) -> Choice:
    message = data.get("message") if isinstance(data, dict) else None
    message = message if isinstance(message, dict) else {"content": ()}
    content = _text(message.get("content"))
    if content is None:
        raise BadReply(f"a choice has no message with a text in content: {quote(data)}")
    reason = data.get("finish_reason")
    text = content.encode("utf-8", "replace").decode()  # JSON can spell half a character
    if any(message.get(name) for name in ("reasoning_content", "reasoning")):
        text = text.lstrip()  # what separated the answer from the thoughts
    return Choice(text, reason if isinstance(reason, str) else "unknown").cut(stop)


def _text(content: Any) -> str | None:
    """The text of a message; None for another structure.

    Null if a filter removed it, or if reasoning used up max_tokens: an empty text, explained by finish_reason. A list
    of parts, as Mistral's reasoning models answer, has the thoughts in parts of their own."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    texts = [part.get("text") for part in content if part.get("type") in ("text", "output_text")]
    return "".join(texts) if texts and all(isinstance(text, str) for text in texts) else None


def from_wire(body: bytes, request: ChatRequest, model: str, seconds: float) -> ChatReply:
    """The reply of a chat completion's body, checked. A usage that is incomplete is unknown; the text is kept.

    **Raises:** `BadReply`, with the field and the problem; `transient` if the bytes are not JSON or there is no choice,
    since a second attempt may succeed, unlike with a server of another format. `ServerError` (`refusal`) for an error
    in the body, which gateways send with the status 200.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        text = quote(body.decode("utf-8", "replace"))
        raise BadReply(f"the answer is not JSON: {text}", transient=True, lost=1) from None
    if not isinstance(data, dict):
        raise BadReply(f"the answer has no list of choices: {quote(data)}")
    if error := data.get("error") or (data if data.get("object") == "error" else None):
        raise refusal(error)
    choices = data.get("choices")
    if not isinstance(choices, list):
        raise BadReply(f"the answer has no list of choices: {quote(data)}")
    for choice in choices:
        if isinstance(choice, dict) and (choice.get("error") or choice.get("finish_reason") == "error"):
            failed = refusal(choice.get("error") or {"message": "finish_reason is 'error'", "code": 502})
            failed.lost = 1
            raise failed
    if len(choices) != request.n:
        remedy = "; set split=True, which asks for one sample at a time" if request.n > 1 and choices else ""
        missing = not choices
        raise BadReply(
            f"{request.n} samples were asked for and {len(choices)} came{remedy}", transient=missing, lost=int(missing)
        )
    if all(isinstance(c, dict) and isinstance(c.get("index"), int) for c in choices):
        choices = sorted(choices, key=lambda c: c["index"])
    name, print_, usage = data.get("model"), data.get("system_fingerprint"), data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return ChatReply(
        choices=tuple(_choice(c, request.stop) for c in choices),
        model=name if isinstance(name, str) and name else model,
        usage=Usage.read(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached),
        fingerprint=print_ if isinstance(print_, str) else None,
        seconds=seconds,
    )


_TRANSIENT_CODES = re.compile(r"rate.?limit|overloaded|server.?error|timeout|timed.?out|unavailable", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|not accept|not permitted|not allowed|unrecogni[sz]ed|unknown|unexpected",
    re.IGNORECASE,
)
_FIELD = re.compile(
    r"(?<![\w-])(?:(?<=['\"`])n(?=['\"`])|stop|seed|temperature|top_p|max_tokens|max_completion_tokens)(?![\w-])"
)


def refusal(error: Any, status: int | None = None, wait: float | None = None, key: str = "") -> ServerError:
    """The error that a server's error object describes.

    **Arguments:** `error`, the object, or a text; `status`, of the answer; None: 200, and the object's code decides as
    a status does, where it is one, or its name; `wait`, seconds that the server asks to wait; `key`, taken out of the
    text.
    """
    data: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    code, kind = data.get("code"), data.get("type")
    names = [name for name in (code, kind) if isinstance(name, str)]
    prefix = f"status {status}: "
    if status is None:
        codes = (_status(x) for x in (code, data.get("status"), data.get("status_code")))
        status = next((number for number in codes if number), None)
        prefix = f"an error in the answer{'' if status is None else f', code {status}'}: "
    transient = any(map(_TRANSIENT_CODES.search, names))  # of an error with a name at best
    if status is not None:
        transient = status in (408, 409, 429) or status >= 500
    message = data.get("message")
    text = message if isinstance(message, str) and message else quote(data)
    metadata = data.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):  # a gateway quotes its provider
        text += f" ({metadata['raw']})"
    return (ContextExceeded if "context_length_exceeded" in names else ServerError)(
        prefix + quote(redact(text, key)),
        status=status,
        # An account without credit answers 429 like a busy server, and waiting does not help.
        transient=transient and "insufficient_quota" not in names,
        retry_after=wait,
        unsupported=_unsupported(data, text) if status in (400, 422, None) else "",
    )


def _status(code: Any) -> int:
    """The status that an error's code is; 0 for another code, as providers have of their own, such as 1302."""
    number = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    return number if 400 <= number < 600 else 0


def _unsupported(data: Mapping[str, Any], text: str) -> str:
    """The field of a request that an error says is not accepted: OpenAI's `param`, else the first in the text."""
    code, param = data.get("code"), data.get("param")
    if code not in ("unsupported_parameter", "unsupported_value") and not _UNSUPPORTED.search(text):
        return ""
    field = _FIELD.search(f"'{param}'" if isinstance(param, str) and param else text)
    return field[0] if field else ""


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
