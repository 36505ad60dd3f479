"""OpenAI's wire format: parsing requests.

A field that would change the answer and is not supported is refused by name: an answer that ignores it would look like
one that respects it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmrl_jax.chat.wire import quote
from llmrl_jax.lm.sampling import EXTREMES
from llmrl_jax.serve.errors import ApiError
from llmrl_jax.serve.request import Ask, Sampling
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.scorer import Pair, Scorer
from llmrl_jax.serve.served import ContextOverflow, Served


_READ = frozenset(
    ("model", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "logprobs")
    + ("top_k", "min_p", "repetition_penalty")
)
_IGNORED = frozenset(
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


@dataclass(frozen=True)
class ScoreRequest:
    """Parsed prompts and candidates."""

    pairs: tuple[Pair, ...]
    """Prompt by prompt."""
    prompts: int
    candidates: int


def _go_on() -> None:
    """A check that never stops the work."""


def read_completion(
    body: Mapping[str, Any],
    sampler: Sampler,
    default_tokens: int = 16,
    max_prompts: int | None = None,
    check: Callable[[], None] = _go_on,
) -> Request:
    """A body of `/v1/completions`. **Arguments:** `check`, called between two steps, which may raise to stop the work.
    **Raises:** `ApiError`, naming the field."""
    _refuse_others(body, sampler.served, {"prompt"})
    texts = _prompts(body)
    if max_prompts is not None and len(texts) > max_prompts:
        raise ApiError(f"{len(texts)} prompts are in one request; at most {max_prompts} may wait here", param="prompt")
    prompts = []
    for prompt in texts:
        check()
        prompts.append(_encoded(sampler.served, prompt))
    logprobs = _integer(body, "logprobs", -1, 0)
    if logprobs > 0:
        raise _unsupported("logprobs", logprobs, (0,), _INSTEAD["top_logprobs"])
    return _request(body, sampler, prompts, "max_tokens", default_tokens, logprobs == 0)


def read_chat(
    body: Mapping[str, Any], sampler: Sampler, default_tokens: int = 512, check: Callable[[], None] = _go_on
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
    tokens = _blamed("messages", lambda: sampler.served.encode_chat(said))
    return _request(body, sampler, [tokens], limit, default_tokens, _boolean(body, "logprobs"))


def read_score(
    body: Mapping[str, Any],
    scorer: Scorer,
    max_pairs: int | None = None,
    max_tokens: int | None = None,
    max_characters: int | None = None,
    check: Callable[[], None] = _go_on,
) -> ScoreRequest:
    """A body of `/v1/score`.

    **Arguments:** `body`; `scorer`; `max_pairs`, of a prompt and a candidate; `max_tokens`, the sum of the tokens of
    all pairs, that is with each prompt counted once per candidate; `max_characters`, the same of their characters,
    because a tokenizer may merge the end of a prompt with a candidate, so each pair is tokenized on its own; `check`,
    see `read_completion`.
    **Raises:** `ApiError`, naming the field."""
    known = {"model", "prompt", "candidates"}
    for name in sorted(set(body) - known - _IGNORED):
        if body[name] is not None:
            text = f"the field {quote(name)!r} is unknown here; known are {', '.join(sorted(known))}"
            raise ApiError(text, param=quote(name))
    served = scorer.served
    _check_model(body, served)
    prompts, candidates = _prompts(body), body.get("candidates")
    if not isinstance(candidates, list) or not candidates or not all(map(_is_prompt, candidates)):
        raise ApiError(
            f"candidates is {quote(candidates)}; a list of at least 1 text, or list of token ids, is needed",
            param="candidates",
        )
    count = len(prompts) * len(candidates)
    if max_pairs is not None and count > max_pairs:
        raise ApiError(
            f"{len(prompts)} prompts x {len(candidates)} candidates are {count} pairs; at most {max_pairs} are scored "
            "in a request: send several requests",
            param="candidates",
        )
    texts = [[len(text) for text in each if isinstance(text, str)] for each in (prompts, candidates)]
    length = sum(texts[0]) * len(texts[1]) + sum(texts[1]) * len(prompts)
    if max_characters is not None and length > max_characters:
        raise ApiError(
            f"the pairs of a prompt and a candidate have {length} characters together, each prompt counted once per "
            f"candidate; at most {max_characters} are read in a request: send several requests",
            param="candidates",
        )
    spent, encoded = 0, []
    for prompt in prompts:
        check()
        encoded.append(_encoded(served, prompt))
        if len(encoded[-1]) >= served.context:
            raise ApiError(
                f"a prompt has {len(encoded[-1])} tokens, and the context is {served.context}, with the candidate; "
                "shorten it",
                param="prompt",
                code="context_length_exceeded",
            )
        spent += len(encoded[-1]) * len(candidates)
        _refuse_tokens(spent, max_tokens)
    for candidate in candidates:
        check()
        if isinstance(candidate, str):
            _blamed("candidates", partial(_text, candidate))
            _blamed("candidates", partial(served.refuse_early, candidate))
    pairs: list[Pair] = []
    for prompt, tokens in zip(prompts, encoded):
        for candidate in candidates:
            check()
            pairs.append(_blamed("candidates", partial(scorer.encode, prompt, candidate, tokens)))
            spent += len(pairs[-1].candidate)
            _refuse_tokens(spent, max_tokens)
    return ScoreRequest(tuple(pairs), len(prompts), len(candidates))


def _refuse_tokens(spent: int, limit: int | None) -> None:
    if limit is not None and spent > limit:
        raise ApiError(
            f"the pairs of a prompt and a candidate have more than {limit} tokens together, as many as are scored in a "
            "request: send several requests",
            param="candidates",
        )


def _request(body, sampler: Sampler, prompts: Sequence[list[int]], limit: str, default: int, pieces: bool) -> Request:
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise ApiError(f"stop is {quote(stop)}; a text or a list of texts is needed", param="stop")
    options: dict[str, Any] = {"n": _integer(body, "n", 1, 1), "top_k": _integer(body, "top_k", 0, 0)}
    for name, default_value in (("temperature", 1.0), ("top_p", 1.0), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        options[name] = _number(body, name, default_value)
    if 0 < options["temperature"] < EXTREMES["temperature"][0]:
        options["temperature"] = 0.0  # some clients send a tiny number for greedy
    if body.get("seed") is not None:
        options["seed"] = _integer(body, "seed", 0, -(2**63))
    asks: list[Ask] = []
    for row, tokens in enumerate(prompts):
        room = max(1, min(default, sampler.served.context - len(tokens)))
        options["max_tokens"] = _integer(body, limit, room, 1)
        how = _blamed("", lambda: Sampling(stop=tuple(stop), pieces=pieces, **options))
        options["seed"] = how.seed  # one seed for all prompts, also if it was drawn
        ask = Ask(tuple(tokens), how, row)
        asks.append(_blamed("", partial(sampler.check, ask)))
    stream = _boolean(body, "stream")
    after = body.get("stream_options") or {}
    if not isinstance(after, dict) or set(after) - {"include_usage", "include_obfuscation"}:
        raise ApiError(f"stream_options is {quote(after)}; only include_usage is known", param="stream_options")
    if after and not stream:
        raise ApiError("stream_options is given, and stream is not true", param="stream_options")
    return Request(tuple(asks), stream, _boolean(after, "include_usage"))


def _refuse_others(body: Mapping[str, Any], served: Served, own: set[str]) -> None:
    """Refuse unsupported fields and another model's name."""
    for name, value in body.items():
        if value is None or name in _READ or name in own or name in _IGNORED:
            continue
        if name not in _NEUTRAL:
            raise ApiError(f"the field {quote(name)!r} is not known to this server; leave it out", param=quote(name))
        if not _is_one_of(value, _NEUTRAL[name]):
            raise _unsupported(name, value, _NEUTRAL[name], _INSTEAD.get(name, ""))
    _check_model(body, served)


