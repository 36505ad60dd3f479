"""Messages name options as the command line spells them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import tyro

from llmrl_jax.options.command import parse
from llmrl_jax.options.settings import checked, names_of, names_of_command, spelled


@dataclass(frozen=True)
class Learner:
    num_envs: int = 8
    gamma: float = 0.9

    def __post_init__(self):
        if self.num_envs % 2:
            raise ValueError(
                f"num_envs {self.num_envs} and learner.gamma {self.gamma} of x/num_envs: 'num_envs' is odd"
            )
        if self.gamma > 1:
            raise ValueError(f"gamma is {self.gamma}; gamma is a discount")


@dataclass(frozen=True)
class World:
    num_actions: int = 6
    learner: Learner = field(default_factory=Learner)
    other: Learner = field(default_factory=Learner)


@dataclass(frozen=True)
class Run:
    world: Annotated[World, tyro.conf.arg(name="")] = field(default_factory=World)
    from_run: Annotated[str, tyro.conf.arg(name="from")] = ""
    steps: int = 5


def work(settings: Annotated[Run, tyro.conf.arg(name="")] = Run(), seed_of: int = 0) -> None:  # noqa: B008
    raise ValueError(TEXT)


def show(id: tyro.conf.Positional[Path], max_steps: int = 0) -> None:
    raise KeyError(TEXT)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("num_actions is 12", "--num-actions is 12"),
        ("world.num_actions: 6 -> 9; put it back", "--num-actions: 6 -> 9; put it back"),
        ("raise learner.num_envs, or world.other.num_envs", "raise --learner.num-envs, or --other.num-envs"),
        ("from_run is a and from is b", "--from is a and from is b"),
        ("steps is 0; steps is said once", "--steps is 0; steps is said once"),
        ("num_envs is 3", "num_envs is 3"),  # of either learner
        ("seed_of is -1, as in --seed-of 3", "--seed-of is -1, as in --seed-of 3"),
        ("a/num_actions, num_actions.json, 'num_actions', x?num_actions=3", None),
        ("--learner.num-envs is 0, my_num_actions, num_actions(3)", None),
        ("f.yaml: steps is 0", None),
    ],
)
def test_the_names_of_a_command(message, said):
    assert names_of_command(work).spell(message) == (message if said is None else said)


def test_a_part_is_checked_with_its_own_names():
    with pytest.raises(ValueError, match="^--learner.num-envs 3.*--learner.gamma 0.9.*x/num_envs: 'num_envs'"):
        checked(Run(world=World(learner=_made(num_envs=3))))
    with pytest.raises(ValueError, match="^--other.gamma.*2; gamma"):
        checked(Run(world=World(other=_made(gamma=2))))
    with pytest.raises(ValueError, match="^--other.gamma.*nan"):
        checked(Run(world=World(other=_made(gamma=float("nan")))))
    assert names_of(Learner, "world.learner", "learner").spell("gamma is 2") == "--learner.gamma is 2"


def _made(**values: Any) -> Learner:
    learner = Learner()
    for name, value in values.items():
        object.__setattr__(learner, name, value)
    return learner


def test_a_command_line_gives_these_messages(monkeypatch):
    with pytest.raises(ValueError, match="^--learner.num-envs 3"):
        parse(work, args=["--learner.num-envs", "3"])
    with pytest.raises(ValueError, match="^--other.gamma.*2.0"):
        parse(Run, args=["--other.gamma", "2"])
    monkeypatch.setitem(globals(), "TEXT", "max_steps is -3, id is a")
    with pytest.raises(KeyError) as error:
        parse(show, args=["a", "--max-steps", "-3"])
    assert error.value.args == ("--max-steps is -3, id is a",)


def test_an_error_of_the_system_keeps_its_number():
    with pytest.raises(OSError) as error, spelled(lambda: names_of(Run)):
        raise OSError(28, "num_actions is full")
    assert error.value.args == (28, "num_actions is full")


TEXT = ""
