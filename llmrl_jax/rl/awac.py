"""AWAC (Nair et al., 2006.09359): cloning of recorded actions, weighted by exp(advantage / lambda).

Defaults are d3rlpy's, as is the normalisation of the weights over the batch (a softmax). Of d3rlpy's two distributions,
one for acting and one for targets, only the first is used: a Gaussian around `tanh` of a network, with actions clipped.
Targets have no entropy; d3rlpy's, which it inherits from SAC, subtract the log density.
With discrete actions all expectations over them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llmrl_jax.core.checks import PositiveFloat, PositiveInt, refuse_unread
from llmrl_jax.rl.actors import CategoricalActor, Critics, GaussianActor
from llmrl_jax.rl.distributions import among
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import ActorCriticConfig, Context
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


@dataclass(frozen=True)
class AWACConfig(ActorCriticConfig):
    """Hyper-parameters, with d3rlpy's defaults."""

    NAME: ClassVar[str] = "awac"
    batch_size: PositiveInt = 1024
    temperature: PositiveFloat = 1.0
    """Advantages are divided by it (lambda)."""
    action_samples: PositiveInt = 1
    """Continuous actions: samples of which the value of a state is the mean."""


class AWAC:
    """Advantage-weighted actor-critic."""

    def __init__(self, config: AWACConfig, actions: ActionKind):
        self.config, self.actions = config, actions
        if actions.discrete:
            refuse_unread(config, ["action_samples"], "awac with discrete actions")
            self.actor: Any = CategoricalActor(actions.width, config.hidden, config.activation)
        else:
            self.actor = GaussianActor(actions.width, config.hidden, config.activation, -6.0, 0.0, sigmoid=True)
        self.critics = Critics(actions, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        actor_key, critic_key = jax.random.split(key)
        n = batch.obs.shape[-1]
        params = {"actor": self.actor.init(actor_key, n), "critic": self.critics.init(critic_key, n)}
        return TrainState.create(params, ["critic"])

    def value(
        self, actor: Any, critic: Any, x: jax.Array, key: jax.Array, samples: int, mask: Bool[Array, "B A"] | None
    ) -> Float[Array, " B"]:
        """Mean over actions of the policy, `samples` of them if they are continuous, of the smallest critic."""
        distribution = among(self.actor.distribution(actor, x), mask)
        if self.actions.discrete:
            return jnp.sum(distribution.probs * jnp.min(self.critics.all_values(critic, x), axis=0), axis=-1)
        sampled = jax.vmap(distribution.sample, out_axes=1)(jax.random.split(key, samples))
        return jnp.mean(jnp.min(self.critics(critic, x, jnp.clip(sampled, -1, 1)), axis=0), axis=1)

    def weights(self, state: TrainState, batch: Batch, key: jax.Array, temperature: Any) -> Float[Array, " B"]:
        """Weights of the recorded actions, whose mean is 1: a softmax of `(Q(s, a) - V(s)) / lambda` times B."""
        q = jnp.min(self.critics(state.params["critic"], batch.obs, batch.action), axis=0)
        actor, critic = state.params["actor"], state.params["critic"]
        v = self.value(actor, critic, batch.obs, key, self.config.action_samples, batch.mask)
        return q.shape[0] * jax.nn.softmax((q - v) / temperature)

    def actor_loss(self, params: Any, weight: Float[Array, " B"], batch: Batch) -> jax.Array:
        """`-mean w log pi(a | s)`."""
        return -jnp.mean(weight * among(self.actor.distribution(params, batch.obs), batch.mask).log_prob(batch.action))

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h = context.hparams
        target_key, weight_key = jax.random.split(context.key)
        actor, critic = state.params["actor"], state.target["critic"]
        next_value = self.value(actor, critic, batch.next_obs, target_key, 1, batch.next_mask)
        target = batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, next_value)
        q_loss, grads = jax.value_and_grad(self.critics.loss)(state.params["critic"], target, batch)
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])
        weight = self.weights(state, batch, weight_key, h["temperature"])
        pi_loss, grads = jax.value_and_grad(self.actor_loss)(state.params["actor"], weight, batch)
        state = state.apply_gradients("actor", grads, h["actor_learning_rate"]).polyak_update(h["tau"], "critic")
        metrics = {"actor_loss": pi_loss, "critic_loss": q_loss, "weight_max": jnp.max(weight)}
        return state, metrics | {"target_mean": jnp.mean(target)}

    def act(self, params, x, mask=None):
        return among(self.actor.distribution(params["actor"], x), mask)


ALGORITHM = OfflineAlgorithm(AWACConfig, AWAC)
