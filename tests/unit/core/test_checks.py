"""Intervals of numbers, and one refusal of options that nothing reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from llmrl_jax.core.checks import COUNT, WIDTH, check_seed, fields_in, option, refuse_nan, refuse_unread


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


def test_every_changed_option_is_named_with_its_value():
    with pytest.raises(ValueError, match=r"^--num-actions is 3, but the agent x does not read it; leave it out$"):
        refuse_unread(Outer(num_actions=3), ("num_actions", "mesh"), "the agent x")
    both = Outer(num_actions=3, inner=Inner(num_envs=2))
    with pytest.raises(ValueError, match=r"^--num-actions is 3, --inner.num-envs is 2, but x does not read them;"):
        refuse_unread(both, ("num_actions", "inner"), "x")
    with pytest.raises(ValueError, match=r"--inner.num-envs is 8, but x does not read it; leave it out \(take y\)"):
        refuse_unread(Outer(), ("inner",), "x", usual=replace(both, num_actions=0), remedy="take y")
    with pytest.raises(ValueError, match=r"--glam.mesh is data=2"):
        refuse_unread(Outer(mesh="data=2"), ("mesh",), "x", prefix="glam.")


def test_a_configuration_may_check_itself_while_it_is_made():
    @dataclass(frozen=True)
    class Itself:
        warmup: int = 0
        method: str = "a"

        def __post_init__(self):
            refuse_unread(self, ("warmup",), f"the method {self.method}")

    assert Itself(method="b").warmup == 0
    with pytest.raises(ValueError, match="--warmup is 3, but the method a does not read it"):
        Itself(warmup=3)


@dataclass(frozen=True)
class Numbers:
    gamma: float = 0.9
    rows: int = 4
    norm: float = 1.0
    parts: tuple[float, ...] = (1.0,)
    outer: Outer = field(default_factory=Outer)


@pytest.mark.parametrize(
    ("interval", "values", "message"),
    [
        ("[0, 1]", {"gamma": 1.5}, "x.gamma is 1.5; from 0 to 1 is needed"),
        ("[0, 1]", {"gamma": -0.5}, "x.gamma is -0.5; from 0 to 1 is needed"),
        ("[0, 1)", {"gamma": 1.0}, "x.gamma is 1.0; from 0 to below 1 is needed"),
        ("(0, 1]", {"gamma": 0.0}, "x.gamma is 0.0; above 0 and at most 1 is needed"),
        ("[0, 1]", {"gamma": math.nan}, "x.gamma is nan; from 0 to 1 is needed"),
        ("[0, inf)", {"norm": math.inf}, "x.norm is inf; a finite number is needed"),
        ("(0, inf)", {"norm": 0.0}, "x.norm is 0.0; above 0 is needed"),
        ("[0, inf]", {"norm": math.nan}, "x.norm is nan; at least 0 is needed"),
        ("[0, inf]", {"norm": -math.inf}, "x.norm is -inf; at least 0 is needed"),
        ("(-inf, inf)", {"norm": math.nan}, "x.norm is nan; above -inf is needed"),
        ("(-inf, inf)", {"norm": math.inf}, "x.norm is inf; a finite number is needed"),
        ("(-inf, inf)", {"norm": -math.inf}, "x.norm is -inf; above -inf is needed"),
        (COUNT, {"rows": 0}, "x.rows is 0; at least 1 is needed"),
        (COUNT, {"rows": 2**31}, "x.rows is 2147483648; from 1 to 2147483647 is needed"),
    ],
)
def test_numbers_outside_of_their_interval(interval, values, message):
    (name,) = values
    with pytest.raises(ValueError) as error:
        fields_in(Numbers(**values), interval, name, prefix="x.")
    assert str(error.value) == message


def test_numbers_inside_of_their_interval():
    fields_in(Numbers(gamma=0.0), "[0, 1)", "gamma")
    fields_in(Numbers(gamma=1), "(0, 1]", "gamma")
    fields_in(Numbers(norm=math.inf), "[0, inf]", "norm", "gamma")
    fields_in(Numbers(norm=-3.0), "(-inf, inf)", "norm")
    fields_in(Numbers(rows=2**31 - 1), COUNT, "rows")
    fields_in(Numbers(), WIDTH, "rows", remedy="never said")
    with pytest.raises(AssertionError, match="no interval"):
        fields_in(Numbers(), "0 to 1", "gamma")


def test_nan_is_refused_in_every_field():
    refuse_nan(Numbers(norm=math.inf, gamma=-math.inf))
    for made, name in (
        (Numbers(norm=math.nan), "p.norm is nan"),
        (Numbers(parts=(1.0, math.nan)), r"p.parts is \(1.0, nan\)"),
        (Numbers(outer=Outer(inner=Inner(gamma=math.nan))), "p.outer.inner.gamma is nan"),
    ):
        with pytest.raises(ValueError, match=f"^{name}; a number is needed$"):
            refuse_nan(made, "p.")


def test_seeds_are_those_that_differ():
    check_seed("seed", 0)
    check_seed("seed", 2**32 - 1)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed is {seed}; from 0 to 4294967295 is needed"):
            check_seed("seed", seed)
