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
from llmrl_jax.serve.request import ApiError, Ask, Sampling
from llmrl_jax.serve.sampler import Sampler
from llmrl_jax.serve.scorer import Pair, Scorer
from llmrl_jax.serve.served import ContextOverflow, Served


# --- fields of a body; errors name the field ------------------------------------------------------------------------


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
    """The result of a call; its `ValueError` becomes an `ApiError` for `param` or the field that the message names."""
    try:
        return call()
    except ContextOverflow as error:
        raise ApiError(str(error), param=param or None, code="context_length_exceeded") from None
    except ValueError as error:
        raise ApiError(str(error), param=param or str(error).split()[0]) from None


def is_prompt(value: Any) -> bool:
    """Return whether a value is a text or a list of token ids."""
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


# --- OpenAI's requests ----------------------------------------------------------------------------------------------


_READ = frozenset(
    ("model", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "logprobs")
    + ("top_k", "min_p", "repetition_penalty")
)
IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls", "request_id")
    + ("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_prompt", "cache_salt", "keep_alive")
)
"""Fields that do not change the answer."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    # OpenAI's
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
    "verbosity": ("medium",),
    # of other servers, whose clients send them to all
    "add_generation_prompt": (True,),
    "add_special_tokens": (),  # `_SPECIAL_TOKENS`
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "do_sample": (True,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "grammar": ("",),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_probs": (0,),
    "no_repeat_ngram_size": (0,),
    "repeat_penalty": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (False,),
    "skip_special_tokens": (False,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "xtc_probability": (0,),
}
"""Fields that are accepted only with values that have no effect."""
_SPECIAL_TOKENS = {"messages": (False,), "prompt": (True,)}
"""The values of `add_special_tokens` without effect: a template writes what begins a text."""
_ALTERNATIVES = {
    "echo": "; /v1/score gives the log-probabilities of a text",
    "best_of": "; request n, and choose",
    "top_logprobs": "; only the log-probability of the drawn token is returned",
}
_MESSAGE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "additional_kwargs": ({},),
    "annotations": ([],),
    "audio": ({},),
    "function_call": ({},),
    "images": ([],),
    "partial": (False,),
    "prefix": (False,),
    "provider_specific_fields": ({},),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "refusal": ("",),
    "thinking_blocks": ([],),
    "tool_call_id": ("",),
    "tool_calls": ([],),
}
"""The same for the fields of a message. Its `name` distinguishes speakers of one role; templates do not show it."""
_NO_THOUGHTS: dict[str, tuple[Any, ...]] = {
    "chat_template_kwargs": ({},),
    "enable_thinking": (False,),
    "reasoning_effort": ("none",),
    "reasoning": ({}, {"effort": "none"}, {"enabled": False}),
    "thinking": ({"type": "disabled"},),
}
"""The values of the fields about thoughts with which there are none."""
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
    logprobs = -1 if body.get("logprobs") is False else integer(body, "logprobs", -1, 0)
    if logprobs > 0:
        raise _unsupported("logprobs", logprobs, (0,), _ALTERNATIVES["top_logprobs"])
    return _request(body, sampler, prompts, "max_tokens", default_tokens, logprobs == 0, False)


def read_chat(
    body: Mapping[str, Any], sampler: Sampler, default_tokens: int = 512, check: Callable[[], None] = go_on
) -> Request:
    """A body of `/v1/chat/completions`. **Arguments:** `check`, see `read_completion`. **Raises:** `ApiError`, naming
    the field."""
    _refuse_others(body, sampler.served, {"messages", "max_completion_tokens", *_NO_THOUGHTS})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(f"messages is {quote(messages)}; a list of at least 1 message is needed", param="messages")
    conversation = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    limit = "max_tokens"
    if body.get("max_completion_tokens") is not None:
        limit = "max_completion_tokens"
        if body.get("max_tokens") not in (None, body[limit]):
            raise ApiError("max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    check()
    variables = template_variables(body, sampler.served)
    tokens = blamed("messages", lambda: sampler.served.encode_chat(conversation, variables))
    return _request(body, sampler, [tokens], limit, default_tokens, boolean(body, "logprobs"), True)


def _request(
    body, sampler: Sampler, prompts: Sequence[list[int]], limit: str, default: int, pieces: bool, start: bool
) -> Request:
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise ApiError(f"stop is {quote(stop)}; a text or a list of texts is needed", param="stop")
    options: dict[str, Any] = {"n": integer(body, "n", 1, 1), "top_k": max(0, integer(body, "top_k", 0, -1))}
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
        sampling = blamed("", lambda: Sampling(stop=tuple(stop), pieces=pieces, **options))
        options["seed"] = sampling.seed  # one seed for all prompts, also if it was random
        ask = Ask(tuple(tokens), sampling, row, start)
        asks.append(blamed("", partial(sampler.check, ask)))
    stream = boolean(body, "stream")
    after = body.get("stream_options") or {}
    after = {name: value for name, value in after.items() if value} if isinstance(after, dict) else after
    if not isinstance(after, dict) or set(after) - {"include_usage", "include_obfuscation"}:
        raise ApiError(f"stream_options is {quote(after)}; only include_usage is known", param="stream_options")
    if after and not stream:
        raise ApiError("stream_options is given, and stream is not true", param="stream_options")
    return Request(tuple(asks), stream, boolean(after, "include_usage"))


def _refuse_others(body: Mapping[str, Any], served: Served, fields: set[str]) -> None:
    """Refuse unsupported fields and another model's name."""
    for name, value in body.items():
        if value is None or name in _READ or name in fields or name in IGNORED:
            continue
        neutral = _NEUTRAL.get(name, _NO_THOUGHTS.get(name))
        if name == "add_special_tokens":
            neutral = _SPECIAL_TOKENS["messages" if "messages" in fields else "prompt"]
        if neutral is None:
            raise ApiError(f"the field {quote(name)!r} is not known to this server; leave it out", param=quote(name))
        if not _is_one_of(value, neutral):
            raise _unsupported(name, value, neutral, _ALTERNATIVES.get(name, ""))
    check_model(body, served)


