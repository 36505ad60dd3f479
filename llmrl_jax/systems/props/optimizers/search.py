"""Random search, hill climbing, and augmented random search: baselines for a model on the same parameters."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from llmrl_jax.core.checks import above, at_least, between
from llmrl_jax.systems.props.optimizers.base import Bounds, bounded
from llmrl_jax.systems.props.policies import Policy


@dataclass(frozen=True)
class RandomSearch:
    """Independent candidates, drawn according to the policy's `init`; does not learn."""

    policy: Policy
    population: int = 8
    """Candidates per `ask`."""
    name: str = "random_search"

    def __post_init__(self):
        at_least(f"{self.name}: population", self.population, 1)

    def init(self, key: jax.Array) -> jax.Array:
        return key

    def ask(self, state):
        state, draw = jax.random.split(state)
        return self.policy.sample(draw, self.population), state

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
class HillClimbing:
    """Random steps around the best candidate so far; the best of them replaces it if it is at least as good.

    Equal values are accepted so that it moves across plateaus (MountainCar's -200). For a table, a step changes the
    action of one state.
    """

    policy: Policy
    population: int = 8
    """Candidates per `ask`."""
    std: float = 1.0
    """Standard deviation of a step in each parameter; not for tables."""
    bounds: Bounds = "clip"
    name: str = "hill_climbing"

    def __post_init__(self):
        at_least(f"{self.name}: population", self.population, 1)
        above(f"{self.name}: std", self.std, 0)

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> ClimberState:
        """`start`, the initial candidate; None: the best of `population` draws from the policy's `init`."""
        key, draw = jax.random.split(key)
        if start is None:
            first = self.policy.sample(draw, self.population)
        else:
            first = self._around(draw, start).at[0].set(start)
        return ClimberState(key, first[0], jnp.float32(-jnp.inf), bounded(self.policy, first, self.bounds))

    def _around(self, key: jax.Array, best: Float[Array, " n"]) -> Float[Array, "P n"]:
        if self.policy.kind == "table":
            return jax.vmap(lambda k: self._flipped(k, best))(jax.random.split(key, self.population))
        return best + self.std * jax.random.normal(key, (self.population, self.policy.num_params))

    def _flipped(self, key: jax.Array, best: Float[Array, " n"]) -> Float[Array, " n"]:
        where, which = jax.random.split(key)
        actions = self.policy.choices
        shift = jax.random.randint(which, (), 1, actions) if actions > 1 else 0
        other = (best - self.policy.low + shift) % actions + self.policy.low
        flip = jnp.arange(best.shape[0]) == jax.random.randint(where, (), 0, best.shape[0])
        return jnp.where(flip, other, best)

    def ask(self, state):
        key, draw = jax.random.split(state.key)
        moved = bounded(self.policy, self._around(draw, state.best), self.bounds)
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
class ARS:
    """Augmented random search (Mania, Guy and Recht, 1803.07055, algorithm 2), without its normalised states.

    `M += step_size / (top * sigma_R) * sum over the top directions of (r_plus - r_minus) * delta`, where a direction's
    rank is the better of its two returns, and `sigma_R` the standard deviation of the `2 * top` returns used. As in the
    paper: V1 if `top` is all, V1-t if it is fewer, and basic random search (algorithm 1's precursor) without `scale`.
    The directions are computed from the candidates passed to `tell`, so that clipped ones count as evaluated.
    """

    policy: Policy
    directions: int = 4
    """N: pairs of candidates per `ask`."""
    top: int = 0
    """b: pairs used in the update; 0: all."""
    step_size: float = 1.0
    """alpha."""
    noise: float = 0.5
    """nu: standard deviation of a direction in each parameter."""
    scale: bool = True
    """Divide by sigma_R."""
    bounds: Bounds = "clip"
    name: str = "ars"

    def __post_init__(self):
        at_least(f"{self.name}: directions", self.directions, 1)
        above(f"{self.name}: step_size", self.step_size, 0)
        above(f"{self.name}: noise", self.noise, 0)
        between(f"{self.name}: top", self.top, 0, self.directions, remedy="0 for all directions")

    def init(self, key: jax.Array, start: Float[Array, " n"] | None = None) -> ARSState:
        """`start`, the first M; None: the middle of the box, zero for linear policies, as in the paper."""
        return ARSState(key, self.policy.middle if start is None else start)

    def ask(self, state):
        key, draw = jax.random.split(state.key)
        step = self.noise * jax.random.normal(draw, (self.directions, self.policy.num_params))
        pairs = jnp.concatenate([state.mean + step, state.mean - step])
        return bounded(self.policy, pairs, self.bounds), state.replace(key=key)

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
        inside = jnp.clip(mean, self.policy.low, self.policy.high) if self.bounds == "clip" else mean
        return state.replace(mean=inside)
