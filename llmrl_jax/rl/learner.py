"""The contract between a learning algorithm and the run that drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from llmrl_jax.core.checks import at_least


@dataclass(frozen=True)
class Exchange:
    """What a learner asks the host, and takes back into its state, after every `every` updates.

    It is how a program on the device works with something that only the host has, such as a chat model: the learner
    gathers what it does not know (texts by their ids, say), the host answers, and the learner keeps the answer in its
    state, from where updates read it. The state after `k * every` updates is replaced by
    `take(state, answer(request(state)))` before the next update, for k = 1, 2, ...; after the last update there is no
    exchange. This is so whatever the lengths of chunks and the intervals of logs, evaluations and checkpoints are. An
    evaluation and a checkpoint of that update have the state before the exchange, and a run that is resumed there asks
    again. So a run gives the same bits however often it is stopped, as long as `answer` gives the same answer to the
    same request: let it keep its answers (`llmrl_jax.chat.cache`), or record them.
    """

    every: int
    """Updates between exchanges (`exchange_every` in configurations); at least 1. It decides what is learnt."""
    request: Callable[[Any], Mapping[str, jax.Array]]
    """From a state to what the host is asked: arrays by name. Pure; run as a compiled program."""
    answer: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
    """From a request to the answer: arrays of bool, int or float by name, best of the same shapes each time, since
    `take` is compiled for each set of shapes. Called on the host, in a thread, by process 0 alone; all processes get
    what it returns. Where it raises, the run is saved as it was before the exchange, and stops."""
    take: Callable[[Any, dict[str, jax.Array]], Any]
    """From a state and an answer to the state with which updates continue, of the same shapes. Pure; run as a compiled
    program. The `frozen` part of the state is read only."""
    ahead: bool = False
    """Whether the request is complete already after the exchange before it, so that the host may answer while updates
    run. Then `request` reads a part of the state that only `take` writes: an answer comes one exchange after what it
    answers was gathered. The run gives the same bits as with `ahead=False`, but does not wait."""

    def __post_init__(self):
        at_least("exchange.every", self.every, 1)


@dataclass(frozen=True)
class Learner:
    """A learning algorithm as a pair of pure functions.

    `state` is a `flax.struct` pytree that holds everything (parameters, optimiser, environments in mid-episode, keys,
    counters), so that a run that is saved and resumed is exact. It has at least two fields: `frozen`, which no update
    changes and which a checkpoint keeps once, and `update`, int32 `[]`, the number of updates done.
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
    exchange: Exchange | None = None
    """What the host is asked between updates; None: nothing."""