def template_variables(body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """The variables of the chat template that a body sets. Without effect, and accepted, are empty and false values of
    variables that the template does not read, and no thinking where it cannot be turned off.

    **Raises:** `ApiError` for any other variable that the template does not read."""
    kwargs = body.get("chat_template_kwargs")
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(kwargs, dict):
        raise ApiError(f"chat_template_kwargs is {quote(kwargs)}; an object is needed", param="chat_template_kwargs")
    params = {"enable_thinking": "enable_thinking"} | {name: f"chat_template_kwargs.{name}" for name in kwargs}
    if body.get("enable_thinking") is not None:
        kwargs = {"enable_thinking": boolean(body, "enable_thinking"), **kwargs}
    template = served.template
    read = frozenset() if template is None else template.variables - {"messages", *template.specials}
    effort, field = _effort(body)
    if effort is not None:
        if "reasoning_effort" in read:
            kwargs = {"reasoning_effort": effort, **kwargs}
        elif effort != "none":
            raise _unsupported(field, body[field], ("none",), "; the model's chat template does not read it")
        if effort == "none" and "enable_thinking" in read:
            kwargs = {"enable_thinking": False, **kwargs}
    variables = {}
    for name, value in kwargs.items():
        param = params.get(name, field)
        if name in _NEUTRAL:  # of the request, not of the template
            if value is not None and not _is_one_of(value, _NEUTRAL[name]):
                raise _unsupported(quote(param), value, _NEUTRAL[name], "")
        elif name in read:
            if isinstance(value, dict | list):
                raise ApiError(f"{quote(param)} is {quote(value)}; a text, a number, true or false is needed",
                               param=quote(param))  # fmt: skip
            variables[name] = value
        elif value:
            raise ApiError(
                f"{quote(param)} is {quote(value)}, and the model's chat template does not read {quote(name)!r}; leave "
                "it out",
                param=quote(param),
            )
    return variables


def _effort(body: Mapping[str, Any]) -> tuple[str | None, str]:
    """The reasoning effort that a body asks for, and the field that says it.

    **Raises:** `ApiError` for another value of `reasoning` or `thinking`."""
    if (effort := body.get("reasoning_effort")) is not None:
        if not isinstance(effort, str):
            raise ApiError(f"reasoning_effort is {quote(effort)}; a text is needed", param="reasoning_effort")
        return effort, "reasoning_effort"
    for name in ("reasoning", "thinking"):
        value, neutral = body.get(name), _NO_THOUGHTS[name]
        if value is None or value == {}:
            continue
        if not _is_one_of(value, neutral):
            raise _unsupported(name, value, neutral, "; give chat_template_kwargs what the model's template reads")
        return "none", name
    return None, ""


def _is_one_of(value: Any, neutral: Sequence[Any]) -> bool:
    return any(value == option and isinstance(value, bool) == isinstance(option, bool) for option in neutral)


def _unsupported(name: str, value: Any, neutral: Sequence[Any], alternative: str) -> ApiError:
    supported = " or ".join(quote(v) if v != "" else '""' for v in neutral)
    return ApiError(
        f"{name} is {quote(value)}, which this server does not support (only {supported}){alternative}", param=name
    )


def _message(message: Any, location: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ApiError(f"{location} is {quote(message)}; an object with role and content is needed", param="messages")
    for name in sorted(set(message) - {"role", "content", "name"}):
        if message[name] is not None and not _is_one_of(message[name], _MESSAGE_NEUTRAL.get(name, ())):
            raise ApiError(
                f"{location} has the field {quote(name)!r}, which this server does not support", param="messages"
            )
    if not isinstance(message.get("name"), str | None):
        raise ApiError(f"{location}.name is {quote(message['name'])}; a text is needed", param="messages")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(f"{location}.role is {quote(role)}; known roles are {', '.join(_ROLES)}", param="messages")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise ApiError(f"{location}.content holds {quote(part)}; only parts of text are read", param="messages")
        content = "\n".join(part["text"] for part in content)  # as vLLM for a template of texts
    if not isinstance(content, str):
        raise ApiError(f"{location}.content is {quote(content)}; a text is needed", param="messages")
    return {"role": _ROLES[role], "content": blamed("messages", lambda: checked_text(content))}


# --- `/v1/score` ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreRequest:
    """Parsed prompts and candidates."""

    pairs: tuple[Pair, ...]
    """Prompt by prompt."""
    prompts: int
    candidates: int


def read_score(
    body: Mapping[str, Any],
    scorer: Scorer,
    max_pairs: int | None = None,
    max_tokens: int | None = None,
    max_characters: int | None = None,
    check: Callable[[], None] = go_on,
) -> ScoreRequest:
    """A body of `/v1/score`.

    **Arguments:** `body`; `scorer`; `max_pairs`, of a prompt and a candidate; `max_tokens`, the sum of the tokens of
    all pairs, that is with each prompt counted once per candidate; `max_characters`, the same of their characters,
    because a tokenizer may merge the end of a prompt with a candidate, so each pair is tokenized on its own; `check`,
    see `read_completion`.
    **Raises:** `ApiError`, naming the field."""
    fields = {"model", "prompt", "candidates"}
    for name in sorted(set(body) - fields - IGNORED):
        if body[name] is not None:
            text = f"the field {quote(name)!r} is unknown here; known are {', '.join(sorted(fields))}"
            raise ApiError(text, param=quote(name))
    served = scorer.served
    check_model(body, served)
    prompts, candidates = read_prompts(body), body.get("candidates")
    if not isinstance(candidates, list) or not candidates or not all(map(is_prompt, candidates)):
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
    texts = [[len(text) for text in group if isinstance(text, str)] for group in (prompts, candidates)]
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
        encoded.append(tokens_of(served, prompt))
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
            blamed("candidates", partial(checked_text, candidate))
            blamed("candidates", partial(served.refuse_early, candidate))
    pairs: list[Pair] = []
    for prompt, tokens in zip(prompts, encoded):
        for candidate in candidates:
            check()
            pairs.append(blamed("candidates", partial(scorer.encode, prompt, candidate, tokens)))
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
