"""Numeric optimizers of policy parameters: `init`, `ask`, `tell`. Candidates outside the policy's box are moved to its
nearest point, and those of a table rounded to actions; the moved ones are evaluated and passed to `tell`.

Random search, hill climbing, augmented random search, the cross-entropy method, and evosax's CMA-ES and OpenAI-ES.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float

from envs_jax.extras import require
from llmrl_jax.core.checks import (
    Checked,
    In,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    between,
    nearest,
)
from llmrl_jax.systems.props.policies import Policy


State = Any
"""State of an optimizer; opaque to callers."""

WORST_RETURN = float(np.finfo(np.float32).min) / 1e6
"""Replaces returns that are not finite for numeric methods; small enough that sums stay finite."""


class Optimizer(Protocol):
    """Ask for candidates, evaluate them, tell their values; higher is better.

    Numeric optimizers are pure: all three methods are jit- and vmap-safe, so that many seeds run in one program.
    Language-model optimizers have the same methods, on the host.
    """

    name: str
    """Name in tables and commands, in lower case."""

    def init(self, key: jax.Array) -> State:
        """The state before the first candidate, for a typed PRNG `key`."""

    def ask(self, state: State) -> tuple[Float[Array, "P n"], State]:
        """The next candidates, float32 `[P, n]`, and the state for the following `tell`."""

    def tell(self, state: State, params: Float[Array, "P n"], values: Float[Array, " P"]) -> State:
        """Learn from evaluated candidates.

        **Arguments:** `state`, of the last `ask`; `params`, float32 `[P, n]`, the evaluated candidates: those of `ask`,
        or others instead; `values`, float32 `[P]`, their mean returns.
        """


def finite(values: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Values for a numeric method, with `WORST_RETURN` for those that are not finite."""
    return jnp.where(jnp.isfinite(values), values, WORST_RETURN)


def centers(optimizer: Any, first: State, last: State) -> Float[Array, "2 n"] | None:
    """The first and the last center of a method that samples around a center, in the form of candidates; else None.

    Such a method never evaluates its center, which is its final answer; and if the search fails, the first center may
    be better than all candidates. Both are evaluated at the end of a search, within the same budget.
    """
    if not hasattr(optimizer, "center"):
        return None
    return optimizer.policy.clip(jnp.stack([optimizer.center(first), optimizer.center(last)]))


@dataclass(frozen=True)
class RandomSearch(Checked):
    """Independent candidates, sampled according to the policy's `init`; does not learn."""

    PREFIX: ClassVar[str] = "random_search: "

    policy: Policy
    population: PositiveInt = 8
    """Candidates per `ask`."""
    name: str = "random_search"

    def init(self, key: jax.Array) -> jax.Array:
        return key

    def ask(self, state):
        state, sample_key = jax.random.split(state)
        return self.policy.sample(sample_key, self.population), state

    def tell(self, state, params, values):
        return state


@struct.dataclass
class ClimberState:
    """State of hill climbing."""

    key: jax.Array
    best: jax.Array
    """float32 `[n]`."""
    value: jax.Array
    """float32 `[]`, the mean return of `best`; -inf before the first `tell`."""
    first: jax.Array
    """float32 `[P, n]`, the proposals of the first `ask`."""


