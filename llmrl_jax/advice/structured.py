"""Replies that programs read: parsed on our side, with the error handed back to the model a bounded number of times."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmrl_jax.advice.schema import build, check_schema, schema_of, validate
from llmrl_jax.chat.errors import ChatError, UnparsedReply
from llmrl_jax.chat.protocol import ChatModel, ChatReply, ChatRequest, Message, outcomes_of


T = TypeVar("T")

REPAIR = (
    "Your reply could not be read: {error}\nAnswer the same request again, in the form that was asked for, "
    "and with nothing else."
)
"""What is said after a reply that does not parse."""


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """A reply that could be read."""

    value: T
    reply: ChatReply
    """The one that `value` comes from."""
    repairs: int
    """How many replies before it could not be read."""


def ask(
    model: ChatModel, requests: Sequence[ChatRequest], parse: Callable[[str], T], *, repairs: int = 2
) -> list[Parsed[T]]:
    """Ask, parse, and ask again where a reply cannot be read.

    The unreadable reply and the parser's error join the conversation, so a repeated question is a new one to a cache
    too, and a replay repeats the repairs. A reply of no text, which may be what `max_tokens` left of one, is a failure
    like any other.

    **Arguments:** `requests`, of one sample each; `parse`, which takes a reply's text and raises `ValueError` where it
    cannot be read: a `JsonParser`, or any function; `repairs`, how often to ask again.
    **Returns:** one value per request.
    **Raises:** `UnparsedReply` with the last reply and error, or another `ChatError`; `outcomes` hold a `Parsed` or an
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
                    Message("assistant", outcome.text or "(no text)"), Message("user", REPAIR.format(error=error))
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
    """Reads one JSON value of a known shape out of a reply.

    Models put JSON into fences, think aloud before it, and correct themselves. So every JSON value in the text is
    looked at, from the last to the first, those in fences before the others, and the first that fits is taken.

    **Arguments:** `shape`, a dataclass (`schema_of`), of which `__call__` then makes an instance, or a JSON schema
    (`validate`), for a plain value; `name`, for servers that want one.
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
        """For `ChatRequest.extra["response_format"]`, where a server can enforce a schema while it samples. Not every
        server can, so the reply is checked here all the same."""
        return {"type": "json_schema", "json_schema": {"name": self.name, "schema": self.schema}}

    def __call__(self, text: str) -> T:
        """Parse a reply. **Raises:** `ValueError` where it holds no value that fits, about the last one it holds."""
        problem: ValueError | None = None
        for value in reversed(json_values(text)):
            try:
                validate(value, self.schema)
                return value if self._kind is None else build(self._kind, value)
            except (ValueError, TypeError) as error:
                problem = problem or ValueError(str(error))
        raise problem or ValueError("there is no JSON object or list in it")


_OPENING = re.compile(r"[{\[]")
_FENCE = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)


def json_values(text: str) -> list[Any]:
    """The JSON objects and lists in a text that stand in no other, in order: first those outside fences, then those
    inside. Strict: NaN, infinities and repeated names are not JSON here."""
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
        except RecursionError:  # no schema asks for a thousand levels, and each of them would be tried in turn
            break
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object names something twice")
    return dict(pairs)


_strict = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_no_twins)
