"""BCQ, batch-constrained Q-learning (Fujimoto et al., 1812.02900), for continuous actions.

A conditional variational autoencoder imitates the recorded actions, a small network moves its samples a little, and
values are those of the best of many such actions. Equations and defaults are d3rlpy's, but for the decoder's `tanh`,
which is the authors' (d3rlpy 2.8.1 leaves it out). `discrete_bcq` is the one for discrete actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.core.checks import Fraction, NonNegativeFloat, PositiveInt
from llmrl_jax.kernels.chunked import chunked_map, num_chunks
from llmrl_jax.rl.actors import Critics, Fixed, init_mlp, mlp_on_concat
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import ActorCriticConfig, Context, needs_continuous
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


_LOG_DEVIATION = (-4.0, 15.0)
"""Bounds of the autoencoder's log standard deviation: the authors' and d3rlpy's."""


@dataclass(frozen=True)
class BCQConfig(ActorCriticConfig):
    """Hyper-parameters, with d3rlpy's defaults."""

    NAME: ClassVar[str] = "bcq"
    batch_size: PositiveInt = 100
    actor_learning_rate: NonNegativeFloat = 1e-3
    """Learning rate of the network that moves actions."""
    critic_learning_rate: NonNegativeFloat = 1e-3
    imitator_learning_rate: NonNegativeFloat = 1e-3
    """Learning rate of the autoencoder."""
    lam: Fraction = 0.75
    """Weight of the smallest critic in a value; the largest has the rest."""
    action_samples: PositiveInt = 100
    """Actions of which the best is valued, or taken."""
    flexibility: Fraction = 0.05
    """The most by which an action of the autoencoder is moved."""
    beta: NonNegativeFloat = 0.5
    """Weight of the divergence of the autoencoder's latent numbers from a standard Gaussian."""


