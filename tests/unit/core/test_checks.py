"""One refusal of options that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from llmrl_jax.core.checks import option, refuse_unread


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
