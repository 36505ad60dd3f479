"""Small actor-critics in flax.linen: MLP, CNN and GRU, for discrete and for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces
from llmrl_jax.rl.distributions import Categorical, Normal, TanhNormal


def flatten(obs: Any, batch_dims: int) -> jax.Array:
    """Every leaf of an observation as one float32 vector, the leading `batch_dims` axes kept."""
    leaves = [x.reshape(*x.shape[:batch_dims], -1).astype(jnp.float32) for x in jax.tree.leaves(obs)]
    return jnp.concatenate(leaves, axis=-1)


def image(obs: Any, batch_dims: int) -> jax.Array:
    """The observation itself, or its `image` where it is a dict, as float32 `[..., H, W, C]`, numbers as they are."""
    return (obs["image"] if isinstance(obs, dict) else obs).astype(jnp.float32)


def _dense(features: int, scale: float, name: str | None = None) -> nn.Dense:
    return nn.Dense(features, kernel_init=nn.initializers.orthogonal(scale), name=name)


def _side_by_side(scale: float) -> Callable:
    """Two orthogonal matrices beside each other, as one kernel `[inputs, 2 x features]`."""
    orthogonal = nn.initializers.orthogonal(scale)

    def init(key, shape, dtype=jnp.float32):
        half = (shape[0], shape[1] // 2)
        return jnp.concatenate([orthogonal(k, half, dtype) for k in jax.random.split(key)], axis=1)

    return init


class Towers(nn.Module):
    """Two towers of dense layers over one input, one for the actor and one for the critic; they share no weight.

    Their first layers are one product: small networks pay for operations more than for arithmetic.
    """

    hidden: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, x):
        activate = getattr(nn, self.activation)
        first, *rest = self.hidden
        x = activate(nn.Dense(2 * first, kernel_init=_side_by_side(math.sqrt(2)), name="first")(x))
        towers = jnp.split(x, 2, axis=-1)
        for i, features in enumerate(rest):
            towers = [
                activate(_dense(features, math.sqrt(2), name=f"{who}_{i + 1}")(x))
                for who, x in zip(("actor", "critic"), towers)
            ]
        return towers


class Head(nn.Module):
    """A linear layer of few outputs, one product of a vector for each: XLA is slow at thin matrices' gradients."""

    outputs: int
    scale: float

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.outputs)
        kernel = self.param("kernel", nn.initializers.orthogonal(self.scale), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
        if self.outputs > 8:
            return x @ kernel + bias
        return jnp.stack([x @ kernel[:, i] for i in range(self.outputs)], axis=-1) + bias


class Convolutions(nn.Module):
    """3 x 3 convolutions with ReLU over `[..., H, W, C]`, flattened, then one dense layer."""

    channels: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        gain = nn.initializers.orthogonal(math.sqrt(2))
        for channels in self.channels:
            x = nn.relu(nn.Conv(channels, (3, 3), kernel_init=gain)(x))
        return nn.relu(_dense(self.features, math.sqrt(2))(x.reshape(*x.shape[:-3], -1)))


class Memory(nn.Module):
    """A GRU along the leading axis, emptied where an episode starts."""

    features: int

    @nn.compact
    def __call__(self, carry, x, first):
        cell = nn.GRUCell(self.features, name="gru")

        def step(cell, carry, inputs):
            x, first = inputs
            return cell(jnp.where(first[:, None], 0.0, carry), x)

        return nn.scan(step, variable_broadcast="params", split_rngs={"params": False})(cell, carry, (x, first))


class ActorCritic(nn.Module):
    """Encoder, memory (if any), then an actor and a critic that share nothing else."""

    outputs: int
    """Logits, or numbers in a continuous action."""
    continuous: bool
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    memory: int
    activation: str

    @nn.compact
    def __call__(self, x, carry, first):
        """**Arguments:** `x`, float32 `[T, B, ...]`; `carry`, `[B, memory]` or `()`; `first`, bool `[T, B]`.
        **Returns:** the head `[T, B, outputs]`, log-deviations `[outputs]` or None, the value `[T, B]`, the carry."""
        if self.channels:
            x = Convolutions(self.channels, self.hidden[0], name="encoder")(x)
        if self.memory:
            if not self.channels:
                x = getattr(nn, self.activation)(_dense(self.memory, math.sqrt(2), name="encoder")(x))
            carry, x = Memory(self.memory, name="memory")(carry, x, first)
        for_actor, for_critic = Towers(self.hidden, self.activation, name="towers")(x)
        head = Head(self.outputs, 0.01, name="actor")(for_actor)
        value = Head(1, 1.0, name="critic")(for_critic)[..., 0]
        log_std = self.param("log_std", nn.initializers.zeros, (self.outputs,)) if self.continuous else None
        return head, log_std, value, carry


class NetworkPolicy:
    """A `Policy` made of a small network: an MLP by default, a CNN with `channels`, recurrent with `memory`.

    Discrete actions get a `Categorical`; a box with finite bounds a `TanhNormal`, another box a `Normal`. Weights are
    orthogonal with gain sqrt(2), 0.01 for the actor's output and 1 for the critic's, as in purejaxrl and CleanRL.
    """

    def __init__(
        self,
        action_space: spaces.Space,
        *,
        hidden: tuple[int, ...] = (64, 64),
        channels: tuple[int, ...] = (),
        memory: int = 0,
        activation: Literal["tanh", "relu"] = "tanh",
        features: Callable[[Any, int], jax.Array] | None = None,
    ):
        """**Arguments:** `action_space`, of one environment; `hidden`, widths of the actor's and of the critic's dense
        layers; `channels`, of the convolutions, empty for none; `memory`, units of a GRU, 0 for none; `activation`;
        `features`, from an observation and its number of batch axes to float32 features (default `image` with
        convolutions, else `flatten`).
        **Raises:** `TypeError` for an action space that is neither `Discrete` nor a float `Box` of one axis."""
        self.low = self.high = None
        if isinstance(action_space, spaces.Discrete):
            outputs = action_space.n
        elif isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
            outputs = action_space.shape[0]
            low, high = (np.broadcast_to(np.float32(x), (outputs,)) for x in (action_space.low, action_space.high))
            if np.all(np.isfinite(low) & np.isfinite(high)):
                self.low, self.high = low, high
        else:
            raise TypeError(f"no network for the action space {action_space}: Discrete or a Box of one axis is needed")
        continuous = not isinstance(action_space, spaces.Discrete)
        self.features = features or (image if channels else flatten)
        self.memory, self.recurrent = memory, memory > 0
        self.network = ActorCritic(outputs, continuous, tuple(hidden), tuple(channels), memory, activation)

    def init(self, key, obs):
        x = self.features(obs, 1)[None]
        batch = x.shape[1]
        variables = jax.jit(self.network.init)(key, x, self.initial_carry(batch), jnp.zeros((1, batch), bool))
        return variables["params"], ()

    def initial_carry(self, batch_size):
        return jnp.zeros((batch_size, self.memory), jnp.float32) if self.memory else ()

    def _apply(self, params, x, carry, first):
        head, log_std, value, carry = cast(tuple, self.network.apply({"params": params}, x, carry, first))
        if log_std is None:
            return Categorical(head), value, carry
        log_std = jnp.broadcast_to(log_std, head.shape)
        if self.low is None or self.high is None:
            return Normal(head, log_std), value, carry
        low, high = (jnp.broadcast_to(x, head.shape) for x in (self.low, self.high))
        return TanhNormal(head, log_std, low, high), value, carry

    def step(self, params, frozen, obs, carry, first):
        distribution, value, carry = self._apply(params, self.features(obs, 1)[None], carry, first[None])
        return jax.tree.map(lambda x: x[0], distribution), value[0], carry

    def unroll(self, params, frozen, obs, carry, first):
        distribution, value, _ = self._apply(params, self.features(obs, 2), carry, first)
        return distribution, value
