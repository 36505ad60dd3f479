"""Evolution strategies: evosax's CMA-ES and OpenAI-ES with our interface, and the cross-entropy method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float

from envs_jax.extras import require
from llmrl_jax.core.checks import above, at_least, between
from llmrl_jax.systems.props.optimizers.base import Bounds, bounded
from llmrl_jax.systems.props.policies import Policy


def default_population(num_params: int) -> int:
    """CMA-ES's default population: 4 + floor(3 ln n) (Hansen, 1604.00772, eq. 48)."""
    return 4 + math.floor(3 * math.log(num_params))


def _algorithms() -> Any:
    """evosax's, which a method needs from the start. **Raises:** `ModuleNotFoundError`."""
    return require("an evolution strategy (cma-es, openai-es)", "evolution", "evosax.algorithms")


@struct.dataclass
class EvolutionState:
    """A PRNG key, and the state of evosax."""

    key: jax.Array
    inner: Any


class _Evosax:
    """A strategy of evosax, which minimises, so values are negated.

    For a table it works on real numbers, and the nearest integer actions are evaluated; `tell` receives the rounded
    candidates (and the clipped ones elsewhere), so steps smaller than a half have no effect.
    """

    policy: Policy
    bounds: Bounds

    @property
    def strategy(self) -> Any:
        """evosax's strategy object, which holds only static data."""
        raise NotImplementedError

    @property
    def settings(self) -> Any:
        """evosax's own parameters."""
        return self.strategy.default_params

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> EvolutionState:
        """`start`, the initial mean; None: the middle of the box."""
        key, draw = jax.random.split(key)
        mean = self.policy.middle if start is None else start
        return EvolutionState(key, self.strategy.init(draw, mean, self.settings))

    def ask(self, state):
        key, draw = jax.random.split(state.key)
        params, inner = self.strategy.ask(draw, state.inner, self.settings)
        return bounded(self.policy, params, self.bounds), EvolutionState(key, inner)

    def center(self, state: EvolutionState) -> Float[Array, " n"]:
        """The mean of the distribution."""
        return state.inner.mean

    def tell(self, state, params, values):
        inner, _ = self.strategy.tell(state.key, params, -values, state.inner, self.settings)
        return state.replace(inner=inner)


@dataclass(frozen=True)
class CMAES(_Evosax):
    """CMA-ES (Hansen, 1604.00772): adapts a full covariance matrix to the best candidates."""

    policy: Policy
    population: int = 0
    """Candidates per `ask`; 0: `default_population`."""
    std: float = 0.0
    """Initial standard deviation; 0: a quarter of the box's width, so that both bounds are two standard deviations
    away."""
    bounds: Bounds = "clip"
    name: str = "cma_es"

    def __post_init__(self):
        at_least(f"{self.name}: population", self.population or 1, 1)
        above(f"{self.name}: std", self.std or 1, 0)
        _algorithms()

    @cached_property
    def strategy(self):
        size = self.policy.num_params
        with jax.ensure_compile_time_eval():  # it holds arrays, and may first be created inside a trace
            return _algorithms().CMA_ES(self.population or default_population(size), jnp.zeros(size))

    @property
    def settings(self):
        std = self.std or (self.policy.high - self.policy.low) / 4
        return self.strategy.default_params.replace(std_init=jnp.float32(std))


@dataclass(frozen=True)
class OpenES(_Evosax):
    """OpenAI's evolution strategy (Salimans et al., 1703.03864): mirrored noise, centred ranks, Adam."""

    policy: Policy
    population: int = 16
    """Candidates per `ask`; even, since steps are mirrored."""
    std: float = 1.0
    """Standard deviation of the noise in each parameter."""
    learning_rate: float = 0.5
    """Adam's learning rate: about the change of each parameter per update."""
    bounds: Bounds = "clip"
    name: str = "open_es"

    def __post_init__(self):
        at_least(f"{self.name}: population", self.population, 1)
        above(f"{self.name}: std", self.std, 0)
        above(f"{self.name}: learning_rate", self.learning_rate, 0)
        if self.population % 2:
            raise ValueError(
                f"{self.name}: population is {self.population}; an even number is needed, for mirrored pairs"
            )
        _algorithms()

    @cached_property
    def strategy(self):
        with jax.ensure_compile_time_eval():
            return _algorithms().Open_ES(
                self.population,
                jnp.zeros(self.policy.num_params),
                optimizer=optax.adam(self.learning_rate),
                std_schedule=optax.constant_schedule(self.std),
            )


