"""The interface between a learning algorithm and the run that drives it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from envs_jax.tracing import call_with_default_types
from llmrl_jax.core.checks import at_least


def _with_default_types(parts: Any, *names: str) -> None:
    """Let functions of a dataclass run with JAX's default types. They can be pickled if they could be before."""
    for name in names:
        function = getattr(parts, name)
        scoped: Any = functools.partial(call_with_default_types, function)
        scoped.__name__ = getattr(function, "__name__", name)  # of compiled programs
        object.__setattr__(parts, name, scoped)


@dataclass(frozen=True)
class Exchange:
    """A request from a learner to the host, and the answer's entry into its state, after every `every` updates.

    It lets a program on the device use something that only the host has, such as a chat model: the learner collects
    requests (ids of texts, for example), the host answers, and the learner stores the answer in its state, from which
    updates read it. The state after `k * every` updates is replaced by `take(state, answer(request(state)))` before the
    next update, for k = 1, 2, ...; there is no exchange after the last update. This does not depend on the lengths of
    chunks or on the intervals of logs, evaluations and checkpoints. An evaluation and a checkpoint of that update have
    the state before the exchange, and a run that is resumed there repeats the request. So a run gives the same bits
    however often it is stopped, provided that `answer` gives the same answer to the same request: cache the answers
    (`llmrl_jax.chat.cache`), or record them.
    """

    every: int
    """Updates between exchanges (`exchange_every` in configurations); at least 1. It affects what is learned."""
    request: Callable[[Any], Mapping[str, jax.Array]]
    """From a state to the request to the host: arrays by name. Pure; run as a compiled program."""
    answer: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
    """From a request to the answer: arrays of bool, int or float by name, preferably of the same shapes each time,
    since `take` is compiled for each set of shapes. Called on the host, in a thread, by process 0 only; all processes
    get what it returns. If it raises, the run saves its state before the exchange, and stops."""
    take: Callable[[Any, dict[str, jax.Array]], Any]
    """From a state and an answer to the state with which updates continue, of the same shapes. Pure; run as a compiled
    program. The `frozen` part of the state is read only."""
    ahead: bool = False
    """Whether the request is already complete after the previous exchange, so that the host may answer while updates
    run. Then `request` reads a part of the state that only `take` writes: an answer arrives one exchange after its
    request was collected. The run gives the same bits as with `ahead=False`, but does not wait."""

    def __post_init__(self):
        at_least("exchange.every", self.every, 1)
        _with_default_types(self, "request", "take")


@dataclass(frozen=True)
class Learner:
    """Learning algorithm as a pair of pure functions.

    `state` is a `flax.struct` pytree that holds everything (parameters, optimiser, environments in mid-episode, keys,
    counters), so that a run that is saved and resumed is exact. It has at least two fields: `frozen`, which no update
    changes and which is saved once, and `update`, int32 `[]`, the number of updates done.

    **Example:**

    ```pycon
    >>> import jax, llmrl_jax as lr
    >>> learner = lr.settings_class("ppo")(env="CartPole-v1").experiment().learner
    >>> state = jax.eval_shape(learner.init, jax.random.key(0))
    >>> isinstance(learner, lr.Learner), state.update.shape, learner.unit
    (True, (), 'environment steps')
    ```
    """

    init: Callable[[jax.Array], Any]
    """From a typed PRNG key to the initial state."""
    update: Callable[[Any], tuple[Any, dict[str, jax.Array]]]
    """From a state to the next, with metrics: float32 scalars, nan if an update has nothing to report."""
    steps_per_update: int
    """Steps per update: environment steps over all environments, or steps in the unit of `unit`."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Metric -> the largest value of a valid update; a run stops above it."""
    alarms: Mapping[str, str] = field(default_factory=dict)
    """Metric -> what it means, and a remedy; a run stops where it is above 0, and gives this reason."""
    unit: str = "environment steps"
    """The unit of steps, used as the axis label of learning curves."""
    compiler_options: Mapping[str, bool] = field(default_factory=dict)
    """XLA's options for the program of updates, `jax.jit(update, compiler_options=...)`: a run compiles with them."""
    exchange: Exchange | None = None
    """Requests to the host between updates; None: there are none."""
    shared: tuple[str, ...] = ()
    """Parts of the state, by dotted name, that are the same for all keys, such as counters and hyper-parameters:
    several seeds in one program hold them once (`llmrl_jax.rl.seeds`)."""

    def __post_init__(self):
        _with_default_types(self, "init", "update")