@dataclass(frozen=True)
class HillClimbing(Checked):
    """Random steps around the best candidate so far; the best of them replaces it if it is at least as good.

    Equal values are accepted so that it moves across plateaus (MountainCar's -200). For a table, a step changes the
    action of one state.
    """

    PREFIX: ClassVar[str] = "hill_climbing: "

    policy: Policy
    population: PositiveInt = 8
    """Candidates per `ask`."""
    std: PositiveFloat = 1.0
    """Standard deviation of a step in each parameter; not for tables."""
    name: str = "hill_climbing"

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> ClimberState:
        """`start`, the initial candidate; None: the best of `population` draws from the policy's `init`."""
        key, sample_key = jax.random.split(key)
        if start is None:
            first = self.policy.sample(sample_key, self.population)
        else:
            first = self._around(sample_key, start).at[0].set(start)
        return ClimberState(key, first[0], jnp.float32(-jnp.inf), self.policy.clip(first))

    def _around(self, key: jax.Array, best: Float[Array, " n"]) -> Float[Array, "P n"]:
        if self.policy.kind == "table":
            return jax.vmap(lambda k: self._flipped(k, best))(jax.random.split(key, self.population))
        return best + self.std * jax.random.normal(key, (self.population, self.policy.num_params))

    def _flipped(self, key: jax.Array, best: Float[Array, " n"]) -> Float[Array, " n"]:
        entry_key, shift_key = jax.random.split(key)
        actions = self.policy.choices
        shift = jax.random.randint(shift_key, (), 1, actions) if actions > 1 else 0
        flipped = (best - self.policy.low + shift) % actions + self.policy.low
        flip = jnp.arange(best.shape[0]) == jax.random.randint(entry_key, (), 0, best.shape[0])
        return jnp.where(flip, flipped, best)

    def ask(self, state):
        key, sample_key = jax.random.split(state.key)
        moved = self.policy.clip(self._around(sample_key, state.best))
        return jnp.where(jnp.isneginf(state.value), state.first, moved), state.replace(key=key)

    def tell(self, state, params, values):
        top = jnp.argmax(values)
        better = values[top] >= state.value
        return state.replace(
            best=jnp.where(better, params[top], state.best), value=jnp.where(better, values[top], state.value)
        )


@struct.dataclass
class ARSState:
    """State of augmented random search."""

    key: jax.Array
    mean: jax.Array
    """float32 `[n]`, called M in the paper."""


@dataclass(frozen=True)
class ARS(Checked):
    """Augmented random search (Mania, Guy and Recht, 1803.07055, algorithm 2), without its normalised states.

    `M += step_size / (top * sigma_R) * sum over the top directions of (r_plus - r_minus) * delta`, where a direction's
    rank is the better of its two returns, and `sigma_R` the standard deviation of the `2 * top` returns used. As in the
    paper: V1 if `top` is all, V1-t if it is fewer, and basic random search (algorithm 1's precursor) without `scale`.
    The directions are computed from the candidates passed to `tell`, so that clipped ones count as evaluated.
    """

    PREFIX: ClassVar[str] = "ars: "

    policy: Policy
    directions: PositiveInt = 4
    """N: pairs of candidates per `ask`."""
    top: int = 0
    """b: pairs used in the update; 0: all."""
    step_size: PositiveFloat = 1.0
    """alpha."""
    noise: PositiveFloat = 0.5
    """nu: standard deviation of a direction in each parameter."""
    scale: bool = True
    """Divide by sigma_R."""
    name: str = "ars"

    def __post_init__(self):
        super().__post_init__()
        between(f"{self.name}: top", self.top, 0, self.directions, remedy="0 for all directions")

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> ARSState:
        """`start`, the first M; None: the middle of the box, zero for linear policies, as in the paper."""
        return ARSState(key, self.policy.middle if start is None else start)

    def ask(self, state):
        key, sample_key = jax.random.split(state.key)
        step = self.noise * jax.random.normal(sample_key, (self.directions, self.policy.num_params))
        pairs = jnp.concatenate([state.mean + step, state.mean - step])
        return self.policy.clip(pairs), state.replace(key=key)

    def center(self, state: ARSState) -> Float[Array, " n"]:
        """M."""
        return state.mean

    def tell(self, state, params, values):
        """`params` are pairs: candidate `i` and candidate `i + directions`."""
        top = self.top or self.directions
        plus, minus = values[: self.directions], values[self.directions :]
        _, used = jax.lax.top_k(jnp.maximum(plus, minus), top)
        delta = (params[: self.directions] - params[self.directions :]) / (2 * self.noise)
        spread = jnp.std(jnp.concatenate([plus[used], minus[used]])) if self.scale else jnp.float32(1)
        slope = (plus[used] - minus[used]) @ delta[used] / top
        change = jnp.where(spread > 0, slope / jnp.where(spread > 0, spread, 1), 0)  # all equal: no information
        mean = state.mean + self.step_size * change
        # a table's M is not rounded: only candidates are
        return state.replace(mean=jnp.clip(mean, self.policy.low, self.policy.high))


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
        key, sample_key = jax.random.split(key)
        mean = self.policy.middle if start is None else start
        return EvolutionState(key, self.strategy.init(sample_key, mean, self.settings))

    def ask(self, state):
        key, sample_key = jax.random.split(state.key)
        params, inner = self.strategy.ask(sample_key, state.inner, self.settings)
        return self.policy.clip(params), EvolutionState(key, inner)

    def center(self, state: EvolutionState) -> Float[Array, " n"]:
        """The mean of the distribution."""
        return state.inner.mean

    def tell(self, state, params, values):
        inner, _ = self.strategy.tell(state.key, params, -values, state.inner, self.settings)
        return state.replace(inner=inner)


