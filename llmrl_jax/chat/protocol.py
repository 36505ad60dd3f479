"""Requests to chat models and their replies: one protocol for servers, local models and scripted advisers.

Everything here is a plain value that can be converted to JSON and back unchanged, so that replies can be cached,
recorded and published. A request for `n` samples is `n` requests that share a prompt: each sample has an index and is
cached separately, so that a request for eight samples after one for five only asks for three.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

from llmrl_jax.chat.thinking import cut_at_stop


ROLES = ("system", "user", "assistant")

FORMAT = 1
"""Version of the JSON format below. It is part of every cache key, so old replies do not match after a change."""

_OWNED = frozenset(
    ("model", "messages", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "stream")
)
_SECRET = ("api_key", "apikey", "authorization", "password", "secret")


@dataclass(frozen=True)
class Message:
    """Turn of a conversation."""

    role: str
    """system, user or assistant."""
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"a message has the role {self.role!r}; known roles are {', '.join(ROLES)}")
        try:
            self.content.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a message's text cannot be written as UTF-8: {error.reason} at {error.start}") from None


def _tidy(value: Any, name: str, low: float, high: float = math.inf) -> float:
    number = float(value)
    if not low <= number <= high or math.isinf(number):
        raise ValueError(f"{name} is {value}; it must lie in [{low:g}, {high:g}]")
    return number


CHOICES = "guided_choice"
"""The field of `ChatRequest.extra` with the texts that the reply is chosen from, with vLLM's name."""


