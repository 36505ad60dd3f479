"""TD3+BC (Fujimoto and Gu, 2106.06860): TD3 whose actor also imitates the recorded actions.

The actor maximises `lambda Q(s, pi(s)) - (pi(s) - a)^2` with `lambda = alpha / mean |Q|`. Defaults are those of the
paper, CORL and d3rlpy, which agree; features are normalised as in the paper and CORL (d3rlpy's are not by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from envs_jax import tracing
from llmrl_jax.core.checks import NonNegativeFloat, PositiveInt
from llmrl_jax.rl.actors import Critics, DeterministicActor
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import ActorCriticConfig, Context, needs_continuous
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


@dataclass(frozen=True)
class TD3BCConfig(ActorCriticConfig):
    """Hyper-parameters, with the paper's defaults."""

    NAME: ClassVar[str] = "td3_bc"
    normalize: bool = True
    alpha: NonNegativeFloat = 2.5
    """Weight of the value beside imitation; KALM's paper has 0.5."""
    policy_noise: NonNegativeFloat = 0.2
    """Deviation of the noise on the target actor's actions."""
    noise_clip: NonNegativeFloat = 0.5
    """Largest noise."""
    actor_every: PositiveInt = 2
    """Gradient steps of the critics per step of the actor and of the target networks."""


class TD3BC:
    """TD3 with behavioural cloning. PRDC differs from it in `imitated_action` alone."""

    def __init__(self, config: Any, actions: ActionKind):
        needs_continuous(config, actions)
        self.config = config
        self.actor = DeterministicActor(actions.width, config.hidden, config.activation)
        self.critics = Critics(actions, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        actor_key, critic_key = jax.random.split(key)
        n = batch.obs.shape[-1]
        params = {"actor": self.actor.init(actor_key, n), "critic": self.critics.init(critic_key, n)}
        return TrainState.create(params, ["actor", "critic"], {"actor_loss": jnp.float32(0), "bc_loss": jnp.float32(0)})

    def targets(
        self, target: dict[str, Any], batch: Batch, key: jax.Array, h: dict[str, jax.Array]
    ) -> Float[Array, " B"]:
        """`r + gamma (1 - terminated) min Q'(s', pi'(s') + noise)`."""
        noise = h["policy_noise"] * jax.random.normal(key, batch.action.shape)
        noise = jnp.clip(noise, -h["noise_clip"], h["noise_clip"])
        action = jnp.clip(self.actor(target["actor"], batch.next_obs) + noise, -1, 1)
        value = jnp.min(self.critics(target["critic"], batch.next_obs, action), axis=0)
        return batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, value)

    def imitated_action(self, action: Float[Array, "B D"], batch: Batch, context: Context) -> Float[Array, "B D"]:
        """Actions that the actor, whose actions are `action`, imitates."""
        return batch.action

    def actor_loss(self, params: Any, critic: Any, batch: Batch, context: Context) -> tuple[jax.Array, jax.Array]:
        """`-alpha mean Q / mean |Q| + mean (pi - a)^2` with the first critic, and the second term."""
        action = self.actor(params, batch.obs)
        first = jax.tree.map(lambda x: x[:1], critic)
        q = self.critics(first, batch.obs, action)[0]
        weight = context.hparams["alpha"] / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
        target = self.imitated_action(jax.lax.stop_gradient(action), batch, context)
        imitation = jnp.mean((action - target) ** 2)
        return imitation - weight * jnp.mean(q), imitation

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h = context.hparams
        target = self.targets(state.target, batch, context.key, h)
        q_loss, grads = jax.value_and_grad(self.critics.loss)(state.params["critic"], target, batch)
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])

        def act(state: TrainState) -> TrainState:
            loss = jax.value_and_grad(self.actor_loss, has_aux=True)
            (pi_loss, imitation), grads = loss(state.params["actor"], state.params["critic"], batch, context)
            state = state.apply_gradients("actor", grads, h["actor_learning_rate"])
            state = state.polyak_update(h["tau"], "actor", "critic")
            return state.replace(extra={"actor_loss": pi_loss, "bc_loss": imitation})

        now = (context.count + 1) % self.config.actor_every == 0
        state = tracing.cond(now, act, lambda state: state, state)
        return state, {"critic_loss": q_loss, "target_mean": jnp.mean(target), **state.extra}

    def act(self, params, x):
        return self.actor.distribution(params["actor"], x)


ALGORITHM = OfflineAlgorithm(TD3BCConfig, TD3BC)
