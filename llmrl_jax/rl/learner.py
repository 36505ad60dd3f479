"""The contract between a learning algorithm and the run that drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax


@dataclass(frozen=True)
class Learner:
    """A learning algorithm as a pair of pure functions.

    `state` is a `flax.struct` pytree that holds everything (parameters, optimiser, environments in mid-episode, keys,
    counters), so that saving it and going on is exact. It has at least two fields: `frozen`, which no update changes
    and which a checkpoint keeps once, and `update`, int32 `[]`, the number of updates done.
    """

    init: Callable[[jax.Array], Any]
    """From a typed PRNG key to the first state."""
    update: Callable[[Any], tuple[Any, dict[str, jax.Array]]]
    """From a state to the next, with metrics: float32 scalars, nan where an update has nothing to report."""
    steps_per_update: int
    """Steps in one update: environment steps over all environments, or what `unit` says."""
    bounds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Metric -> the largest value that a sound update can show; a run stops above it."""
    unit: str = "environment steps"
    """What is counted, as a learning curve's axis calls it."""
