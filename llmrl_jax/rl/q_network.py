"""Small Q-networks in flax.linen, for environments with discrete actions: MLP and CNN, plain and dueling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from envs_jax import spaces, tracing
from envs_jax.actions import mask_of
from envs_jax.env import Environment
from llmrl_jax.core.checks import refuse_unread
from llmrl_jax.rl.networks import Convolutions, Head, NetworkConfig, dense, flatten, image, with_one_hots
from llmrl_jax.rl.policy import epsilon_greedy, over_offered


class QNetwork(nn.Module):
    """An encoder with one output value per action."""

    outputs: int
    """Number of actions."""
    hidden: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    dueling: bool
    """Whether the value is that of the state plus the action's advantage minus the mean advantage (Wang et al.,
    1511.06581, eq. 9)."""

    @nn.compact
    def __call__(self, x):
        """**Arguments:** `x`, float32 `[B, ...]`. **Returns:** float32 `[B, outputs]`."""
        if self.channels:
            x = Convolutions(self.channels, self.hidden[0], name="encoder")(x)
        for i, features in enumerate(self.hidden):
            x = getattr(nn, self.activation)(dense(features, math.sqrt(2), name=f"hidden_{i}")(x))
        if not self.dueling:
            return Head(self.outputs, 1.0, name="q")(x)
        advantage = Head(self.outputs, 1.0, name="advantage")(x)
        return Head(1, 1.0, name="value")(x) + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class NetworkQPolicy:
    """A `llmrl_jax.rl.policy.QPolicy` made of a small network: an MLP by default, a CNN with `channels`."""

    recurrent = False

    def __init__(
        self,
        num_actions: int,
        *,
        hidden: tuple[int, ...] = (64, 64),
        channels: tuple[int, ...] = (),
        activation: str = "relu",
        dueling: bool = False,
        features: Callable[[Any, int], jax.Array] | None = None,
        epsilon: float | None = 0.05,
        temperature: float = 1.0,
    ):
        """**Arguments:** `num_actions`; `hidden`, widths of the dense layers; `channels`, of the convolutions, empty
        for none; `activation`, `relu` or `tanh`; `dueling`, see `QNetwork`; `features`, from an observation and its
        number of batch axes to float32 features (default `image` with convolutions, else `flatten`). Actions after
        training (`step`): `epsilon`, the probability of a random one, or None for a softmax at `temperature`."""
        self.epsilon, self.temperature = epsilon, temperature
        self.features = features or (image if channels else flatten)
        self.network = QNetwork(num_actions, tuple(hidden), tuple(channels), activation, dueling)

    def init(self, key, obs):
        return jax.jit(self.network.init)(key, self.features(obs, 1))["params"], ()

    def initial_carry(self, batch_size):
        return ()

    @tracing.default_types
    def q(self, params, frozen, obs):
        values: Any = self.network.apply({"params": params}, self.features(obs, 1))
        mask = mask_of(obs)
        return values if mask is None else jnp.where(mask, values, -jnp.inf)

    @tracing.default_types
    def step(self, params, frozen, obs, carry, first):
        q = self.q(params, frozen, obs)
        if self.epsilon is None:
            distribution = over_offered(q / self.temperature, obs)
        else:
            distribution = epsilon_greedy(q, obs, self.epsilon)
        return distribution, jnp.max(q, axis=-1), carry


def network_q_policy(env: Environment, env_params: Any, network: NetworkConfig, config: Any) -> NetworkQPolicy:
    """The Q-policy of a configuration for an environment; `config`, a `llmrl_jax.rl.dqn_config.DQNConfig`, sets how
    actions are drawn after training.

    **Raises:** `ValueError` for an environment whose actions are not discrete, or options that it does not read.
    """
    space = env.action_space(env_params)
    if not isinstance(space, spaces.Discrete):
        kind = f"a {type(space).__name__} of shape {getattr(space, 'shape', ())}"
        raise ValueError(
            f"dqn needs a finite number of actions, but those of {env.id} are {kind}: choose another algorithm, as in "
            "--algo ppo"
        )
    refuse_unread(network, ["memory"], "dqn")
    return NetworkQPolicy(
        space.n,
        hidden=network.hidden,
        channels=network.channels,
        activation="relu" if network.activation == "auto" else network.activation,
        dueling=network.dueling,
        features=None if network.channels else with_one_hots(env.observation_space(env_params)),
        epsilon=config.epsilon_end if config.acting == "epsilon" else None,
        temperature=config.temperature,
    )