@dataclass(frozen=True)
class ChatRequest:
    """Conversation to be continued, with sampling options."""

    messages: tuple[Message, ...]
    """At least one."""
    temperature: float | None = 1.0
    """None: the server's default; some reasoning models accept no other value."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this total probability; None: the server's default."""
    max_tokens: int = 512
    """Maximum number of tokens of a sample. The server's default is never used, because a budget needs a bound."""
    seed: int | None = None
    """Seed of sample 0; the others' seeds are derived from it and their index. None: no seed is sent."""
    stop: tuple[str, ...] = ()
    """Strings that end a sample; they are not part of it. Thoughts do not count (`chat.thinking.cut_at_stop`)."""
    n: int = 1
    """Number of samples."""
    sample: int = 0
    """The index of the first sample. The same request with another index is another sample, also through a cache."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further fields of the request's body, with the server's names (`top_k`, `response_format`, `reasoning_effort`,
    ...). JSON values; they are part of the cache key."""

    def __post_init__(self) -> None:
        set_field = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if isinstance(self.stop, str):
            raise ValueError(f"stop is the string {self.stop!r}; give a tuple of strings")
        set_field("messages", tuple(self.messages))
        set_field("stop", tuple(self.stop))
        if not self.messages:
            raise ValueError("a request has no messages; give at least one")
        if not all(self.stop):
            raise ValueError("stop holds an empty string, at which every sample would end at once; leave it out")
        if self.temperature is not None:
            set_field("temperature", _tidy(self.temperature, "temperature", 0.0))
        if self.top_p is not None:
            set_field("top_p", _tidy(self.top_p, "top_p", 0.0, 1.0))
        for name, low in (("max_tokens", 1), ("n", 1), ("sample", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        for name in self.extra:
            if name in _OWNED:
                raise ValueError(f"extra holds {name!r}, which has a place of its own in a request; set it there")
            if any(word in name.lower() for word in _SECRET):
                raise ValueError(f"extra holds {name!r}; requests are cached and recorded, so they carry no secrets")
        try:
            text = json.dumps(dict(self.extra), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra is not JSON: {error}") from None
        set_field("extra", json.loads(text))

    def with_messages(self, *messages: Message) -> ChatRequest:
        """Same request with further messages."""
        return replace(self, messages=self.messages + messages)

    def to_json(self) -> dict[str, Any]:
        """Request as JSON values."""
        return {**asdict(self), "stop": list(self.stop), "messages": [asdict(m) for m in self.messages]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChatRequest:
        """Inverse of `to_json`. **Raises:** `ValueError` for a field that is unknown, missing or wrong."""
        return cls(
            **{
                **_checked_fields(cls, data),
                "messages": tuple(Message(**_checked_fields(Message, m)) for m in data["messages"]),
            }
        )


@dataclass(frozen=True)
class Usage:
    """Token counts of the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens in the server's own cache; some servers bill them at a lower price."""

    @classmethod
    def read(cls, prompt: Any, completion: Any, cached: Any = 0) -> Usage | None:
        """Counts of a server or a file; None if one is missing or no count, since the usage is then unknown."""
        if not _is_count(prompt) or not _is_count(completion):
            return None
        return cls(prompt, completion, cached if _is_count(cached) else 0)

    @property
    def total(self) -> int:
        """Prompt and completion tokens."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True)
class Choice:
    """Sample."""

    text: str
    finish_reason: str = "stop"
    """stop: ended by the model or at a stop string; length: cut by `max_tokens`; others are specific to the server."""
    scores: tuple[float, ...] = ()
    """The log-probability of each text of the request's `guided_choice`, as replies; empty without it, and where the
    model does not say."""

    def cut(self, stop: Sequence[str]) -> Choice:
        """Choice up to the first stop string of its answer (`chat.thinking.cut_at_stop`)."""
        text = cut_at_stop(self.text, stop)
        return self if text == self.text else replace(self, text=text, finish_reason="stop")

    def to_json(self) -> dict[str, Any]:
        """Choice as JSON values, without `scores` if there are none."""
        data = {"text": self.text, "finish_reason": self.finish_reason}
        return {**data, "scores": list(self.scores)} if self.scores else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Inverse of `to_json`. **Raises:** `ValueError` for a field that is unknown, missing or wrong."""
        values = _checked_fields(cls, data)
        return cls(**{**values, "scores": tuple(values.get("scores", ()))})


@dataclass(frozen=True)
class ChatReply:
    """Samples of one request."""

    choices: tuple[Choice, ...]
    """`n` choices, in the order of their indices."""
    model: str
    """The model's name in the server's answer, which may be more exact than the requested one."""
    usage: Usage | None = None
    """The tokens billed when these samples were first generated; None if the server does not report them all."""
    fingerprint: str | None = None
    """The server's identifier of its weights and configuration (`system_fingerprint`)."""
    seconds: float = 0.0
    """Time from sending to receiving."""
    lost: int = 0
    """Earlier attempts that may have been billed without a report."""
    cached: int = 0
    """Number of samples from a cache, without cost for this call."""
    calls: int = field(default=1, compare=False)
    """Requests that were sent for these samples, without repeated attempts: one, or one per sample."""

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.choices[0].text

    def split(self) -> list[ChatReply]:
        """Replies, one per sample. Shares of tokens sum to the total: the first has the prompt and the remainder."""
        n = len(self.choices)
        parts = []
        for i, choice in enumerate(self.choices):
            usage = self.usage
            if usage is not None:
                quotient, remainder = divmod(usage.completion_tokens, n)
                usage = replace(usage, completion_tokens=quotient + remainder) if i == 0 else Usage(0, quotient)
            first = i == 0
            parts.append(
                replace(
                    self,
                    choices=(choice,),
                    usage=usage,
                    seconds=self.seconds if first else 0.0,
                    lost=self.lost if first else 0,
                    cached=int(i < self.cached),
                    calls=self.calls if first else 0,
                )
            )
        return parts

    @classmethod
    def join(cls, parts: Sequence[ChatReply]) -> ChatReply:
        """Inverse of `split`. Usage is unknown if that of one part is."""
        usages = [part.usage for part in parts]
        reported = [usage for usage in usages if usage is not None]
        return cls(
            choices=tuple(choice for part in parts for choice in part.choices),
            model=parts[0].model,
            usage=sum(reported, Usage()) if len(reported) == len(usages) else None,
            fingerprint=parts[0].fingerprint,
            seconds=sum(part.seconds for part in parts),
            lost=sum(part.lost for part in parts),
            cached=sum(part.cached for part in parts),
            calls=sum(part.calls for part in parts),
        )

    def to_json(self) -> dict[str, Any]:
        """Reply as JSON values, without `cached` and `calls`, which belong to the call and not to the reply."""
        data = {**asdict(self), "choices": [choice.to_json() for choice in self.choices]}
        del data["cached"], data["calls"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChatReply:
        """Inverse of `to_json`. **Raises:** `ValueError` for a field that is unknown, missing or wrong."""
        values = _checked_fields(cls, data)
        values["choices"] = tuple(map(Choice.from_json, data["choices"]))
        if values.get("usage") is not None:
            counts = _checked_fields(Usage, values["usage"])
            values["usage"] = Usage.read(*(counts.get(f.name) for f in fields(Usage)))
        return cls(**values)


@runtime_checkable
class ChatModel(Protocol):
    """Interface of chat models. Wrappers (a cache, a budget, a recorder) are chat models around another."""

    @property
    def name(self) -> str:
        """Name of the model. It is used in cache keys and price look-ups, so two models must not share it."""
        ...

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch.

        **Arguments:** `requests`, answered independently of one another.
        **Returns:** one reply per request, in order, with `n` choices each.
        **Raises:** `ChatError`, the first one, if a request got no reply; its `outcomes` holds those of all requests.
        """


def settle(outcomes: Sequence[ChatReply | ChatError]) -> list[ChatReply]:
    """The replies. **Raises:** a copy of the first error among the outcomes, with all outcomes."""
    replies = [outcome for outcome in outcomes if isinstance(outcome, ChatReply)]
    if len(replies) == len(outcomes):
        return replies
    error = copy.copy(next(outcome for outcome in outcomes if isinstance(outcome, ChatError)))
    error.outcomes = tuple(outcomes)
    raise error


def outcomes_of(model: ChatModel, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
    """The outcome of each request of a batch: the inverse of `settle`."""
    if not requests:
        return []
    try:
        replies = model.complete(requests)
    except ChatError as error:
        return list(error.outcomes) if len(error.outcomes) == len(requests) else [error] * len(requests)
    if [len(reply.choices) for reply in replies] != [request.n for request in requests]:
        raise ValueError(
            f"the chat model {model.name!r} broke its contract: {len(requests)} requests for "
            f"{[request.n for request in requests]} samples got {[len(reply.choices) for reply in replies]}"
        )
    return list(replies)


def canonical(data: Any) -> str:
    """Canonical JSON: one text per value."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sample_key(model: str, request: ChatRequest, sample: int, namespace: str = "") -> str:
    """The key of one sample: a hexadecimal SHA-256 of everything that it may depend on."""
    data = {**request.to_json(), "model": model, "sample": sample, "namespace": namespace, "format": FORMAT}
    del data["n"]
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked_fields(cls: type, data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"a {cls.__name__} is a JSON object, not {type(data).__name__}")
    unknown = sorted(set(data) - {f.name for f in fields(cls)})
    if unknown:
        raise ValueError(f"a {cls.__name__} has no field {unknown[0]!r}")
    return dict(data)


# --- errors ---------------------------------------------------------------------------------------------------------


class ChatError(RuntimeError):
    """Request that got no usable reply. The message never contains a key."""

    outcomes: tuple[Any, ...] = ()
    """The outcome of every request of the batch, in order: a `ChatReply` or a `ChatError`. Replies that arrived, and
    were paid for, are thus not lost with a failed one."""

    lost: int = 0
    """Attempts that the server may have billed without a report: timed out, cut off, or with an unreadable answer."""

    calls: int = 1
    """Requests that were sent, without repeated attempts: one, or one per sample."""


class ServerError(ChatError):
    """Failure of a server: it refused, failed or could not be reached, after all retries."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        lost: int = 0,
        unsupported: str = "",
    ):
        super().__init__(message)
        self.status = status
        self.transient = transient
        self.retry_after = retry_after
        self.lost = lost
        self.unsupported = unsupported
        """The field of the request that the server says the model does not accept; empty if it says none."""


class TimedOut(ServerError):
    """Attempt that took longer than its time limit."""


class ContextExceeded(ServerError):
    """Prompt and reply together exceed the model's context."""


class BadReply(ServerError):
    """Answer of a server that is not a chat completion."""


class BudgetExceeded(ChatError):
    """Request that could exceed the budget; it was not sent."""


class ReplayMiss(ChatError):
    """Reply that a cache in the mode `replay` does not contain."""


class CacheError(ChatError):
    """Cache file that is missing, damaged, or of another format."""


# --- a scripted adviser ---------------------------------------------------------------------------------------------


class ScriptedAdviser(ABC):
    """Base class of scripted advisers: a subclass implements `advise`.

    It answers in text, as a model does, so that its replies pass through the same parser; callers see only the text.
    Its name begins with `scripted-adviser/`, also in caches, records and figures. It needs no network, costs nothing,
    and gives the same reply to the same request.
    """

    @property
    def name(self) -> str:
        """`scripted-adviser/` and the class's name."""
        return f"scripted-adviser/{type(self).__name__}"

    @abstractmethod
    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Text of the reply.

        **Arguments:** `messages`, the conversation; `rng`, which depends only on the request and the sample's index:
        use it for answers that differ between samples, or for a given error rate.
        """

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Answer a batch (`ChatModel.complete`); stop strings end a text, tokens are not counted."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        choices = []
        for sample in range(request.sample, request.sample + request.n):
            seed = hashlib.sha256(sample_key(self.name, request, sample).encode()).digest()
            text = self.advise(request.messages, random.Random(seed))
            choices.append(Choice(text).cut(request.stop))
        return ChatReply(tuple(choices), model=self.name, usage=Usage())
