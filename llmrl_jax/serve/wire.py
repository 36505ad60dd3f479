"""OpenAI's wire format: parsing requests.

A field that would change the answer and is not supported is refused by name: an answer that ignores it would look like
one that respects it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmrl_jax.chat.wire import quote
from llmrl_jax.lm.sampling import EXTREMES
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.fields import (
    blamed,
    boolean,
    check_model,
    checked_text,
    go_on,
    integer,
    number,
    read_prompts,
    tokens_of,
)
from llmrl_jax.serve.request import Ask, Sampling
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.served import Served


_READ = frozenset(
    ("model", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "logprobs")
    + ("top_k", "min_p", "repetition_penalty")
)
IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls")
    + ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
)
"""Fields that do not change the answer."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "priority": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that are accepted only with values that have no effect."""
_INSTEAD = {
    "echo": "; /v1/score gives the log-probabilities of a text",
    "best_of": "; request n, and choose",
    "top_logprobs": "; only the log-probability of the drawn token is returned",
    "response_format": "; llmrl_jax.advice.ask validates a reply and asks again",
}
_MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": ({},),
    "function_call": ({},),
    "refusal": ("",),
    "tool_calls": ([],),
}
"""The same for the fields of a message. Its `name` distinguishes speakers of one role; templates do not show it."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Request:
    """A parsed completion or chat completion."""

    asks: tuple[Ask, ...]
    """One per prompt."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with its token usage."""


def read_completion(
    body: Mapping[str, Any],
    sampler: Sampler,
    default_tokens: int = 16,
    max_prompts: int | None = None,
    check: Callable[[], None] = go_on,
) -> Request:
    """A body of `/v1/completions`. **Arguments:** `check`, called between two steps, which may raise to stop the work.
    **Raises:** `ApiError`, naming the field."""
    _refuse_others(body, sampler.served, {"prompt"})
    texts = read_prompts(body)
    if max_prompts is not None and len(texts) > max_prompts:
        raise ApiError(f"{len(texts)} prompts are in one request; at most {max_prompts} may wait here", param="prompt")
    prompts = []
    for prompt in texts:
        check()
        prompts.append(tokens_of(sampler.served, prompt))
    logprobs = integer(body, "logprobs", -1, 0)
    if logprobs > 0:
        raise _unsupported("logprobs", logprobs, (0,), _INSTEAD["top_logprobs"])
    return _request(body, sampler, prompts, "max_tokens", default_tokens, logprobs == 0)


def read_chat(
    body: Mapping[str, Any], sampler: Sampler, default_tokens: int = 512, check: Callable[[], None] = go_on
) -> Request:
    """A body of `/v1/chat/completions`. **Arguments:** `check`, see `read_completion`. **Raises:** `ApiError`, naming
    the field."""
    _refuse_others(body, sampler.served, {"messages", "max_completion_tokens"})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(f"messages is {quote(messages)}; a list of at least 1 message is needed", param="messages")
    said = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    limit = "max_tokens"
    if body.get("max_completion_tokens") is not None:
        limit = "max_completion_tokens"
        if body.get("max_tokens") not in (None, body[limit]):
            raise ApiError("max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    check()
    tokens = blamed("messages", lambda: sampler.served.encode_chat(said))
    return _request(body, sampler, [tokens], limit, default_tokens, boolean(body, "logprobs"))


def _request(body, sampler: Sampler, prompts: Sequence[list[int]], limit: str, default: int, pieces: bool) -> Request:
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise ApiError(f"stop is {quote(stop)}; a text or a list of texts is needed", param="stop")
    options: dict[str, Any] = {"n": integer(body, "n", 1, 1), "top_k": integer(body, "top_k", 0, 0)}
    for name, default_value in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        options[name] = number(body, name, default_value)
    if 0 < options["temperature"] < EXTREMES["temperature"][0]:
        options["temperature"] = 0.0  # some clients send a tiny number for greedy
    if body.get("seed") is not None:
        options["seed"] = integer(body, "seed", 0, -(2**63))
    asks: list[Ask] = []
    for row, tokens in enumerate(prompts):
        room = max(1, min(default, sampler.served.context - len(tokens)))
        options["max_tokens"] = integer(body, limit, room, 1)
        how = blamed("", lambda: Sampling(stop=tuple(stop), pieces=pieces, **options))
        options["seed"] = how.seed  # one seed for all prompts, also if it was drawn
        ask = Ask(tuple(tokens), how, row)
        asks.append(blamed("", partial(sampler.check, ask)))
    stream = boolean(body, "stream")
    after = body.get("stream_options") or {}
    if not isinstance(after, dict) or set(after) - {"include_usage", "include_obfuscation"}:
        raise ApiError(f"stream_options is {quote(after)}; only include_usage is known", param="stream_options")
    if after and not stream:
        raise ApiError("stream_options is given, and stream is not true", param="stream_options")
    return Request(tuple(asks), stream, boolean(after, "include_usage"))


def _refuse_others(body: Mapping[str, Any], served: Served, own: set[str]) -> None:
    """Refuse unsupported fields and another model's name."""
    for name, value in body.items():
        if value is None or name in _READ or name in own or name in IGNORED:
            continue
        if name not in _NEUTRAL:
            raise ApiError(f"the field {quote(name)!r} is not known to this server; leave it out", param=quote(name))
        if not _is_one_of(value, _NEUTRAL[name]):
            raise _unsupported(name, value, _NEUTRAL[name], _INSTEAD.get(name, ""))
    check_model(body, served)


def _is_one_of(value: Any, neutral: Sequence[Any]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def _unsupported(name: str, value: Any, neutral: Sequence[Any], instead: str) -> ApiError:
    known = " or ".join(quote(v) if v != "" else '""' for v in neutral)
    return ApiError(f"{name} is {quote(value)}, which this server does not support (only {known}){instead}", param=name)


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ApiError(f"{where} is {quote(message)}; an object with role and content is needed", param="messages")
    for name in sorted(set(message) - {"role", "content", "name"}):
        if message[name] is not None and not _is_one_of(message[name], _MESSAGE_NEUTRAL.get(name, ())):
            raise ApiError(
                f"{where} has the field {quote(name)!r}, which this server does not support", param="messages"
            )
    if not isinstance(message.get("name"), str | None):
        raise ApiError(f"{where}.name is {quote(message['name'])}; a text is needed", param="messages")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(f"{where}.role is {quote(role)}; known roles are {', '.join(_ROLES)}", param="messages")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(f"{where}.content holds {quote(part)}; only parts of text are read", param="messages")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ApiError(f"{where}.content is {quote(content)}; a text is needed", param="messages")
    return {"role": _ROLES[role], "content": blamed("messages", lambda: checked_text(content))}
