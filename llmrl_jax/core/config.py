"""Configurations as JSON, and the options that a resumed run may change.

A configuration is a frozen dataclass. Its class may define:

* `KIND: ClassVar[str]`, the command whose runs have it (`"lm sft"`). `save_config` writes it to the file, with the
  version of the format, and `load_config` refuses a file of another kind, naming the right command.
* `upgraded(values)`, a static method that converts JSON values of earlier versions to the current one, for fields that
  were renamed, moved or removed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from llmrl_jax.core.checks import nearest
from llmrl_jax.core.files import write_whole


T = TypeVar("T")

VERSION = 1
"""The format of configuration files: 1 has `kind` and `version`; older files have neither."""

FREE = {"resume": "free"}
"""`field(metadata=FREE)` marks an option that a resumed run may change: it does not affect the results."""


# --- JSON -----------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """A configuration as JSON values: nested dataclasses become objects, tuples lists, paths and enums strings.

    Non-finite floats become the strings `"nan"`, `"inf"` and `"-inf"`, which JSON lacks.
    **Raises:** `TypeError` for a value that JSON cannot hold.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a configuration cannot hold {value!r} ({type(value).__name__}); use numbers, strings, tuples")


def _is_dataclass_type(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def from_json(cls: Any, value: Any, where: str = "") -> Any:
    """The inverse of `to_json`, for a type or a dataclass `cls`.

    **Arguments:** `cls`, what to build; `value`, JSON values; `where`, the position in the file, for errors.
    **Raises:** `ValueError` for an unknown field (naming the nearest) or a value of another type.
    """

    def fail(expected: str) -> NoReturn:
        raise ValueError(f"{where or 'the value'} is {value!r}; expected {expected}")

    kind, origin, arguments = cls, typing.get_origin(cls), typing.get_args(cls)
    if origin is typing.Annotated:
        return from_json(arguments[0], value, where)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return from_json(option, value, where)
            except ValueError:
                continue
        fail(" or ".join(getattr(option, "__name__", str(option)) for option in arguments))
    if origin is typing.Literal:
        return value if value in arguments else fail(f"one of {', '.join(map(repr, arguments))}")
    if _is_dataclass_type(kind):
        if not isinstance(value, Mapping):
            fail(f"an object with the fields of {kind.__name__}")
        value = upgraded(kind, value)
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        for name in value:
            if name not in names:
                location = f" in {where}" if where else ""
                raise ValueError(f"{kind.__name__} has no field {name!r}{location}{nearest(name, names)}")
        inner = {name: from_json(hints[name], v, f"{where}.{name}".lstrip(".")) for name, v in value.items()}
        return kind(**inner)
    if origin in (tuple, list) or kind in (tuple, list):
        build = origin or kind
        if not isinstance(value, list):
            fail("a list")
        if not arguments:
            return build(value)
        if build is tuple and arguments[-1] is not Ellipsis:
            if len(arguments) != len(value):
                fail(f"{len(arguments)} values")
            return tuple(from_json(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(arguments, value)))
        return build(from_json(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) or isinstance(origin, type) and issubclass(origin, Mapping):
        return {k: from_json(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if kind is type(None):
        return value if value is None else fail("null")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[value] if value in kind.__members__ else fail(f"one of {', '.join(kind.__members__)}")
    if kind is Path:
        return Path(value) if isinstance(value, str) else fail("a path")
    if kind is float and (isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")):
        try:
            return float(value) if not isinstance(value, bool) else fail("a number")
        except OverflowError:  # an integer of more than 308 digits
            fail("a number of at most 1.8e308")
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e6
    if kind is int and isinstance(value, bool) or not isinstance(value, kind):
        fail(kind.__name__)
    return value


def upgraded(cls: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a dataclass converted to the current version; see the module's docstring."""
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = getattr(cls, "upgraded", None)
    return values if change is None else change(values)


# --- files ----------------------------------------------------------------------------------------------------------


def a_run(kind: str) -> str:
    """A run of a kind, for messages: "an lm sft run", "a props run"."""
    vowel = kind[:1] in "aeio" or kind[:2] in ("lm", "rl")
    return f"{'an' if vowel else 'a'} {kind.removesuffix(' run')} run"


def stamped(config: Any) -> dict[str, Any]:
    """A configuration as JSON values, preceded by its kind and the version of the format if its class has a kind.

    **Raises:** `TypeError` for a value that JSON cannot hold.
    """
    values = to_json(config)
    kind = getattr(config, "KIND", "")
    if not kind:
        return values
    if reserved := [name for name in ("kind", "version") if name in values]:
        raise TypeError(f"{type(config).__name__} has a field {reserved[0]!r}, which its file needs for itself")
    return {"kind": kind, "version": VERSION, **values}


def unstamped(values: Mapping[str, Any], kind: str, source: str | Path, *, run: str = "") -> dict[str, Any]:
    """The values of a file without its kind and version.

    **Arguments:** `values`, the contents of the file; `kind`, the expected kind (empty: any); `source`, for errors;
    `run`, the folder of the run that the file belongs to, if any.
    **Raises:** `ValueError` for a file of another kind, naming the command that reads it, or of a newer version.
    """
    left = dict(values)
    if "version" not in left or not isinstance(left.get("kind"), str):
        return left
    saved_kind, version = left.pop("kind"), left.pop("version")
    if kind and saved_kind != kind:
        if run:
            raise ValueError(
                f"{run} is {a_run(saved_kind)}, not {a_run(kind)}: `llmrl {saved_kind} --run.resume {run}` continues it"
            )
        raise ValueError(f"{source} has the options of `llmrl {saved_kind}`, not of `llmrl {kind}`")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"{source} has version {version}, which a newer llmrl_jax wrote; this one reads up to version {VERSION}"
        )
    return left


def save_config(config: Any, path: str | Path) -> None:
    """Write a configuration as JSON, atomically; with its kind and version, see `stamped`."""
    write_whole(path, json.dumps(stamped(config), indent=2) + "\n")


def read_json(path: str | Path) -> Any:
    """The values of a configuration file. **Raises:** `FileNotFoundError`; `ValueError` for invalid JSON, or the
    config.json of a language model; `OSError` for a file that cannot be read."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no configuration at {path}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise ValueError(f"{path} is not valid JSON ({error}): correct it, or put the file back") from error
    except OSError as error:
        raise PermissionError(f"{path} cannot be read ({error.strerror}): a file of JSON is needed") from error
    if isinstance(value, dict) and "model_type" in value:
        raise ValueError(
            f"{path} describes a language model ({value['model_type']}), not a run: pass that folder as --model"
        )
    return value


def read_object(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file that is an object. **Raises:** as `read_json`; `ValueError` for another
    value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no object of JSON, but {type(value).__name__}: put the run's file back")
    return value


def load_config(cls: type[T], path: str | Path) -> T:
    """Read a file written by `save_config`.

    **Raises:** `FileNotFoundError`, or `ValueError` naming the wrong field, the command that wrote the file, or a newer
    version.
    """
    path = Path(path)
    value = read_json(path)
    if isinstance(value, dict):
        run = str(path.parent) if path.name == "config.json" else ""
        value = unstamped(value, getattr(cls, "KIND", ""), path, run=run)
    try:
        return from_json(cls, value)
    except ValueError as error:
        raise ValueError(f"{path} is not what this command wrote: {error}") from error


# --- identity -------------------------------------------------------------------------------------------------------


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            if f.metadata.get("resume") != "free":
                yield from _flat(getattr(value, f.name), f"{name}.{f.name}".lstrip("."))
    else:
        yield name, to_json(value)


def identity(config: Any) -> dict[str, Any]:
    """The options that affect the results of a run: every option by its dotted name, except those marked `FREE`."""
    return {} if config is None else dict(_flat(config, ""))


def completed(saved: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """A saved identity as `load_config` would convert it: with the names of the current version (`upgraded`), and with
    options added since then at their defaults.

    **Arguments:** `saved`, from `identity`; `config`, the current configuration.
    """
    nested: dict[str, Any] = {}
    for name, value in saved.items():
        *parents, last = name.split(".")
        part = nested
        for parent in parents:
            part = part.setdefault(parent, {})
        part[last] = value
    return _with_defaults(dict(_renamed(nested, config, "")), config, "")


def _renamed(values: Mapping[str, Any], config: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Nested values of a saved identity by their dotted names in the current version; `config` is None for parts that
    it lacks."""
    for key, value in (values if config is None else upgraded(type(config), values)).items():
        inner, path = getattr(config, key, None), f"{name}.{key}".lstrip(".")
        if isinstance(value, Mapping) and (dataclasses.is_dataclass(inner) or not hasattr(config, key)):
            yield from _renamed(value, inner, path)
        else:
            yield path, value


def _with_defaults(saved: Mapping[str, Any], config: Any, name: str) -> dict[str, Any]:
    complete = dict(saved)
    for f in dataclasses.fields(config):
        path = f"{name}.{f.name}".lstrip(".")
        if f.metadata.get("resume") == "free":  # it may not have been when the identity was saved
            complete = {x: y for x, y in complete.items() if x != path and not x.startswith(f"{path}.")}
            continue
        value = getattr(config, f.name)
        if not any(saved_name == path or saved_name.startswith(f"{path}.") for saved_name in saved):
            if f.default is not dataclasses.MISSING:
                complete |= _flat(f.default, path)
            elif f.default_factory is not dataclasses.MISSING:
                complete |= _flat(f.default_factory(), path)
        elif dataclasses.is_dataclass(value):
            complete |= _with_defaults(complete, value, path)
    return complete


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The options in which two identities differ, each as `name: saved -> now`."""
    absent = object()
    lines = []
    for name in sorted({*saved, *now}):
        a, b = saved.get(name, absent), now.get(name, absent)
        if a is absent or b is absent or a != b:
            old, new = ("absent" if x is absent else json.dumps(x) for x in (a, b))
            lines.append(f"{name}: {old} -> {new}")
    return lines
