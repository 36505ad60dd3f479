"""The soft actor-critic's actor and entropy weight (Haarnoja et al., 1812.05905), shared by SAC, CQL and COMBO."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.rl.actors import Critics, SquashedActor
from llmrl_jax.rl.offline import Trained
from llmrl_jax.rl.offline_data import ActionKind, Batch


class SoftActorCritic:
    """A squashed Gaussian actor, twin critics, and the weight of the entropy, which is adapted so that the entropy is
    minus the number of action values. Hyper-parameters: `actor_learning_rate`, `temperature_learning_rate`, and
    `initial_temperature`."""

    def __init__(self, actions: ActionKind, hidden: tuple[int, ...], activation: str):
        self.width = actions.width
        self.actor = SquashedActor(actions.width, hidden, activation)
        self.critics = Critics(actions, hidden, activation)

    def networks(self, key: jax.Array, inputs: int, hparams: dict[str, jax.Array]) -> dict[str, Any]:
        """Initial parameters: `actor`, `critic`, `log_temperature`."""
        one, two = jax.random.split(key)
        return {
            "actor": self.actor.init(one, inputs),
            "critic": self.critics.init(two, inputs),
            "log_temperature": jnp.log(hparams["initial_temperature"]),
        }

    def critic_loss(self, params: Any, wanted: Float[Array, " B"], batch: Batch) -> jax.Array:
        """The mean squared error, summed over the critics."""
        return jnp.sum(jnp.mean((self.critics(params, batch.obs, batch.action) - wanted) ** 2, axis=1))

    def soft_targets(
        self, trained: Trained, batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> Float[Array, " B"]:
        """`r + gamma (1 - terminated) [min Q'(s', a') - temperature log pi(a' | s')]`, with `a'` of the policy."""
        action, log_prob = self.actor.sample(trained.params["actor"], batch.next_obs, key)
        value = jnp.min(self.critics(trained.target["critic"], batch.next_obs, action), axis=0)
        value = value - jnp.exp(trained.params["log_temperature"]) * log_prob
        return batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, value)

    def actor_loss(self, params: Any, critic: Any, batch: Batch, key: jax.Array, temperature: Any) -> jax.Array:
        """`mean [temperature log pi(a | s) - min Q(s, a)]` for an action of the policy, and its log-density."""
        action, log_prob = self.actor.sample(params, batch.obs, key)
        return jnp.mean(temperature * log_prob - jnp.min(self.critics(critic, batch.obs, action), axis=0))

    def actor_step(
        self, trained: Trained, batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> tuple[Trained, dict[str, jax.Array]]:
        """A step of the entropy's weight, and one of the actor with that weight."""
        _, log_prob = self.actor.sample(trained.params["actor"], batch.obs, key)
        distance = jnp.mean(log_prob) - self.width
        grad = jax.grad(lambda log: -jnp.exp(log) * distance)(trained.params["log_temperature"])
        trained = trained.descended("log_temperature", grad, h["temperature_learning_rate"])
        temperature = jnp.exp(trained.params["log_temperature"])
        pi_loss, grads = jax.value_and_grad(self.actor_loss)(
            trained.params["actor"], trained.params["critic"], batch, key, temperature
        )
        trained = trained.descended("actor", grads, h["actor_learning_rate"])
        return trained, {"actor_loss": pi_loss, "temperature": temperature, "entropy": -jnp.mean(log_prob)}
