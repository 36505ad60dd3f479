"""Action distributions: batched, pytrees, float32."""

from __future__ import annotations

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from envs_jax.spaces import Box


class Distribution(Protocol):
    """Output of a policy: a batch of distributions over actions, leaves `[..., *]`."""

    def noise(self, key: jax.Array) -> jax.Array:
        """Noise for one action per row; depends on shapes only, so it can be drawn before the policy runs.

        The draw of row `i` is a function of `key` and `i` (jax's counters): it does not depend on the number of rows
        or on the devices that hold them."""

    def choose(self, noise: jax.Array) -> jax.Array:
        """Actions that correspond to given noise."""

    def sample(self, key: jax.Array) -> jax.Array:
        """Actions, one per row: `choose(noise(key))`."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability (density) of each row's action, float32; minus infinity for a number that is no action."""

    def entropy(self) -> jax.Array:
        """Entropy of each row in nats, float32."""

    def mode(self) -> jax.Array:
        """Most probable action of each row."""


@struct.dataclass
class Categorical:
    """Distribution over `A` actions, given by unnormalised log-probabilities `[..., A]`."""

    logits: jax.Array

    @classmethod
    def masked(cls, logits: Float[Array, "*B A"], allowed: Bool[Array, "*#B A"]) -> Categorical:
        """Distribution over the allowed actions only; each row needs at least one."""
        floor = jnp.finfo(jnp.float32).min / 2  # finite, so that entropy and gradients stay finite
        return cls(jnp.where(allowed, logits.astype(jnp.float32), floor))

    @property
    def log_probs(self) -> Float[Array, "*B A"]:
        return jax.nn.log_softmax(self.logits.astype(jnp.float32), axis=-1)

    @property
    def probs(self) -> Float[Array, "*B A"]:
        return jax.nn.softmax(self.logits.astype(jnp.float32), axis=-1)

    def noise(self, key):
        return jax.random.gumbel(key, self.logits.shape)

    def choose(self, noise):
        return jnp.argmax(self.logits.astype(jnp.float32) + noise, axis=-1).astype(jnp.int32)

    def sample(self, key):
        return self.choose(self.noise(key))

    def log_prob(self, action):
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])  # a gather's gradient would be a scatter
        log_prob = jnp.sum(jnp.where(chosen, self.log_probs, 0.0), axis=-1)
        return jnp.where((action >= 0) & (action < self.logits.shape[-1]), log_prob, -jnp.inf)

    def entropy(self):
        log_probs = self.log_probs
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def mode(self):
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


def among(distribution: Any, offered: Bool[Array, "*#B A"] | None) -> Any:
    """A categorical distribution over the actions that are offered; None: the distribution itself, of any kind."""
    return distribution if offered is None else Categorical.masked(distribution.logits, offered)


def _normal_log_prob(x: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    z = (x - mean) * jnp.exp(-log_std)
    return -0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)


@struct.dataclass
class Normal:
    """Diagonal Gaussian over actions `[..., D]`; log-probabilities and entropies are summed over `D`."""

    mean: jax.Array
    log_std: jax.Array
    """Broadcast against `mean`."""

    def noise(self, key):
        return jax.random.normal(key, self.mean.shape)

    def choose(self, noise):
        return self.mean + jnp.exp(self.log_std) * noise

    def sample(self, key):
        return self.choose(self.noise(key))

    def log_prob(self, action):
        return jnp.sum(_normal_log_prob(action, self.mean, self.log_std), axis=-1)

    def entropy(self):
        entropies = jnp.broadcast_to(self.log_std, self.mean.shape) + 0.5 * (1 + math.log(2 * math.pi))
        return jnp.sum(entropies, axis=-1)

    def mode(self):
        return self.mean