@struct.dataclass
class CEMState:
    """The distribution of candidates."""

    key: jax.Array
    mean: jax.Array
    """float32 `[n]`; for a table, probabilities `[n, A]`."""
    std: jax.Array
    """float32 `[n]`; for a table, unused zeros of that shape."""


@dataclass(frozen=True)
class CEM:
    """The cross-entropy method: sample, select the elite, fit the distribution to it.

    A diagonal Gaussian with extra noise against early collapse (Szita and Lorincz, 2006), or, for a table, independent
    probabilities of every state's actions (Rubinstein, 1999), updated with a step size. If all candidates have the same
    value, nothing changes, since a random elite would narrow the distribution without reason (MountainCar's -200).
    """

    policy: Policy
    population: int = 20
    """Candidates per `ask`."""
    elite: int = 5
    """Number of candidates to which the distribution is fitted."""
    std: float = 0.0
    """Initial standard deviation; 0: a quarter of the box's width. Not for tables."""
    extra_std: float = 0.1
    """Added to the elite's, in quadrature. Not for tables."""
    rate: float = 0.5
    """Step size of a table's probabilities towards the elite's frequencies, in (0, 1]."""
    bounds: Bounds = "clip"
    name: str = "cem"

    def __post_init__(self):
        at_least(f"{self.name}: population", self.population, 1)
        above(f"{self.name}: std", self.std or 1, 0)
        above(f"{self.name}: extra_std", self.extra_std, 0)
        between(f"{self.name}: elite", self.elite, 1, self.population, remedy="at most the population")
        between(f"{self.name}: rate", self.rate, 0, 1, above=True)

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> CEMState:
        """`start`, the initial mean; None: the middle of the box. A table starts with half of the probability on
        `start`, or with a uniform distribution."""
        size, actions = self.policy.num_params, self.policy.choices
        std = jnp.full(size, self.std or (self.policy.high - self.policy.low) / 4, jnp.float32)
        if self.policy.kind != "table":
            return CEMState(key, self.policy.middle if start is None else start, std)
        uniform = jnp.full((size, actions), 1 / actions, jnp.float32)
        mean = uniform if start is None else (uniform + self._one_hot(start)) / 2
        return CEMState(key, mean, jnp.zeros(size, jnp.float32))

    def _one_hot(self, params: Float[Array, "*B n"]) -> Float[Array, "*B n A"]:
        return jax.nn.one_hot((params - self.policy.low).astype(jnp.int32), self.policy.choices)

    def ask(self, state):
        key, draw = jax.random.split(state.key)
        shape = (self.population, self.policy.num_params)
        if self.policy.kind == "table":
            drawn = jax.random.categorical(draw, jnp.log(state.mean), shape=shape) + self.policy.low
        else:
            drawn = state.mean + state.std * jax.random.normal(draw, shape)
        return bounded(self.policy, drawn.astype(jnp.float32), self.bounds), state.replace(key=key)

    def center(self, state: CEMState) -> Float[Array, " n"]:
        """The mean; for a table, the most likely action of each state."""
        if self.policy.kind == "table":
            return jnp.argmax(state.mean, axis=1).astype(jnp.float32) + self.policy.low
        return state.mean

    def tell(self, state, params, values):
        elite = params[jax.lax.top_k(values, self.elite)[1]]
        if self.policy.kind == "table":
            mean, std = state.mean + self.rate * (self._one_hot(elite).mean(axis=0) - state.mean), state.std
        else:
            mean, std = jnp.mean(elite, axis=0), jnp.sqrt(jnp.var(elite, axis=0) + self.extra_std**2)
        equal = jnp.max(values) == jnp.min(values)
        return state.replace(mean=jnp.where(equal, state.mean, mean), std=jnp.where(equal, state.std, std))
