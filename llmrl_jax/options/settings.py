"""Settings from files: `--config FILE`, `--print-config`, and defaults overridden by a file's values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tyro

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import check_fields, nearest, option
from llmrl_jax.core.files import expanded


NUMBER = r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
SCALARS = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (rf"{NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.0123456789"),
}
"""Numbers and booleans of YAML 1.2: the pattern, and the possible first characters."""
WITHOUT = ("timestamp", "value")
"""What YAML 1.1 has beside those of 1.2: dates, which are strings in 1.2, and `=`."""


def _yaml_1_2(base: str) -> Any:
    """PyYAML's `SafeLoader` or `SafeDumper` with the scalars of YAML 1.2: `1e6` is a number; `off` and
    `2026-11-23` are strings."""
    import yaml

    resolver = yaml.resolver.Resolver
    rules = {
        first: [(tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in (*SCALARS, *WITHOUT)]
        for first, pairs in resolver.yaml_implicit_resolvers.items()
    }
    loader: Any = type(base, (getattr(yaml, base),), {"yaml_implicit_resolvers": rules})
    for name, (pattern, begins) in SCALARS.items():
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), list(begins))
    return loader


def read_values(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """The file that `--config` names, and its values.

    **Arguments:** `path`, a file of JSON (`.json`), TOML (`.toml`) or YAML, or the folder of a run with a config.json.
    **Raises:** `FileNotFoundError` naming the nearest; `ValueError` for a file that is no mapping in its language;
    `PermissionError` for one that cannot be read.
    """
    import yaml

    path = expanded(path)
    if (path / "config.json").is_file():
        path /= "config.json"
    if not path.is_file():
        candidates = [p.name for pattern in ("*.y*ml", "*.json", "*.toml") for p in path.parent.glob(pattern)]
        raise FileNotFoundError(f"there is no configuration {path}{nearest(path.name, sorted(candidates))}")
    if path.suffix == ".json":
        values = configs.read_json(path)
    else:
        language = "TOML" if path.suffix == ".toml" else "YAML"
        try:
            text = path.read_text(encoding="utf-8")
            values = tomllib.loads(text) if language == "TOML" else yaml.load(text, _yaml_1_2("SafeLoader"))
        except OSError as error:
            raise PermissionError(
                f"{path} cannot be read ({error.strerror}): a file of {language} is needed"
            ) from error
        except RecursionError:
            raise ValueError(f"{path} is not {language} that can be read: it is nested too deeply") from None
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
            # PyYAML checks no value that has a tag, such as `!!int x`
            raise ValueError(f"{path} is not {language}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; options with values are needed, as in `steps: 1e6`")
    return path, values


def to_yaml(config: Any) -> str:
    """All options of a configuration as YAML, which `--config` reads back."""
    import yaml

    values, dumper = configs.stamped(config), _yaml_1_2("SafeDumper")
    return yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


# --- settings that are not checked yet ------------------------------------------------------------------------------


def draft(kind: type, values: Mapping[str, Any]) -> Any:
    """A dataclass with these values, unchecked, as flags may still change them."""
    instance: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def blank(kind: type) -> Any:
    """A dataclass with its defaults, unchecked; required fields are missing."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(kind):
        if f.default is not dataclasses.MISSING:
            values[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            values[f.name] = f.default_factory()
        else:
            values[f.name] = tyro.MISSING
    return draft(kind, values)


def _flags_of(kind: type) -> dict[str, tuple[str, bool]]:
    """Names that files may use -> the field, and whether the options of that field have no prefix."""
    flags = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        flag_names = [
            meta.name for meta in getattr(hints[f.name], "__metadata__", ()) if getattr(meta, "name", None) is not None
        ]
        flags[f.name] = (f.name, flag_names == [""])
        if flag_names and flag_names[0]:
            flags[flag_names[0]] = (f.name, False)
    return flags


def overlaid(default: Any, values: Mapping[str, Any], where: str = "") -> Any:
    """A configuration overridden by the values of a file; unchecked.

    **Arguments:** `default`, a dataclass; `values`, by option, nested as in config.json; options without a prefix on
    the command line need none here; `where`, the place in the file, for errors.
    **Raises:** `ValueError` naming an unknown option and the nearest, or a value of another type.
    """
    kind = type(default)
    fields_by_name, hints = _flags_of(kind), typing.get_type_hints(kind, include_extras=True)
    fields = {f.name: getattr(default, f.name) for f in dataclasses.fields(kind)}
    inner = {name: fields[name] for name, flat in fields_by_name.values() if flat}
    for key, value in configs.upgraded(kind, values).items():
        spelled = str(key).replace("-", "_")
        name = fields_by_name.get(spelled, ("", False))[0]
        option_path = f"{where}.{key}".lstrip(".")
        if name and dataclasses.is_dataclass(fields[name]) and isinstance(value, Mapping):
            fields[name] = overlaid(fields[name], value, option_path)
        elif name:
            fields[name] = configs.from_json(hints[name], value, option_path)
        elif home := next((n for n in inner if spelled in _flags_of(type(fields[n]))), None):
            fields[home] = overlaid(fields[home], {key: value}, where)
        else:
            names = [*fields_by_name, *(option for n in inner for option in _flags_of(type(fields[n])))]
            raise ValueError(f"there is no option {option_path!r}{nearest(spelled, names)}")
    return draft(kind, fields)


def checked(config: Any, path: str = "", flag: str = "") -> Any:
    """A configuration rebuilt from its values, so that the class of each part checks them.

    **Arguments:** `path`, the dotted name of this part in the whole; `flag`, its prefix on the command line.
    **Raises:** `ValueError` for a field outside its bound, and what the classes raise, with options spelled as flags.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    kind = type(config)
    hints = hints_of(kind)

    def flag_of(name: str) -> str:
        field, _, inner = name.partition(".")
        return option(dotted(dotted(flag, shown(hints[field], field)), inner))

    values = {
        f.name: checked(getattr(config, f.name), dotted(path, f.name), dotted(flag, shown(hints[f.name], f.name)))
        for f in dataclasses.fields(config)
        if f.init
    }
    check_fields(config, flag_of)
    with spelled(lambda: names_of(kind, path, flag)):
        return kind(**values)


# --- names of options in messages, as flags -------------------------------------------------------------------------


SPELLED = (ValueError, KeyError, TypeError, OSError, RuntimeError)
"""Errors whose messages are rewritten."""
_BEFORE, _AFTER = r"(?<![\w.\-/'\"`@=?&])", r"(?![\w/'\"`(=]|[.\-]\w)"
"""Where a name stands alone: not in a path, a quotation, an id's option or a longer name."""


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a command's options in messages."""

    anywhere: Mapping[str, str]
    """Name -> flag, for names that are no words of English: with a dot or an underscore."""
    first: Mapping[str, str]
    """Name -> flag, for names that are rewritten at the beginning of a message only, before "is" or a number."""

    def spell(self, message: str) -> str:
        """The message with its names as flags."""
        if self.first:
            pattern = "|".join(map(re.escape, sorted(self.first, key=len, reverse=True)))
            message = re.sub(rf"^({pattern})(?= is | are | has | \d)", lambda m: self.first[m[1]], message)
        if self.anywhere:
            pattern = "|".join(map(re.escape, sorted(self.anywhere, key=len, reverse=True)))
            message = re.sub(f"{_BEFORE}({pattern}){_AFTER}", lambda m: self.anywhere[m[1]], message)
        return message


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields, evaluated, with what tyro reads in them."""
    return typing.get_type_hints(kind, include_extras=True)


def shown(hint: Any, name: str) -> str:
    """The name of a field or parameter on the command line; empty if it is hidden, with `tyro.conf.arg(name="")`."""
    names = [m.name for m in getattr(hint, "__metadata__", ()) if getattr(m, "name", None) is not None]
    return names[0] if names else name


def dotted(path: str, name: str) -> str:
    """Two names with a dot between them, either of which may be empty."""
    return f"{path}.{name}".strip(".")


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def options_of(kind: Any, path: str = "", flag: str = "") -> Iterator[tuple[str, str]]:
    """The options of a dataclass: the dotted name of each and its flag, without dashes in front.

    **Arguments:** `path`, the dotted name of the dataclass in the whole; `flag`, its prefix on the command line."""
    hints = hints_of(kind)
    for f in dataclasses.fields(kind):
        option_path, name = dotted(path, f.name), dotted(flag, shown(hints[f.name], f.name))
        inner = _bare(hints[f.name])
        if dataclasses.is_dataclass(inner):
            yield from options_of(inner, option_path, name)
        else:
            yield option_path, name


def names_of(kind: type, path: str = "", flag: str = "") -> Names:
    """The names of the options of one part of a configuration, as the checks of that part use them.

    **Arguments:** `kind`, a dataclass; `path`, the dotted name of the part; `flag`, its prefix on the command line.
    """
    return _names(list(options_of(kind, path, flag)), prefix_length=len(path) + 1 if path else 0)


def names_of_command(function: Callable[..., Any]) -> Names:
    """The names of the options of a command, from its signature."""
    options: list[tuple[str, str]] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hint = parameter.annotation
        if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            continue
        name, inner = shown(hint, parameter.name), _bare(hint)
        if dataclasses.is_dataclass(inner):
            options += options_of(inner, parameter.name if name else "", name)
        else:
            options.append((parameter.name, name))
    return _names(options)


def _names(options: list[tuple[str, str]], prefix_length: int | None = None) -> Names:
    """**Arguments:** `options`, dotted name and flag of each; `prefix_length`, of the prefix that the checks of a part
    leave out of the names of its fields; None: of a whole command, whose messages may be about anything."""
    anywhere: dict[str, str] = {}
    first: dict[str, str] = {}
    last: dict[str, set[str]] = {}
    for path, spelled_path in options:
        flag = option(spelled_path)
        for name in (path, spelled_path, *([path[prefix_length:]] if prefix_length else [])):
            (anywhere if re.search("[._]", name) else first)[name] = flag
        last.setdefault(path.rpartition(".")[2], set()).add(flag)
    for name, flags in last.items():
        if len(flags) == 1 and name not in anywhere:
            first.setdefault(name, *flags)
    return Names(anywhere, first)


@contextlib.contextmanager
def spelled(names: Callable[[], Names]) -> Iterator[None]:
    """Rewrite the message of an error that leaves the block. **Arguments:** `names`, called only then."""
    try:
        yield
    except SPELLED as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (names().spell(error.args[0]),)
        raise
