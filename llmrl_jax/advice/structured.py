"""Replies as structured values: parsed here, with the error sent back to the model a bounded number of times."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union

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
    """Parsed reply."""

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
        retries = {}
        for i, outcome in zip(waiting, outcomes_of(model, list(waiting.values()))):
            if isinstance(outcome, ChatError):
                outcomes[i] = outcome
                continue
            try:
                outcomes[i] = Parsed(parse(outcome.text), outcome, tried)
            except ValueError as error:
                outcomes[i] = UnparsedReply(_describe(outcome, error, tried + 1))
                retries[i] = waiting[i].with_messages(
                    Message("assistant", strip_thinking(outcome.text) or "(no text)"),
                    Message("user", REPAIR.format(error=error)),
                )
        waiting = retries
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
    """Parser of one JSON value with a known schema in a reply.

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
        """Sentence for the prompt that asks for this shape."""
        return (
            f"Answer with one JSON value that fits this JSON schema, and with nothing else: {json.dumps(self.schema)}"
        )

    @property
    def response_format(self) -> dict[str, Any]:
        """Value of `ChatRequest.extra["response_format"]`, for servers that enforce a schema during sampling. Not every
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
    values, position = [], 0
    while match := _OPENING.search(text, position):
        try:
            value, position = _strict.raw_decode(text, match.start())
            values.append(value)
        except ValueError:
            position = match.start() + 1
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


# --- JSON schemas -----------------------------------------------------------------------------------------------------

# A small, strict subset of JSON Schema; no keyword is ignored. Replies are validated here, since servers may enforce a
# schema, ignore it or drop it without an error. An unknown keyword is an error when the schema is made, so that every
# bound in a schema is checked.


_NOTES = ("description", "title", "$schema")
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "null": (),
}


def check_schema(schema: Any, path: str = "$") -> None:
    """**Raises:** `ValueError`, naming the path, for a keyword or type that `validate` does not support."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"the schema at {path} is {schema!r}, not an object")
    keywords: set[str] = {*_NOTES, "type", "enum", "const", "anyOf"}
    kind = schema.get("type")
    if kind is not None:
        if not isinstance(kind, str) or kind not in _OF_TYPE:
            raise ValueError(f"the schema at {path} has the type {kind!r}; known are {', '.join(_OF_TYPE)}")
        keywords |= set(_OF_TYPE[kind])
    unknown = sorted(set(schema) - keywords)
    if unknown:
        raise ValueError(f"the schema at {path} has {unknown[0]!r}, which is not checked here for the type {kind!r}")
    if not {"type", "enum", "const", "anyOf"} & set(schema):
        raise ValueError(f"the schema at {path} allows anything; give type, enum, const or anyOf")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{path}.{name}")
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            raise ValueError(f"the schema at {path} requires {name!r}, which is not among its properties")
    for name in ("items", "additionalProperties"):
        if name in schema and not isinstance(schema[name], bool):
            check_schema(schema[name], f"{path}.{name}")
    for i, inner in enumerate(schema.get("anyOf", ())):
        check_schema(inner, f"{path}.anyOf[{i}]")


def validate(value: Any, schema: Mapping[str, Any], path: str = "$") -> None:
    """Check a JSON value. **Raises:** `ValueError` naming the path, the value and the expectation.

    Properties that are not named are rejected unless `additionalProperties` allows them (unlike JSON Schema), so that a
    misspelt one is not taken for a missing one.
    """
    if "anyOf" in schema:
        problems = []
        for inner in schema["anyOf"]:
            try:
                validate(value, inner, path)
                break
            except ValueError as error:
                problems.append(str(error))
        else:
            raise ValueError(f"{path} fits none of {len(problems)} alternatives: " + "; ".join(problems))
    if "const" in schema and not _equal(value, schema["const"]):
        raise ValueError(f"{path} is {_show(value)}; expected {_show(schema['const'])}")
    if "enum" in schema and not any(_equal(value, allowed) for allowed in schema["enum"]):
        raise ValueError(f"{path} is {_show(value)}; expected one of {', '.join(map(_show, schema['enum']))}")
    kind = schema.get("type")
    if kind is None:
        return
    if not _has_type(value, kind):
        raise ValueError(f"{path} is {_show(value)}; expected {kind}")
    if kind == "object":
        _validate_object(value, schema, path)
    elif kind == "array":
        _bounded(len(value), schema, "Items", path, "items")
        for i, item in enumerate(value):
            if not isinstance(schema.get("items", True), bool):
                validate(item, schema["items"], f"{path}[{i}]")
    elif kind == "string":
        _bounded(len(value), schema, "Length", path, "characters")
    elif kind in ("number", "integer"):
        _bounded(value, schema, "imum", path, "")


def _validate_object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> None:
    properties, additional = schema.get("properties", {}), schema.get("additionalProperties", False)
    for name in schema.get("required", ()):
        if name not in value:
            raise ValueError(f"{path} has no {name!r}; it has {', '.join(map(repr, value)) or 'nothing'}")
    for name, item in value.items():
        if name in properties:
            validate(item, properties[name], f"{path}.{name}")
        elif additional is False:
            raise ValueError(f"{path} has {name!r}; expected only {', '.join(map(repr, properties)) or 'nothing'}")
        elif additional is not True:
            validate(item, additional, f"{path}.{name}")


def _bounded(number: float, schema: Mapping[str, Any], suffix: str, path: str, unit: str) -> None:
    low, high = schema.get(f"min{suffix}", -math.inf), schema.get(f"max{suffix}", math.inf)
    if not low <= number <= high:
        problem = f"has {number} {unit}" if unit else f"is {number}"
        bound = f"at least {low}" if number < low else f"at most {high}"
        raise ValueError(f"{path} {problem}; expected {bound}")


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:  # Python's bool is an int, JSON's is not
        return kind == ("null" if value is None else "boolean")
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    python_types: dict[str, Any] = {"object": Mapping, "array": list, "string": str, "number": (int, float)}
    return kind in python_types and isinstance(value, python_types[kind])


def _equal(value: Any, expected: Any) -> bool:
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "..."


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a dataclass, or of a supported field type.

    Types: `str`, `int`, `float`, `bool`, `None`, `Literal`, unions, `list[T]`, `tuple[T, ...]`, `dict[str, T]`, and
    dataclasses. A field without a default is required; its metadata may add to the schema:
    `field(metadata={"schema": {"minimum": 0}})`.

    **Raises:** `ValueError` for any other type.
    """
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null"}
    if isinstance(kind, type | None) and kind in plain:
        return {"type": plain[kind]}
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(arg) for arg in args]}
    if origin in (list, Sequence) or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict and args[0] is str:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)):
        raise ValueError(f"the type {kind!r} has no JSON schema here; use a dataclass of plain fields")
    hints = typing.get_type_hints(kind)
    properties, required = {}, []
    for field in dataclasses.fields(kind):
        properties[field.name] = {**schema_of(hints[field.name]), **field.metadata.get("schema", {})}
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def build(kind: Any, value: Any) -> Any:
    """A value of a type, from a JSON value that fits the type's schema. **Raises:** any error of the dataclass."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return build(next(arg for arg in args if _fits(value, arg)), value)
    if origin in (list, tuple, Sequence):
        return (tuple if origin is tuple else list)(build(args[0], item) for item in value)
    if origin is dict:
        return {name: build(args[1], item) for name, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: build(hints[name], item) for name, item in value.items()})
    return kind(value) if kind in (int, float) else value


def _fits(value: Any, kind: Any) -> bool:
    try:
        validate(value, schema_of(kind))
    except ValueError:
        return False
    return True