def _is_one_of(value: Any, neutral: Sequence[Any]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)


def _unsupported(name: str, value: Any, neutral: Sequence[Any], instead: str) -> ApiError:
    known = " or ".join(quote(v) if v != "" else '""' for v in neutral)
    return ApiError(f"{name} is {quote(value)}, which this server does not support (only {known}){instead}", param=name)


def _check_model(body: Mapping[str, Any], served: Served) -> None:
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


def _blamed(param: str, call: Callable[[], Any]) -> Any:
    """What a call returns; its `ValueError` becomes an `ApiError` for `param` or the field that the message names."""
    try:
        return call()
    except ContextOverflow as error:
        raise ApiError(str(error), param=param or None, code="context_length_exceeded") from None
    except ValueError as error:
        raise ApiError(str(error), param=param or str(error).split()[0]) from None


def _is_prompt(value: Any) -> bool:
    tokens = isinstance(value, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in value)
    return isinstance(value, str) or tokens


def _prompts(body: Mapping[str, Any]) -> list[Any]:
    """Each a text or a list of tokens."""
    prompt = body.get("prompt")
    if _is_prompt(prompt) and prompt != []:
        return [prompt]
    if isinstance(prompt, list) and prompt and all(map(_is_prompt, prompt)):
        return prompt
    raise ApiError(
        f"prompt is {quote(prompt)}; a text, a list of token ids, or a list of either is needed", param="prompt"
    )


def _encoded(served: Served, prompt: Any) -> list[int]:
    return _blamed("prompt", lambda: served.encode(_text(prompt)) if isinstance(prompt, str) else served.check(prompt))


def _text(text: str) -> str:
    """**Raises:** `ValueError` for a lone surrogate, which JSON can contain and no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text cannot be written as UTF-8: {error.reason} at {error.start}") from None
    return text


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
    return {"role": _ROLES[role], "content": _blamed("messages", lambda: _text(content))}


def _integer(body: Mapping[str, Any], name: str, default: int, low: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ApiError(f"{name} is {quote(value)}; an integer of at least {low} is needed", param=name)
    return value


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ApiError(f"{name} is {quote(value)}; a number is needed", param=name)
    return float(value) if abs(value) < 1e30 else math.copysign(math.inf, value)


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise ApiError(f"{name} is {quote(value)}; true or false is needed", param=name)
    return bool(value)
