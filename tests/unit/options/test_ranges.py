"""Every bound of every command's settings, beside its field: values outside are refused by the name of the option, its
ends are not. Every `Literal` refuses other values."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.core.checks import In, Needs, bound, check_fields
from llmrl_jax.options.settings import blank, checked, dotted, draft, hints_of, shown
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE
from llmrl_jax.systems.kalm.config import settings_class as kalm_settings
from llmrl_jax.workflows import rl_training


WITHOUT_BOUND = {
    "run.seed": "saved runs may have other seeds than new ones",
}
"""Numbers without a bound beside them, and the reason."""


@functools.cache
def settings() -> Mapping[str, type]:
    """The class of the settings of every command, and of every algorithm."""
    kinds: dict[str, type] = {}
    for group, about in cli.groups().items():
        for name, command in getattr(importlib.import_module(about.module), "COMMANDS", {}).items():
            if hasattr(command, "prepare"):
                hint = inspect.signature(command.prepare([])).parameters["settings"].annotation
                kinds[f"{group} {name}"] = typing.get_args(hint)[0]
    kinds |= {f"rl train {name}": rl_training.settings_class(name) for name in (*ALGORITHMS, *OFFLINE)}
    return kinds | {f"kalm train {name}": kalm_settings(name) for name in OFFLINE}


def fields(kind: type, path: str = "", flag: str = "") -> Iterator[tuple[type, str, str, str]]:
    """The fields of settings and of their parts: class, name, dotted path and flag."""
    hints = hints_of(kind)
    for f in dataclasses.fields(kind):
        hint = typing.get_args(hints[f.name])[0] if hasattr(hints[f.name], "__metadata__") else hints[f.name]
        inside = dotted(path, f.name), dotted(flag, shown(hints[f.name], f.name))
        if dataclasses.is_dataclass(hint):
            yield from fields(hint, *inside)
        else:
            yield kind, f.name, *inside


def changed(config: Any, path: str, value: Any) -> Any:
    """The same settings, unchecked, with one other value."""
    head, _, rest = path.partition(".")
    inner = changed(getattr(config, head), rest, value) if rest else value
    return draft(type(config), {**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)}, head: inner})


def nested(hint: Any, value: Any) -> Any:
    """A value in as many tuples as the annotation of its field has."""
    parts = [part for part in typing.get_args(hint) if bound(part)]
    if typing.get_origin(hint) is tuple:
        inner = nested(parts[0], value)
        return (inner,) * (1 if typing.get_args(hint)[-1] is Ellipsis else len(parts))
    return nested(parts[0], value) if parts else value


def reading(owner: type, name: str) -> Any:
    """The default settings of a class, unchecked, with what a field needs to be read."""
    config = blank(owner)
    for need in getattr(hints_of(owner)[name], "__metadata__", ()):
        if isinstance(need, Needs):
            config = reading(owner, need.field)
            value = need.value[0] if isinstance(need.value, tuple) else need.value
            if value is None:
                kind = type(getattr(config, need.field))
                value = 0.5 if kind is float else kind(1)
            config = changed(config, need.field, value)
    return config


def outside(limits: In, whole: bool) -> list[float]:
    """Numbers outside an interval: beyond each end, an end that is excluded, NaN."""
    low, high, open_low, open_high = limits.ends
    bad = [] if low == -math.inf else [low] if open_low else [low - 1]
    bad += [] if high == math.inf and not open_high else [high] if open_high else [high + 1]
    return bad if whole else [*bad, math.nan]


def inside(limits: In) -> list[float]:
    """The ends of an interval that belong to it."""
    low, high, open_low, open_high = limits.ends
    return [end for end, is_open in ((low, open_low), (high, open_high)) if not is_open]


def choices(owner: type, name: str) -> bool:
    """Return whether a field has the values of a `Literal` only."""
    hint = hints_of(owner)[name]
    return any(typing.get_origin(part) is typing.Literal for part in (hint, *typing.get_args(hint)))


@pytest.fixture(scope="module")
def bounds() -> list[tuple[str, type, str, str, str, Any]]:
    """Every bound once: a command that has it, class, name, path, flag, annotation."""
    unique = {}
    for command, kind in settings().items():
        for owner, name, path, flag in fields(kind):
            if bound(hints_of(owner)[name]):
                unique.setdefault((owner, name, flag), (command, owner, name, path, flag, hints_of(owner)[name]))
    assert len(unique) > 300
    return list(unique.values())


def test_every_number_has_a_bound():
    without = {
        path
        for kind in settings().values()
        for owner, name, path, _ in fields(kind)
        if bound(hints_of(owner)[name]) is None
        and {int, float} & {hints_of(owner)[name], *typing.get_args(hints_of(owner)[name])}
    }
    assert without == set(WITHOUT_BOUND)


def test_values_outside_are_refused_by_their_flag(bounds):
    for command, _, _, path, flag, hint in bounds:
        for value in outside(bound(hint), "float" not in str(hint)):
            with pytest.raises(ValueError) as error:
                checked(changed(blank(settings()[command]), path, nested(hint, value)))
            option = "--" + flag.replace("_", "-")
            assert str(error.value).startswith(f"{option} is "), f"{command}: {error.value}"
            assert str(value) in str(error.value)


def test_values_outside_are_refused_by_python_too(bounds):
    for command, owner, name, *_, hint in bounds:
        values = {f.name: getattr(blank(owner), f.name) for f in dataclasses.fields(owner) if f.init}
        for value in outside(bound(hint), "float" not in str(hint)):
            with pytest.raises(ValueError) as error:
                owner(**values | {name: nested(hint, value)})
            assert str(error.value).startswith(f"{owner.PREFIX}{name} is "), f"{command}: {error.value}"


def test_the_ends_of_bounds_are_accepted(bounds):
    for _, owner, name, *_, hint in bounds:
        for value in inside(bound(hint)):
            check_fields(changed(reading(owner, name), name, nested(hint, value)), str)


def test_the_prefix_of_a_part_is_that_of_its_flags(bounds):
    for _, owner, name, _, flag, _ in bounds:
        assert f".{flag}".endswith(f".{owner.PREFIX}{name}" if owner.PREFIX else name), f"{owner}: {flag}"


def test_what_an_option_needs_is_a_value_of_another():
    needs = {
        (owner, name)
        for kind in settings().values()
        for owner in {owner for owner, *_ in fields(kind)}
        for name, hint in hints_of(owner).items()
        if any(isinstance(need, Needs) for need in getattr(hint, "__metadata__", ()))
    }
    assert len(needs) > 10
    for owner, name in needs:
        check_fields(reading(owner, name), str)


def test_other_values_than_those_of_a_literal_are_refused():
    unique = {(owner, name) for kind in settings().values() for owner, name, *_ in fields(kind) if choices(owner, name)}
    assert len(unique) > 30
    for owner, name in unique:
        values = {f.name: getattr(blank(owner), f.name) for f in dataclasses.fields(owner) if f.init}
        with pytest.raises(ValueError) as error:
            owner(**values | {name: "another"})
        assert str(error.value).startswith(f"{owner.PREFIX}{name} is 'another'; one of "), f"{owner}: {error.value}"
