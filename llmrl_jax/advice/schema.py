"""A small, strict subset of JSON Schema for the replies of chat models. No keyword is ignored.

Replies are validated here, since servers may enforce a schema, ignore it or drop it without an error. An unknown
keyword is an error when the schema is made, so that every bound in a schema is checked.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union


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
    known: set[str] = {*_NOTES, "type", "enum", "const", "anyOf"}
    kind = schema.get("type")
    if kind is not None:
        if not isinstance(kind, str) or kind not in _OF_TYPE:
            raise ValueError(f"the schema at {path} has the type {kind!r}; known are {', '.join(_OF_TYPE)}")
        known |= set(_OF_TYPE[kind])
    unknown = sorted(set(schema) - known)
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
    if "const" in schema and not _same(value, schema["const"]):
        raise ValueError(f"{path} is {_show(value)}; expected {_show(schema['const'])}")
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
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
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", False)
    for name in schema.get("required", ()):
        if name not in value:
            raise ValueError(f"{path} has no {name!r}; it has {', '.join(map(repr, value)) or 'nothing'}")
    for name, item in value.items():
        if name in properties:
            validate(item, properties[name], f"{path}.{name}")
        elif more is False:
            raise ValueError(f"{path} has {name!r}; expected only {', '.join(map(repr, properties)) or 'nothing'}")
        elif more is not True:
            validate(item, more, f"{path}.{name}")


def _bounded(number: float, schema: Mapping[str, Any], suffix: str, path: str, unit: str) -> None:
    low, high = schema.get(f"min{suffix}", -math.inf), schema.get(f"max{suffix}", math.inf)
    if not low <= number <= high:
        what = f"has {number} {unit}" if unit else f"is {number}"
        bound = f"at least {low}" if number < low else f"at most {high}"
        raise ValueError(f"{path} {what}; expected {bound}")


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:  # Python's bool is an int, JSON's is not
        return kind == ("null" if value is None else "boolean")
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    of: dict[str, Any] = {"object": Mapping, "array": list, "string": str, "number": (int, float)}
    return kind in of and isinstance(value, of[kind])


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


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
