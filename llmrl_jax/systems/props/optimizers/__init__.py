"""Optimizers of policy parameters with one interface: `init`, `ask`, `tell`."""

from __future__ import annotations

import dataclasses
from typing import Any

from llmrl_jax.core.checks import nearest
from llmrl_jax.systems.props.optimizers.base import Bounds, Optimizer, bounded
from llmrl_jax.systems.props.optimizers.evolution import CEM, CMAES, OpenES
from llmrl_jax.systems.props.optimizers.search import ARS, HillClimbing, RandomSearch
from llmrl_jax.systems.props.policies import Policy


__all__ = [
    "ARS",
    "Bounds",
    "CEM",
    "CMAES",
    "HillClimbing",
    "NUMERIC",
    "OpenES",
    "Optimizer",
    "RandomSearch",
    "bounded",
    "make_numeric",
]

NUMERIC: dict[str, Any] = {
    "random_search": RandomSearch,
    "hill_climbing": HillClimbing,
    "ars": ARS,
    "cem": CEM,
    "cma_es": CMAES,
    "open_es": OpenES,
}
"""The numeric optimizers, by name."""


def make_numeric(name: str, policy: Policy, **options: Any) -> Optimizer:
    """Create the numeric optimizer `name` for a policy.

    **Arguments:** `options`, fields of its class.
    **Raises:** `KeyError` for an unknown name, `TypeError` for an unknown option; both with the nearest name.
    """
    if name not in NUMERIC:
        known = ", ".join(NUMERIC)
        raise KeyError(f"there is no optimizer {name!r}{nearest(name, list(NUMERIC))} (there are {known})")
    accepted = [field.name for field in dataclasses.fields(NUMERIC[name]) if field.name != "policy"]
    for option in options:
        if option not in accepted:
            raise TypeError(
                f"{name!r} has no option {option!r}{nearest(option, accepted)} (it takes {', '.join(accepted)})"
            )
    return NUMERIC[name](policy, **options)
