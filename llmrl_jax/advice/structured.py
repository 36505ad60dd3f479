"""Replies as structured values: parsed here, with the error sent back to the model a bounded number of times."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmrl_jax.advice.schema import build, check_schema, schema_of, validate
from llmrl_jax.chat.protocol import ChatError, ChatModel, ChatReply, ChatRequest, Message, UnparsedReply, outcomes_of
from llmrl_jax.chat.thinking import strip_thinking


T = TypeVar("T")

REPAIR = (
    "Your reply could not be read: {error}\nAnswer the same request again, in the form that was asked for, "
    "and with nothing else."
)
"""The message after a reply that cannot be parsed."""


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A parsed reply."""

    value: T
    reply: ChatReply
    """The reply that `value` was parsed from."""
    repairs: int
    """Number of earlier replies that could not be parsed."""


def ask(
    model: ChatModel, requests: Sequence[ChatRequest], parse: Callable[[str], T], *, repairs: int = 2
) -> list[Parsed[T]]:
    """Ask, parse, and ask again if a reply cannot be parsed.

    The failed reply, without its thoughts, and the parser's error are appended to the conversation, so a repeated
    request is a new one for a cache too, and a replay repeats the repairs. An empty reply, which may be caused by
    `max_tokens`, is a failure like any other.

    **Arguments:** `requests`, of one sample each; `parse`, which takes a reply's text and raises `ValueError` if it
    cannot be parsed: a `JsonParser`, or any function; `repairs`, how often to ask again.
    **Returns:** one value per request.
    **Raises:** `UnparsedReply` with the last reply and error, or another `ChatError`; `outcomes` holds a `Parsed` or an
    error for every request.
    """
    for request in requests:
        if request.n != 1:
            raise ValueError(f"a structured request asks for {request.n} samples; give {request.n} requests instead")
    outcomes: list[Parsed[T] | ChatError] = [ChatError("not asked")] * len(requests)
    waiting = dict(enumerate(requests))
    for tried in range(repairs + 1):
        again = {}
        for i, outcome in zip(waiting, outcomes_of(model, list(waiting.values()))):
            if isinstance(outcome, ChatError):
                outcomes[i] = outcome
                continue
            try:
                outcomes[i] = Parsed(parse(outcome.text), outcome, tried)
            except ValueError as error:
                outcomes[i] = UnparsedReply(_describe(outcome, error, tried + 1))
                again[i] = waiting[i].then(
                    Message("assistant", strip_thinking(outcome.text) or "(no text)"),
                    Message("user", REPAIR.format(error=error)),
                )
        waiting = again
        if not waiting:
            break
    failed = [outcome for outcome in outcomes if isinstance(outcome, ChatError)]
    if failed:
        first = copy.copy(failed[0])
        first.outcomes = tuple(outcomes)
        raise first
    return [outcome for outcome in outcomes if isinstance(outcome, Parsed)]


def _describe(reply: ChatReply, error: ValueError, tried: int) -> str:
    text = reply.text if len(reply.text) <= 300 else reply.text[:300] + "..."
    cut = "; max_tokens cut it off" if reply.choices[0].finish_reason == "length" else ""
    times = "once" if tried == 1 else f"{tried} times"
    return f"{reply.model} was asked {times}, and its reply could not be read: {error}{cut}; it begins: {text!r}"


class JsonParser(Generic[T]):
    """A parser of one JSON value with a known schema in a reply.

    Models put JSON into fences, write reasoning before it, and correct themselves. So every JSON value in the text
    without its thoughts (`strip_thinking`) is checked, from the last to the first, those in fences before the others,
    and the first that fits is returned.

    **Arguments:** `shape`, a dataclass (`schema_of`), of which `__call__` then makes an instance, or a JSON schema
    (`validate`), for a plain value; `name`, for servers that require one.
    **Raises:** `ValueError` for a shape that cannot be checked.
    """

    def __init__(self, shape: type[T] | Mapping[str, Any], name: str = "reply"):
        self._kind = None if isinstance(shape, Mapping) else shape
        self.schema: dict[str, Any] = dict(shape) if isinstance(shape, Mapping) else schema_of(shape)
        self.name = name
        check_schema(self.schema)

    @property
    def instruction(self) -> str:
        """A sentence for the prompt that asks for this shape."""
        return (
            f"Answer with one JSON value that fits this JSON schema, and with nothing else: {json.dumps(self.schema)}"
        )

    @property
    def response_format(self) -> dict[str, Any]:
        """For `ChatRequest.extra["response_format"]`, for servers that enforce a schema during sampling. Not every
        server does, so the reply is always checked here too."""
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": self.schema}}

    def __call__(self, text: str) -> T:
        """Parse a reply. **Raises:** `ValueError` about its last JSON value if none fits."""
        problem: ValueError | None = None
        for value in reversed(json_values(strip_thinking(text))):
            try:
                validate(value, self.schema)
                return value if self._kind is None else build(self._kind, value)
            except (ValueError, TypeError) as error:
                problem = problem or ValueError(str(error))
        raise problem or ValueError("there is no JSON object or list in it")


_OPENING = re.compile(r"[{\[]")
_FENCE = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)


def json_values(text: str) -> list[Any]:
    """The outermost JSON objects and lists in a text, in order: first those outside fences, then those inside. Strict:
    NaN, infinities and repeated names are rejected."""
    try:
        return [_strict.decode(text.strip())]
    except (ValueError, RecursionError):
        pass
    inside = [value for block in _FENCE.findall(text) for value in _scan(block)]
    return _scan(_FENCE.sub("\n", text)) + inside


def _scan(text: str) -> list[Any]:
    values, at = [], 0
    while match := _OPENING.search(text, at):
        try:
            value, at = _strict.raw_decode(text, match.start())
            values.append(value)
        except ValueError:
            at = match.start() + 1
        except RecursionError:  # no schema has a thousand levels, and each of them would be tried in turn
            break
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object names something twice")
    return dict(pairs)


_strict = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_no_twins)
