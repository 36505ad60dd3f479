"""Conservative Q-learning (Kumar et al., 2006.04779) for discrete actions: double DQN plus `log sum exp Q - Q(s, a)`.

Equations and defaults are d3rlpy's DiscreteCQL; KALM has alpha 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from llmrl_jax.core.checks import Fraction, NonNegativeFloat, PositiveInt
from llmrl_jax.rl.actors import Critics
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, OfflineConfig, needs_discrete
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


@dataclass(frozen=True)
class DiscreteConfig(OfflineConfig):
    """Options shared by `discrete_cql` and `discrete_bcq`, with d3rlpy's defaults."""

    batch_size: PositiveInt = 32
    learning_rate: NonNegativeFloat = 6.25e-5
    """Learning rate."""
    gamma: Fraction = 0.99
    """Discount per step."""
    critics: PositiveInt = 1
    """Critics; the target is that of the smallest value."""
    target_every: PositiveInt = 8_000
    """Gradient steps between copies of the critics to the target critics."""


@dataclass(frozen=True)
class DiscreteCQLConfig(DiscreteConfig):
    """Hyper-parameters, with d3rlpy's defaults."""

    NAME: ClassVar[str] = "discrete_cql"
    alpha: NonNegativeFloat = 1.0
    """Weight of the conservative term; KALM has 10."""


def double_targets(
    critics: Critics, params: Any, target: Any, batch: Batch, gamma: Any, allowed: jax.Array | None = None
) -> Float[Array, " B"]:
    """`r + gamma (1 - terminated) min_k Q'_k(s', a')` with `a'` the action of the largest mean of the critics.

    **Arguments:** `allowed`, bool `[B, A]`, the actions that may be chosen (None: all).
    """
    online = jnp.mean(critics.all_values(params, batch.next_obs), axis=0)
    best = jnp.argmax(online if allowed is None else jnp.where(allowed, online, -jnp.inf), axis=-1)
    value = jnp.min(critics(target, batch.next_obs, best), axis=0)
    return batch.reward + gamma * jnp.where(batch.terminated, 0.0, value)


def greedy(values: Float[Array, "B A"], allowed: Bool[Array, "B A"] | None) -> Categorical:
    """The allowed action of the largest value, with probability 1; None: all are allowed."""
    values = values if allowed is None else jnp.where(allowed, values, -jnp.inf)
    best = jnp.argmax(values, axis=-1, keepdims=True) == jnp.arange(values.shape[-1])
    return Categorical.masked(jnp.zeros_like(values), best)


def huber(error: Float[Array, "K B"]) -> Float[Array, ""]:
    """The mean Huber loss with its corner at 1, summed over critics."""
    return jnp.sum(jnp.mean(optax.losses.huber_loss(error), axis=1))  # type: ignore[arg-type]


class DiscreteCQL:
    """Conservative Q-learning for discrete actions."""

    def __init__(self, config: DiscreteCQLConfig, actions: ActionKind):
        needs_discrete(config, actions)
        self.config = config
        self.critics = Critics(actions, config.hidden, config.activation, config.critics)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        return TrainState.create({"critic": self.critics.init(key, batch.obs.shape[-1])}, ["critic"])

    def loss(
        self, params: Any, target: Float[Array, " B"], batch: Batch, alpha: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Huber's loss, plus `alpha mean [log sum_a exp Q(s, a) - Q(s, recorded)]`, both summed over critics; `a` are
        the actions that are offered."""
        q_values = self.critics.all_values(params, batch.obs)
        chosen = jnp.sum(jnp.where(batch.action[:, None] == jnp.arange(q_values.shape[-1]), q_values, 0.0), axis=-1)
        td = huber(chosen - target)
        gap = jnp.sum(jnp.mean(jax.nn.logsumexp(q_values, axis=-1, where=batch.mask) - chosen, axis=1))
        return td + alpha * gap, {"td_loss": td, "gap": gap, "q_mean": jnp.mean(chosen)}

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h, params = context.hparams, state.params["critic"]
        target = double_targets(self.critics, params, state.target["critic"], batch, h["gamma"], batch.next_mask)
        (loss, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(params, target, batch, h["alpha"])
        state = state.apply_gradients("critic", grads, h["learning_rate"])
        state = state.hard_update((context.count + 1) % self.config.target_every == 0, "critic")
        return state, metrics | {"critic_loss": loss, "target_mean": jnp.mean(target)}

    def act(self, params, x, mask=None):
        """Best action of each row, always."""
        return greedy(jnp.mean(self.critics.all_values(params["critic"], x), axis=0), mask)


ALGORITHM = OfflineAlgorithm(DiscreteCQLConfig, DiscreteCQL)