@dataclass(frozen=True)
class CMAES(_Evosax, Checked):
    """CMA-ES (Hansen, 1604.00772): adapts a full covariance matrix to the best candidates."""

    PREFIX: ClassVar[str] = "cma_es: "

    policy: Policy
    population: NonNegativeInt = 0
    """Candidates per `ask`; 0: `default_population`."""
    std: NonNegativeFloat = 0.0
    """Initial standard deviation; 0: a quarter of the box's width, so that both bounds are two standard deviations
    away."""
    name: str = "cma_es"

    def __post_init__(self):
        super().__post_init__()
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
class OpenES(_Evosax, Checked):
    """OpenAI's evolution strategy (Salimans et al., 1703.03864): mirrored noise, centred ranks, Adam."""

    PREFIX: ClassVar[str] = "open_es: "

    policy: Policy
    population: PositiveInt = 16
    """Candidates per `ask`; even, since steps are mirrored."""
    std: PositiveFloat = 1.0
    """Standard deviation of the noise in each parameter."""
    learning_rate: PositiveFloat = 0.5
    """Adam's learning rate: about the change of each parameter per update."""
    name: str = "open_es"

    def __post_init__(self):
        super().__post_init__()
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
class CEM(Checked):
    """The cross-entropy method: sample, select the elite, fit the distribution to it.

    A diagonal Gaussian with extra noise against early collapse (Szita and Lorincz, 2006), or, for a table, independent
    probabilities of every state's actions (Rubinstein, 1999), smoothed by `rate`. If all candidates have the same
    value, nothing changes, since a random elite would narrow the distribution without reason (MountainCar's -200).
    """

    PREFIX: ClassVar[str] = "cem: "

    policy: Policy
    population: PositiveInt = 20
    """Candidates per `ask`."""
    elite: int = 5
    """Number of candidates to which the distribution is fitted."""
    std: NonNegativeFloat = 0.0
    """Initial standard deviation; 0: a quarter of the box's width. Not for tables."""
    extra_std: PositiveFloat = 0.1
    """Added to the elite's, in quadrature. Not for tables."""
    rate: Annotated[float, In("(0, 1]")] = 0.5
    """Step size of a table's probabilities towards the elite's frequencies, in (0, 1]."""
    name: str = "cem"

    def __post_init__(self):
        super().__post_init__()
        between(f"{self.name}: elite", self.elite, 1, self.population, remedy="at most the population")

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
        key, sample_key = jax.random.split(state.key)
        shape = (self.population, self.policy.num_params)
        if self.policy.kind == "table":
            samples = jax.random.categorical(sample_key, jnp.log(state.mean), shape=shape) + self.policy.low
        else:
            samples = state.mean + state.std * jax.random.normal(sample_key, shape)
        return self.policy.clip(samples.astype(jnp.float32)), state.replace(key=key)

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


NUMERIC: dict[str, Any] = {kind.name: kind for kind in (RandomSearch, HillClimbing, ARS, CEM, CMAES, OpenES)}
"""The numeric optimizers, by name."""


def make_numeric(name: str, policy: Policy) -> Optimizer:
    """Create the numeric optimizer `name` for a policy, with the defaults of its class.

    **Raises:** `KeyError` for an unknown name, with the nearest one.
    """
    if name not in NUMERIC:
        names = ", ".join(NUMERIC)
        raise KeyError(f"there is no optimizer {name!r}{nearest(name, list(NUMERIC))} (there are {names})")
    return NUMERIC[name](policy)
