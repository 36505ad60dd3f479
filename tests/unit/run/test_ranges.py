"""Every numeric option of every command has a range, which is checked when the settings are made."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import tyro

from llmrl_jax.cli.workload_config import WorkloadConfig
from llmrl_jax.rl.registry import ALGORITHMS, OFFLINE
from llmrl_jax.run.rl_training import settings_class
from llmrl_jax.run.settings import blank, checked, draft
from llmrl_jax.run.tune.settings import GrpoRun, TuneConfig
from llmrl_jax.systems.ellm.settings import AccuracyRun, AnswersRun, PretrainRun
from llmrl_jax.systems.glam.settings import CloneRun, TrainConfig
from llmrl_jax.systems.props.settings import FinetuneRun, PropsRun, TableConfig


COMMANDS = {
    "lm sft": TuneConfig, "lm grpo": GrpoRun, "lm fit": WorkloadConfig, "glam train": TrainConfig,
    "glam clone": CloneRun,
    "props run": PropsRun, "props table": TableConfig, "props finetune": FinetuneRun,
    "ellm pretrain": PretrainRun, "ellm accuracy": AccuracyRun, "ellm answers": AnswersRun,
    **{f"rl train {algo}": settings_class(algo) for algo in sorted([*ALGORITHMS, *OFFLINE])},
}  # fmt: skip

NEGATIVE = {"checkpoint", "resume_from", "alpha", "threshold", "low", "high", "temperature", "seed"}
"""Fields that may be negative, or whose other values do: -1 is the newest checkpoint, or the server's default; a saved
run may have a negative seed, which `check_folder` refuses for new ones."""
INFINITE = {"value_clip", "reward_clip", "max_grad_norm", "target_kl", "max_seconds"}
"""Fields that may be infinite: a bound that is never reached."""


def numbers(config: Any, path: str = "") -> Iterator[tuple[str, type]]:
    """The dotted names of all fields of numbers, with their type."""
    hints = typing.get_type_hints(type(config))
    for f in dataclasses.fields(config):
        value, name = getattr(config, f.name), f"{path}{f.name}"
        if dataclasses.is_dataclass(value):
            yield from numbers(value, f"{name}.")
        else:
            kinds = {hints[f.name], *typing.get_args(hints[f.name])} & {int, float}
            if kinds and typing.get_origin(hints[f.name]) is not tuple:
                yield name, kinds.pop()


def changed(config: Any, name: str, value: Any) -> Any:
    """The same settings, unchecked, with one other value."""
    head, _, rest = name.partition(".")
    inner = changed(getattr(config, head), rest, value) if rest else value
    return draft(type(config), {**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)}, head: inner})


@pytest.mark.parametrize("command", COMMANDS)
def test_no_number_is_without_a_range(command):
    config = blank(COMMANDS[command])
    for name, value in (("model", "m"), ("data", "d"), ("reward", "exact")):
        if getattr(config, name, None) is tyro.MISSING:
            config = changed(config, name, value)
    config = checked(config)
    passed = []
    known = command == "glam clone"  # whose `glam.*` are those of glam train
    names = [(name, kind) for name, kind in numbers(config) if not (known and name.startswith("glam."))]
    assert len(names) >= 5
    for name, kind in names:
        last = name.rpartition(".")[2]
        bad: list[Any] = [] if last in NEGATIVE else [-7]
        if kind is float:
            bad += [math.nan, -math.inf, *([] if last in INFINITE else [math.inf])]
        else:
            bad += [10**30]
        for value in bad:
            try:
                checked(changed(config, name, value))
            except ValueError as error:
                flag = last.replace("_", "-")
                assert flag in str(error) and str(value) in str(error), f"{name} = {value}: {error}"
            else:
                passed.append(f"{name} = {value}")
    assert not passed
