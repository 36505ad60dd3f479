"""Actors and critics of the offline learners and of SAC: small MLPs for continuous and for discrete actions, as
plain trees of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from llmrl_jax.kernels.products import thin_matmul
from llmrl_jax.rl.distributions import Categorical, Distribution, Normal, TanhNormal
from llmrl_jax.rl.networks import uniform
from llmrl_jax.rl.offline_data import ActionKind, Batch


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
    """A distribution over actions in [-1, 1], clipped there, as one over actions in the bounds of an environment."""

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
    """A Gaussian whose mean is `tanh` of an MLP, with standard deviations that do not depend on the state."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"
    low: float = -20.0
    """Bounds of the log standard deviation."""
    high: float = 2.0
    sigmoid: bool = False
    """Whether the log standard deviation is a sigmoid of its parameter between its bounds (d3rlpy), or the parameter,
    clipped (CORL)."""

    def init(self, key: jax.Array, inputs: int) -> Any:
        return {"mean": init_mlp(key, inputs, self.hidden, self.width), "log_std": jnp.zeros(self.width)}

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> Distribution:
        mean, raw = jnp.tanh(mlp(params["mean"], x, self.activation)), params["log_std"]
        bounded = self.low + (self.high - self.low) * jax.nn.sigmoid(raw)
        log_std = bounded if self.sigmoid else jnp.clip(raw, self.low, self.high)
        return Normal(mean, jnp.broadcast_to(log_std, mean.shape))


@dataclass(frozen=True)
class SquashedActor:
    """A Gaussian squashed by tanh into [-1, 1], whose standard deviations depend on the state (SAC)."""

    width: int
    hidden: tuple[int, ...]
    activation: str = "relu"
    low: float = -20.0
    """Bounds of the log standard deviation."""
    high: float = 2.0

    def init(self, key: jax.Array, inputs: int) -> Any:
        return init_mlp(key, inputs, self.hidden, 2 * self.width)

    def distribution(self, params: Any, x: Float[Array, "*B n"]) -> TanhNormal:
        mean, log_std = jnp.split(mlp(params, x, self.activation), 2, axis=-1)
        ones = jnp.ones_like(mean)
        return TanhNormal(mean, jnp.clip(log_std, self.low, self.high), -ones, ones)

    def sample(
        self, params: Any, x: Float[Array, "*B n"], key: jax.Array
    ) -> tuple[Float[Array, "*B D"], Float[Array, "*B"]]:
        """An action per row and its log-density, from the noise that made it: `TanhNormal.log_prob` would have to
        recover that from the action, where rounding may have lost it."""
        distribution = self.distribution(params, x)
        noise = distribution.noise(key)
        raw = distribution.mean + jnp.exp(distribution.log_std) * noise
        density = -0.5 * noise**2 - distribution.log_std - 0.5 * math.log(2 * math.pi) - distribution._log_slope(raw)
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

    def all_values(self, params: Any, x: Float[Array, "*B n"]) -> Float[Array, "K *B A"]:
        """The values of all discrete actions."""
        return ensemble(params, x, self.activation)

    def __call__(self, params: Any, x: Float[Array, "B n"], action: jax.Array) -> jax.Array:
        """The values of one action per row, `[K, B]`, or of `S` continuous ones, `[B, S, D]`, as `[K, B, S]`."""
        if self.actions.discrete:
            chosen = action[..., None] == jnp.arange(self.actions.count)
            return jnp.sum(jnp.where(chosen, self.all_values(params, x), 0.0), axis=-1)
        return jax.vmap(lambda layers: mlp_on_concat(layers, x, action, self.activation)[..., 0])(params)

    def loss(self, params: Any, target: Float[Array, " B"], batch: Batch) -> Float[Array, ""]:
        """Mean squared error of the values of the recorded actions, summed over members."""
        return jnp.sum(jnp.mean((self(params, batch.obs, batch.action) - target) ** 2, axis=1))


# --- multilayer perceptrons -------------------------------------------------------------------------------------------


def init_mlp(key: jax.Array, inputs: int, hidden: Sequence[int], outputs: int) -> list[dict[str, jax.Array]]:
    """The layers of an MLP with PyTorch's initial values, each `{"kernel": [in, out], "bias": [out]}`."""
    sizes = [inputs, *hidden, outputs]
    layers = []
    for layer, fan_in, fan_out in zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:]):
        kernel_key, bias_key = jax.random.split(layer)
        draw = uniform(fan_in)
        layers.append({"kernel": draw(kernel_key, (fan_in, fan_out)), "bias": draw(bias_key, (fan_out,))})
    return layers


def mlp(layers: list[dict[str, jax.Array]], x: Float[Array, "*B n"], activation: str = "relu") -> Float[Array, "*B m"]:
    """The outputs of an MLP; `activation`, a name in `jax.nn`, follows every layer but the last."""
    for layer in layers[:-1]:
        x = getattr(jax.nn, activation)(x @ layer["kernel"] + layer["bias"])
    return thin_matmul(x, layers[-1]["kernel"]) + layers[-1]["bias"]


def mlp_on_concat(
    layers: list[dict[str, jax.Array]], x: Float[Array, "B n"], y: jax.Array, activation: str = "relu"
) -> jax.Array:
    """The outputs of an MLP for `x` and `y` side by side, without joining them.

    **Arguments:** `y`, `[B, d]`, or `[B, S, d]`: several for each row of `x`, whose part of the first layer is then
    computed once. **Returns:** `[B, m]` or `[B, S, m]`.
    """
    first, kernel = layers[0], layers[0]["kernel"]
    x_part = x @ kernel[: x.shape[-1]] + first["bias"]
    x_part = x_part[:, None] if y.ndim == 3 else x_part
    h = getattr(jax.nn, activation)(x_part + y @ kernel[x.shape[-1] :])
    outputs = mlp(layers[1:], h.reshape(-1, h.shape[-1]), activation)  # one axis of rows: XLA's fastest products
    return outputs.reshape(*y.shape[:-1], -1)


def init_ensemble(key: jax.Array, count: int, inputs: int, hidden: Sequence[int], outputs: int) -> Any:
    """`count` MLPs with different initial values: leaves `[count, ...]`."""
    return jax.vmap(lambda k: init_mlp(k, inputs, hidden, outputs))(jax.random.split(key, count))


def ensemble(layers: Any, x: Float[Array, "*B n"], activation: str = "relu") -> Float[Array, "K *B m"]:
    """The outputs of every member for the same inputs."""
    return jax.vmap(lambda member: mlp(member, x, activation))(layers)
