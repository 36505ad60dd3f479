"""Checks of `--run.best`, the metric whose highest checkpoint is kept: a wrong one is refused before it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from llmrl_jax.core.checks import nearest
from llmrl_jax.run import metrics
from llmrl_jax.run.config import RunConfig


def is_of_evaluations(config: RunConfig) -> bool:
    """Whether the metric is one of evaluations, `eval/<name>`."""
    return config.best.startswith("eval/")


def check_evaluates(config: RunConfig, evaluates: bool) -> None:
    """**Raises** `ValueError` for a metric of evaluations if the run has none."""
    if is_of_evaluations(config) and not evaluates:
        raise ValueError(
            f"--run.best is {config.best}, but nothing is evaluated while training: give --run.eval-every, or name a "
            "metric of training"
        )


def is_unknown(config: RunConfig, before: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no evaluation yet says that the metric exists: then one is made before training, which names a misspelt
    metric and scores the checkpoints before the next evaluation.

    **Arguments:** `before`, the last line of metrics of each kind, of a resumed run."""
    return is_of_evaluations(config) and config.best not in metrics.known(before)


def check_training(learner: Any, config: RunConfig, state: Any, before: Mapping[str, Mapping[str, Any]]) -> None:
    """**Raises** `ValueError` if the learner does not report the metric. Compiles nothing; a metric of evaluations is
    checked at the first of them.

    **Arguments:** `state`, the learner's; `before`, the last line of metrics of each kind, of a resumed run."""
    if config.best and not is_of_evaluations(config):
        reported = jax.eval_shape(learner.update, state)[1]
        check(config, [*reported, *metrics.known(before)])


def check(config: RunConfig, names: Iterable[str]) -> None:
    """**Raises** `ValueError` if the metric is not among `names`, naming the nearest, or all."""
    known = sorted(set(names))
    if config.best not in known:
        near = nearest(config.best, known) or f" (it has {', '.join(known)})"
        raise ValueError(f"--run.best is {config.best}, which is no metric of this run{near}")
