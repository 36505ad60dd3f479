"""Configurations: the options of a run, their JSON form, and which of them a resumed run may change."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from envs_jax.registry import nearest


T = TypeVar("T")

FREE = {"resume": "free"}
"""`field(metadata=FREE)` marks an option that a resumed run may change: it does not decide what is learnt."""


@dataclass(frozen=True)
class RunConfig:
    """How a run is kept: where it writes, how often, and whether it continues an earlier one."""

    name: str = field(default="", metadata=FREE)
    """Name of the run; it writes to `<out>/<name>/`. Empty: the command's own name and the time."""
    out: str = field(default="runs", metadata=FREE)
    """Folder that holds all runs."""
    seed: int = 0
    """Seed of every random number of the run; non-negative."""
    log_every: int = field(default=1, metadata=FREE)
    """Updates per line of `metrics.jsonl`."""
    eval_every: int = field(default=0, metadata=FREE)
    """Updates between evaluations; 0: none while training."""
    checkpoint_every: int = field(default=50, metadata=FREE)
    """Updates between checkpoints; 0: only at the end and when interrupted."""
    keep: int = field(default=2, metadata=FREE)
    """Newest checkpoints to keep; at least 1."""
    best: str = field(default="", metadata=FREE)
    """Metric (as `metrics.jsonl` spells it) whose highest checkpoint is kept as well; empty: none."""
    resume: bool = field(default=False, metadata=FREE)
    """Continue the run `<out>/<name>` from its newest checkpoint, bit for bit."""
    resume_from: int = field(default=-1, metadata=FREE)
    """With `resume`: the checkpoint to continue from, by its update number; later ones are discarded. -1: newest."""
    max_seconds: float = field(default=0.0, metadata=FREE)
    """Time budget in seconds of training, compilation left out; the run saves and stops there. 0: none."""
    tensorboard: bool = field(default=False, metadata=FREE)
    """Write TensorBoard event files beside `metrics.jsonl` (extra `track`)."""
    wandb: str = field(default="", metadata=FREE)
    """Weights & Biases project to log to (extra `track`); empty: off."""
    progress: typing.Literal["auto", "bar", "lines", "off"] = field(default="auto", metadata=FREE)
    """What the terminal shows: a live bar, a line per log, nothing; `auto`: the bar on a terminal, else lines."""
    compilation_cache: str = field(default="", metadata=FREE)
    """Folder of the persistent compilation cache, or `off`. Empty: as set already (the command line sets
    `~/.cache/llmrl_jax`, or `LLMRL_COMPILATION_CACHE`)."""

    def __post_init__(self):
        at_least = {"seed": 0, "log_every": 1, "eval_every": 0, "checkpoint_every": 0, "keep": 1, "resume_from": -1}
        for name, low in {**at_least, "max_seconds": 0}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if self.name and (Path(self.name).name != self.name or self.name in (".", "..")):
            raise ValueError(f"the run's name {self.name!r} must be one folder's name (`out` says where it lies)")
        if self.resume and not self.name:
            raise ValueError("resume needs the name of the run to continue")
        if self.resume_from >= 0 and not self.resume:
            raise ValueError(f"resume_from {self.resume_from} has a meaning only with resume")


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

    **Arguments:** `cls`, what to build; `value`, JSON values; `where`, the name of the place, for errors.
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
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        for name in value:
            if name not in names:
                place = f" in {where}" if where else ""
                raise ValueError(f"{kind.__name__} has no field {name!r}{place}{nearest(name, names)}")
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
        return float(value) if not isinstance(value, bool) else fail("a number")
    if kind is int and isinstance(value, bool) or not isinstance(value, kind):
        fail(kind.__name__)
    return value


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file beside what it replaces: whenever the process dies, there is the old one or the new one."""
    path = Path(path)
    fresh = path.with_suffix(".tmp")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def save_config(config: Any, path: str | Path) -> None:
    """Write a configuration as JSON, whole or not at all."""
    write_whole(path, json.dumps(to_json(config), indent=2) + "\n")


def load_config(cls: type[T], path: str | Path) -> T:
    """Read what `save_config` wrote. **Raises:** `FileNotFoundError`, or `ValueError` naming the wrong field."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no configuration at {path}")
    try:
        value = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if isinstance(value, dict) and "model_type" in value:
        raise ValueError(
            f"{path} describes a language model ({value['model_type']}), not a run: pass that folder as --model"
        )
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
    """What decides the results of a run: every option by its dotted name, those marked `FREE` left out."""
    return {} if config is None else dict(_flat(config, ""))


def completed(saved: Mapping[str, Any], config: Any, name: str = "") -> dict[str, Any]:
    """A saved identity with the options that the configuration has had since, at the defaults `load_config` gives them.

    **Arguments:** `saved`, from `identity`; `config`, the configuration now; `name`, its own dotted name.
    """
    found = dict(saved)
    for f in dataclasses.fields(config):
        place = f"{name}.{f.name}".lstrip(".")
        if f.metadata.get("resume") == "free":
            continue
        value = getattr(config, f.name)
        if not any(known == place or known.startswith(f"{place}.") for known in saved):
            if f.default is not dataclasses.MISSING:
                found |= _flat(f.default, place)
            elif f.default_factory is not dataclasses.MISSING:
                found |= _flat(f.default_factory(), place)
        elif dataclasses.is_dataclass(value):
            found |= completed(found, value, place)
    return found


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


# --- the compilation cache --------------------------------------------------------------------------------------------


def use_compilation_cache(folder: str) -> None:
    """Keep compiled programs in `folder` between processes (`off`: do not). Called by runs, never by an import."""
    import jax

    if folder == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