class BCQ:
    """Batch-constrained Q-learning."""

    def __init__(self, config: BCQConfig, actions: ActionKind):
        needs_continuous(config, actions)
        self.config, self.width, self.latent = config, actions.width, 2 * actions.width
        self.critics = Critics(actions, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        keys = jax.random.split(key, 4)
        n, hidden = batch.obs.shape[-1], self.config.hidden
        params = {
            "critic": self.critics.init(keys[0], n),
            "actor": init_mlp(keys[1], n + self.width, hidden, self.width),
            "imitator": {
                "encoder": init_mlp(keys[2], n + self.width, hidden, 2 * self.latent),
                "decoder": init_mlp(keys[3], n + self.latent, hidden, self.width),
            },
        }
        return TrainState.create(params, ["actor", "critic"])

    def decoded(self, imitator: Any, x: jax.Array, latent: jax.Array) -> jax.Array:
        """Actions `[B, D]` or `[B, S, D]` for latent numbers `[B, L]` or `[B, S, L]`."""
        return jnp.tanh(mlp_on_concat(imitator["decoder"], x, latent, self.config.activation))

    def moved(self, actor: Any, x: jax.Array, action: jax.Array, flexibility: Any) -> jax.Array:
        """Actions moved by at most `flexibility`, `[B, D]` or `[B, S, D]`."""
        return jnp.clip(action + flexibility * jnp.tanh(mlp_on_concat(actor, x, action, self.config.activation)), -1, 1)

    def imitator_loss(self, params: Any, batch: Batch, key: jax.Array, beta: Any) -> jax.Array:
        """Mean squared error of the decoded actions, plus `beta` times the mean divergence."""
        code = mlp_on_concat(params["encoder"], batch.obs, batch.action, self.config.activation)
        mean, log_std = jnp.split(code, 2, axis=-1)
        log_std = jnp.clip(log_std, *_LOG_DEVIATION)
        latent = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        divergence = 0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std
        error = self.decoded(params, batch.obs, latent) - batch.action
        return jnp.mean(error**2) + beta * jnp.mean(divergence)

    def latents(self, key: jax.Array, states: int) -> Float[Array, "B S L"]:
        """Latent numbers of the actions of which the best is valued, clipped at 0.5."""
        return jnp.clip(jax.random.normal(key, (states, self.config.action_samples, self.latent)), -0.5, 0.5)

    def candidates(
        self,
        params: dict[str, Any],
        actor: Any,
        x: Float[Array, "B n"],
        latent: Float[Array, "B S L"],
        flexibility: Any,
    ) -> Float[Array, "B S D"]:
        """Actions like the recorded ones, moved a little."""
        return self.moved(actor, x, self.decoded(params["imitator"], x, latent), flexibility)

    def targets(self, state: TrainState, batch: Batch, key: jax.Array, h: dict[str, jax.Array]) -> Float[Array, " B"]:
        """`r + gamma (1 - terminated) max_a [lam min_k Q'_k + (1 - lam) max_k Q'_k]` over the candidates."""
        target = state.target

        def best(rows: tuple[jax.Array, jax.Array]) -> Float[Array, " b"]:
            x, latent = rows
            decoded = self.decoded(state.params["imitator"], x, latent)
            q = self.critics(target["critic"], x, self.moved(target["actor"], x, decoded, h["flexibility"]))
            return jnp.max(h["lam"] * jnp.min(q, axis=0) + (1 - h["lam"]) * jnp.max(q, axis=0), axis=-1)

        latent = self.latents(key, batch.reward.shape[0])
        value = chunked_map(best, (batch.next_obs, latent), num_chunks(*latent.shape[:2]))
        return batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, value)

    def actor_loss(
        self, actor: Any, params: dict[str, Any], batch: Batch, key: jax.Array, flexibility: Any
    ) -> jax.Array:
        """Minus the mean of the first critic for one moved action per state."""
        latent = jnp.clip(jax.random.normal(key, (batch.obs.shape[0], self.latent)), -0.5, 0.5)
        decoded = jax.lax.stop_gradient(self.decoded(params["imitator"], batch.obs, latent))
        action = self.moved(actor, batch.obs, decoded, flexibility)
        first = jax.tree.map(lambda x: x[:1], params["critic"])
        return -jnp.mean(self.critics(first, batch.obs, action))

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h = context.hparams
        keys = jax.random.split(context.key, 3)
        vae_loss, grads = jax.value_and_grad(self.imitator_loss)(state.params["imitator"], batch, keys[0], h["beta"])
        state = state.apply_gradients("imitator", grads, h["imitator_learning_rate"])
        target = self.targets(state, batch, keys[1], h)
        q_loss, grads = jax.value_and_grad(self.critics.loss)(state.params["critic"], target, batch)
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])
        pi_loss, grads = jax.value_and_grad(self.actor_loss)(
            state.params["actor"], state.params, batch, keys[2], h["flexibility"]
        )
        state = state.apply_gradients("actor", grads, h["actor_learning_rate"])
        metrics = {"critic_loss": q_loss, "actor_loss": pi_loss, "imitator_loss": vae_loss}
        return state.polyak_update(h["tau"], "actor", "critic"), metrics | {"target_mean": jnp.mean(target)}

    def act(self, params, x):
        """Best candidate by the first critic. Its latent numbers are the same in every step and row, so that acting
        is a function of the state."""
        latent = self.latents(jax.random.key(0), 1)
        latent = jnp.broadcast_to(latent, (x.shape[0], *latent.shape[1:]))
        actions = self.candidates(params, params["actor"], x, latent, self.config.flexibility)
        first = jax.tree.map(lambda p: p[:1], params["critic"])
        best = jnp.argmax(self.critics(first, x, actions)[0], axis=-1)
        return Fixed(jnp.take_along_axis(actions, best[:, None, None], axis=1)[:, 0])


ALGORITHM = OfflineAlgorithm(BCQConfig, BCQ)