@struct.dataclass
class TanhNormal:
    """Diagonal Gaussian squashed by tanh into the box `(low, high)`.

    `log_prob` recovers the Gaussian's value `x` from the action. A float32 action at distance `d` from the nearer bound
    of `(-1, 1)` determines `x` within `2e-7 / d`: 0.002 at `|x| = 5`, 0.1 at 7. From `|x|` = 7.25 on (`d` = 1e-6) all
    actions count as that value, so that gradients stay finite. A number whose bounds are equal is no choice, and has no
    part in densities. Two equal densities give an action a ratio of 1 whatever
    the rounding of `x`, since both read the same value; where they differ, their ratio is that at the rounded `x`.
    """

    mean: jax.Array
    """Before the squashing."""
    log_std: jax.Array
    low: jax.Array
    """Bounds of actions, broadcast against `mean`; finite."""
    high: jax.Array

    @property
    def _half(self) -> jax.Array:
        return (self.high - self.low) / 2

    @property
    def _free(self) -> jax.Array:
        return self.high > self.low

    def _squash(self, x: jax.Array) -> jax.Array:
        return self.low + self._half * (jnp.tanh(x) + 1)

    def _log_slope(self, x: jax.Array) -> jax.Array:
        """log of d action / d x: log(half) + log(1 - tanh(x)^2), in a form without cancellation."""
        return jnp.log(jnp.where(self._free, self._half, 1)) + 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))

    def noise(self, key):
        return jax.random.normal(key, self.mean.shape)

    def choose(self, noise):
        return self._squash(self.mean + jnp.exp(self.log_std) * noise)

    def sample(self, key):
        return self.choose(self.noise(key))

    def log_prob(self, action):
        share = (action - self.low) / jnp.where(self._free, self._half, 1)
        x = jnp.arctanh(jnp.clip(share - 1, -1 + 1e-6, 1 - 1e-6))
        density = _normal_log_prob(x, self.mean, self.log_std) - self._log_slope(x)
        return jnp.sum(jnp.where(self._free, density, 0), axis=-1)

    def entropy(self):
        """Entropy of the Gaussian plus the log-slope at the mean; there is no closed form."""
        gaussian = self.log_std + 0.5 * (1 + math.log(2 * math.pi))
        return jnp.sum(jnp.where(self._free, gaussian + self._log_slope(self.mean), 0), axis=-1)

    def mode(self):
        """Squashed mean, which is the median."""
        return self._squash(self.mean)


@struct.dataclass
class Uniform:
    """Uniform distribution over the box `[low, high]`, bounds `[..., D]`."""

    low: jax.Array
    high: jax.Array

    def noise(self, key):
        return jax.random.uniform(key, self.low.shape)

    def choose(self, noise):
        return self.low + (self.high - self.low) * noise

    def sample(self, key):
        return self.choose(self.noise(key))

    def log_prob(self, action):
        inside = jnp.all((action >= self.low) & (action <= self.high), axis=-1)
        return jnp.where(inside, -self.entropy(), -jnp.inf)

    def entropy(self):
        return jnp.sum(jnp.log(self.high - self.low), axis=-1)

    def mode(self):
        """Middle of the box: every action is as probable as any other."""
        return (self.low + self.high) / 2


@struct.dataclass
class UniformIntegers:
    """Uniform distribution over the integers of the box `[low, high]`, bounds `[..., D]` of their type; or over truth
    values."""

    low: jax.Array
    high: jax.Array

    def noise(self, key):
        """The action itself."""
        return Box(self.low, self.high, self.low.shape, self.low.dtype).sample(key)

    def choose(self, noise):
        return noise

    def sample(self, key):
        return self.noise(key)

    def log_prob(self, action):
        member = (action >= self.low) & (action <= self.high) & (action == jnp.floor(action))
        return jnp.where(jnp.all(member, axis=-1), -self.entropy(), -jnp.inf)

    def entropy(self):
        low, high = (x.astype(jnp.float32) for x in (self.low, self.high))
        return jnp.sum(jnp.log(high - low + 1), axis=-1)

    def mode(self):
        """Lowest action: every one is as probable as any other."""
        return self.low
