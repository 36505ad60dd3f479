"""Actors and critics of the offline learners and of SAC: small MLPs for continuous and for discrete actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from llmrl_jax.rl.distributions import Categorical, Distribution, Normal, TanhNormal
from llmrl_jax.rl.mlp import beside, ensemble, init_ensemble, init_mlp, mlp
from llmrl_jax.rl.offline_data import ActionKind


@struct.dataclass
class Fixed:
    """A distribution that has one action `[..., D]`; it has no density."""

    action: jax.Array

    def noise(self, key):
        return jnp.zeros_like(self.action)

    def choose(self, noise):
        return self.action

    def sample(self, key):
        return self.action

    def log_prob(self, action):
        return jnp.where(jnp.all(action == self.action, axis=-1), jnp.inf, -jnp.inf)

    def entropy(self):
        return jnp.full(self.action.shape[:-1], -jnp.inf)

    def mode(self):
        return self.action


@struct.dataclass
class Scaled:
    """A distribution over actions in [-1, 1], clipped there, as one over actions in the bounds of a world."""

    inner: Any
    actions: ActionKind = struct.field(pytree_node=False)

    def noise(self, key):
        return self.inner.noise(key)

    def choose(self, noise):
        return self.actions.outward(self.inner.choose(noise))

    def sample(self, key):
        return self.choose(self.noise(key))

    def log_prob(self, action):
        """Density in the scale of [-1, 1]."""
        return self.inner.log_prob(self.actions.inward(action))

    def entropy(self):
        """In the scale of [-1, 1]."""
        return self.inner.entropy()

    def mode(self):
        return self.actions.outward(self.inner.mode())


@dataclass(frozen=True)
class DeterministicActor:
    """`tanh` of an MLP."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"

    def init(self, key: jax.Array, inputs: int) -> Any:
        return init_mlp(key, inputs, self.hidden, self.width)

    def __call__(self, params: Any, x: Float[Array, "*B n"]) -> Float[Array, "*B D"]:
        return jnp.tanh(mlp(params, x, self.activation))

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> Distribution:
        return Fixed(self(params, x))


@dataclass(frozen=True)
class GaussianActor:
    """A Gaussian whose mean is `tanh` of an MLP, with deviations that are the same in every state."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"
    low: float = -20.0
    """Bounds of the log of the deviation."""
    high: float = 2.0
    sigmoid: bool = False
    """Whether the log of the deviation moves between its bounds as a sigmoid of its parameter (d3rlpy), or is the
    parameter, clipped (CORL)."""

    def init(self, key: jax.Array, inputs: int) -> Any:
        return {"mean": init_mlp(key, inputs, self.hidden, self.width), "log_std": jnp.zeros(self.width)}

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> Distribution:
        mean, raw = jnp.tanh(mlp(params["mean"], x, self.activation)), params["log_std"]
        between = self.low + (self.high - self.low) * jax.nn.sigmoid(raw)
        log_std = between if self.sigmoid else jnp.clip(raw, self.low, self.high)
        return Normal(mean, jnp.broadcast_to(log_std, mean.shape))


@dataclass(frozen=True)
class SquashedActor:
    """A Gaussian squashed by tanh into [-1, 1], whose deviations depend on the state (SAC)."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"
    low: float = -20.0
    """Bounds of the log of the deviation."""
    high: float = 2.0

    def init(self, key: jax.Array, inputs: int) -> Any:
        return init_mlp(key, inputs, self.hidden, 2 * self.width)

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> TanhNormal:
        mean, log_std = jnp.split(mlp(params, x, self.activation), 2, axis=-1)
        one = jnp.ones_like(mean)
        return TanhNormal(mean, jnp.clip(log_std, self.low, self.high), -one, one)

    def sample(
        self, params: Any, x: Float[Array, "*B n"], key: jax.Array
    ) -> tuple[Float[Array, "*B D"], Float[Array, "*B"]]:
        """An action per row and its log-density, from the noise that made it: `TanhNormal.log_prob` would have to
        recover that from the action, where rounding may have lost it."""
        found = self.distribution(params, x)
        noise = found.noise(key)
        raw = found.mean + jnp.exp(found.log_std) * noise
        density = -0.5 * noise**2 - found.log_std - 0.5 * math.log(2 * math.pi) - found._log_slope(raw)
        return jnp.tanh(raw), jnp.sum(density, axis=-1)


@dataclass(frozen=True)
class CategoricalActor:
    """Unnormalised log-probabilities of discrete actions."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"

    def init(self, key: jax.Array, inputs: int) -> Any:
        return init_mlp(key, inputs, self.hidden, self.width)

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> Categorical:
        return Categorical(mlp(params, x, self.activation))


@dataclass(frozen=True)
class Critics:
    """An ensemble of action values: of a continuous action beside the state, or of every discrete action."""

    actions: ActionKind
    hidden: tuple[int, ...]
    activation: str = "relu"
    count: int = 2
    """Members."""

    def init(self, key: jax.Array, inputs: int) -> Any:
        if self.actions.discrete:
            return init_ensemble(key, self.count, inputs, self.hidden, self.actions.count)
        return init_ensemble(key, self.count, inputs + self.actions.width, self.hidden, 1)

    def every(self, params: Any, x: Float[Array, "*B n"]) -> Float[Array, "K *B A"]:
        """The values of all discrete actions."""
        return ensemble(params, x, self.activation)

    def __call__(self, params: Any, x: Float[Array, "B n"], action: jax.Array) -> jax.Array:
        """The values of one action per row, `[K, B]`, or of `S` continuous ones, `[B, S, D]`, as `[K, B, S]`."""
        if self.actions.discrete:
            chosen = action[..., None] == jnp.arange(self.actions.count)
            return jnp.sum(jnp.where(chosen, self.every(params, x), 0.0), axis=-1)
        return jax.vmap(lambda one: beside(one, x, action, self.activation)[..., 0])(params)
