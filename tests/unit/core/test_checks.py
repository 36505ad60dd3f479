"""Intervals of numbers, and one refusal of options that nothing reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import pytest

from llmrl_jax.core.checks import (
    COUNT,
    WIDTH,
    Checked,
    In,
    Needs,
    PositiveInt,
    Width,
    check_fields,
    check_seed,
    in_interval,
    option,
    refuse_unread,
)


@dataclass(frozen=True)
class Inner:
    num_envs: int = 8
    gamma: float = 0.9


@dataclass(frozen=True)
class Outer:
    num_actions: int = 6
    mesh: str = ""
    inner: Inner = field(default_factory=Inner)


def test_an_option_as_the_command_line_spells_it():
    assert option("inner.num_envs") == "--inner.num-envs"


def test_what_is_read_or_unchanged_passes():
    refuse_unread(Outer(), ("mesh", "inner"), "x")
    refuse_unread(Outer(num_actions=3), ("mesh", "inner"), "x")
    refuse_unread(Outer(mesh="data=4"), ("mesh",), "x", usual=Outer(mesh="data=4"))
    refuse_unread(Outer(inner=Inner(gamma=0.5)), ("inner.num_envs",), "x")
    presets = (Outer(), Outer(num_actions=3, inner=Inner(num_envs=2)))
    refuse_unread(Outer(num_actions=3), ("num_actions", "inner"), "x", usual=presets)


def test_every_changed_option_is_named_with_its_value():
    with pytest.raises(ValueError, match="^--num-actions.*3.*agent x"):
        refuse_unread(Outer(num_actions=3), ("num_actions", "mesh"), "the agent x")
    both = Outer(num_actions=3, inner=Inner(num_envs=2))
    with pytest.raises(ValueError, match=r"^--num-actions.*3.*--inner\.num-envs.*2.*x"):
        refuse_unread(both, ("num_actions", "inner"), "x")
    with pytest.raises(ValueError, match=r"--inner\.num-envs.*8.*\(take y\)"):
        refuse_unread(Outer(), ("inner",), "x", usual=replace(both, num_actions=0), remedy="take y")
    with pytest.raises(ValueError, match=r"^--inner\.num-envs is 4, but x"):
        presets = (Outer(), Outer(num_actions=3, inner=Inner(num_envs=2)))
        refuse_unread(Outer(num_actions=3, inner=Inner(num_envs=4)), ("num_actions", "inner"), "x", usual=presets)
    with pytest.raises(ValueError, match=r"--x\.rate.*2\.0.*y"):
        refuse_unread(Part(rate=2.0), ("rate",), "y")


def test_a_configuration_may_check_itself_while_it_is_made():
    @dataclass(frozen=True)
    class Itself:
        warmup: int = 0
        method: str = "a"

        def __post_init__(self):
            refuse_unread(self, ("warmup",), f"the method {self.method}")

    assert Itself(method="b").warmup == 0
    with pytest.raises(ValueError, match="--warmup.*3.*method a"):
        Itself(warmup=3)


@pytest.mark.parametrize(
    ("interval", "value", "message"),
    [
        ("[0, 1]", 1.5, "x is 1.5; from 0 to 1 is needed"),
        ("[0, 1]", -0.5, "x is -0.5; from 0 to 1 is needed"),
        ("[0, 1)", 1.0, "x is 1.0; from 0 to below 1 is needed"),
        ("(0, 1]", 0.0, "x is 0.0; above 0 and at most 1 is needed"),
        ("[0, 1]", math.nan, "x is nan; from 0 to 1 is needed"),
        ("[0, inf)", math.inf, "x is inf; a finite number is needed"),
        ("(0, inf)", 0.0, "x is 0.0; above 0 is needed"),
        ("[0, inf]", math.nan, "x is nan; at least 0 is needed"),
        ("[0, inf]", -math.inf, "x is -inf; at least 0 is needed"),
        ("(-inf, inf)", math.nan, "x is nan; above -inf is needed"),
        ("(-inf, inf)", math.inf, "x is inf; a finite number is needed"),
        ("(-inf, inf)", -math.inf, "x is -inf; above -inf is needed"),
        (COUNT, 0, "x is 0; at least 1 is needed"),
        (COUNT, 2**31, "x is 2147483648; from 1 to 2147483647 is needed"),
    ],
)
def test_numbers_outside_of_their_interval(interval, value, message):
    with pytest.raises(ValueError) as error:
        in_interval("x", value, interval)
    assert str(error.value) == message


def test_numbers_inside_of_their_interval():
    for value, interval in ((0.0, "[0, 1)"), (1, "(0, 1]"), (math.inf, "[0, inf]"), (-3.0, "(-inf, inf)")):
        in_interval("x", value, interval)
    in_interval("x", 2**31 - 1, COUNT)
    in_interval("x", 4, WIDTH, remedy="never said")
    with pytest.raises(AssertionError, match="'0 to 1'.*interval"):
        in_interval("x", 0, "0 to 1")


@dataclass(frozen=True)
class Part(Checked):
    PREFIX: ClassVar[str] = "x."

    gamma: Annotated[float, In("[0, 1]", "take less")] = 0.9
    rows: PositiveInt | None = 4
    widths: tuple[tuple[Width, Width], ...] = ((1, 2),)
    rate: float = 1.0
    rates: tuple[float, ...] = (1.0,)
    scale: Annotated[float, In("(0, 2)")] | str = 1.0
    schedule: Literal["constant", "linear"] | None = "constant"
    batch: PositiveInt | Literal["auto"] | None = "auto"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.5}, "gamma is 1.5; from 0 to 1 is needed (take less)"),
        ({"gamma": math.nan}, "gamma is nan; a number is needed"),
        ({"gamma": "a"}, "gamma is 'a'; a number is needed"),
        ({"rows": 0}, "rows is 0; at least 1 is needed"),
        ({"widths": ((1, 2), (3, 0))}, "widths is 0; at least 1 is needed"),
        ({"rate": math.nan}, "rate is nan; a number is needed"),
        ({"rates": (1.0, math.nan)}, "rates is (1.0, nan); a number is needed"),
        ({"scale": 2.0}, "scale is 2.0; above 0 and below 2 is needed"),
        ({"schedule": "cubic"}, "schedule is 'cubic'; one of constant, linear, None is needed"),
        ({"schedule": 3}, "schedule is 3; one of constant, linear, None is needed"),
        ({"batch": "many"}, "batch is 'many'; one of auto, None is needed"),
        ({"batch": 0}, "batch is 0; at least 1 is needed"),
    ],
)
def test_a_field_outside_its_bound_is_refused_by_its_name(values, message):
    with pytest.raises(ValueError) as error:
        Part(**values)
    assert str(error.value) == f"x.{message}"
    unchecked = Part()
    for name, value in values.items():
        object.__setattr__(unchecked, name, value)
    with pytest.raises(ValueError) as error:
        check_fields(unchecked, option)
    assert str(error.value) == f"--{message}"


def test_fields_inside_their_bounds():
    Part(gamma=1, rows=None, widths=(), rate=-math.inf, rates=(math.inf,), scale="auto", schedule=None)
    Part(batch=3)


@dataclass(frozen=True)
class Play(Checked):
    PREFIX: ClassVar[str] = "x."

    reset: Literal["pool", "optimistic", "always"] = "pool"
    pool_size: Annotated[PositiveInt, Needs("reset", "pool")] = 8
    ratio: Annotated[PositiveInt, Needs("reset", ("pool", "optimistic"))] = 4
    path: str = ""
    inner: Annotated[Inner, Needs("path")] = field(default_factory=Inner)


def test_an_option_that_nothing_reads_is_refused():
    assert Play(reset="always").pool_size == 8 and Play(pool_size=3, path="a", inner=Inner(2)).inner.num_envs == 2
    with pytest.raises(ValueError, match=r"^x\.pool_size.*3.*x\.reset always"):
        Play(reset="always", pool_size=3)
    assert Play(ratio=3).ratio == Play(reset="optimistic", ratio=3).ratio
    with pytest.raises(ValueError, match=r"^x\.ratio.*3.*x\.reset always"):
        Play(reset="always", ratio=3)
    with pytest.raises(ValueError, match="^x.inner.num_envs.*2.*x.path"):
        Play(inner=Inner(2))
    with pytest.raises(ValueError, match="^x.pool_size.*0.*1"):
        Play(pool_size=0)
    unchecked = Play()
    object.__setattr__(unchecked, "inner", Inner(2))
    with pytest.raises(ValueError, match="^--inner.num-envs.*2.*--path"):
        check_fields(unchecked, option)


def test_what_a_help_text_says_of_a_bound():
    for interval, text in (("[0, 1]", "from 0 to 1"), ("(0, 0.5)", "above 0 and below 0.5"), ("(0, inf]", "above 0")):
        assert In(interval).help == text
    for interval in (COUNT, WIDTH, "[0, inf)", "(-inf, inf)"):
        assert In(interval).help == ""
    assert In("[2, inf)").help == "at least 2"


def test_seeds_are_those_that_differ():
    check_seed("seed", 0)
    check_seed("seed", 2**32 - 1)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed.*{seed}.*0.*4294967295"):
            check_seed("seed", seed)
