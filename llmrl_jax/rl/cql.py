"""Conservative Q-learning (Kumar et al., 2006.04779), CQL(H) on SAC, for continuous actions.

Critics also lower a soft maximum over actions of their values (from the policy here, from the policy in the next state,
and uniform, all importance-weighted) and raise those of recorded actions. The weight of that term is adapted, so that
it stays at a threshold. Equations and defaults are d3rlpy's: the target is the value of the policy's mode, without
entropy. `discrete_cql` is the one for discrete actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.core.checks import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl_jax.kernels.chunked import chunked_ensemble_mean, num_chunks
from llmrl_jax.rl.actors import Critics, SquashedActor
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import ActorCriticConfig, Context, needs_continuous
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm
from llmrl_jax.rl.sac import SoftActorCritic


@dataclass(frozen=True)
class ConservativeConfig(ActorCriticConfig):
    """Options shared by `cql` and `combo`."""

    actor_learning_rate: NonNegativeFloat = 1e-4
    temperature_learning_rate: NonNegativeFloat = 1e-4
    """Learning rate of the entropy coefficient."""
    initial_temperature: PositiveFloat = 1.0
    """First weight of the entropy; it is adapted so that the entropy is minus the number of action values."""
    conservative_weight: NonNegativeFloat = 5.0
    """Factor of the conservative term; KALM has 10 with cql, OfflineRL-Kit 0.5 with combo for some data."""
    action_samples: PositiveInt = 10
    """Actions of each of the three kinds in the soft maximum."""


@dataclass(frozen=True)
class CQLConfig(ConservativeConfig):
    """Hyper-parameters, with d3rlpy's defaults."""

    NAME: ClassVar[str] = "cql"
    alpha_learning_rate: NonNegativeFloat = 1e-4
    """Learning rate of the conservative term's weight; 0: it stays at initial_alpha."""
    initial_alpha: PositiveFloat = 1.0
    """First weight of the conservative term."""
    threshold: NonNegativeFloat = 10.0
    """The size at which the conservative term is kept by its weight."""


def proposed(
    actor: SquashedActor, params: Any, batch: Batch, key: jax.Array, samples: int
) -> tuple[Float[Array, "B S D"], Float[Array, "B S"]]:
    """Actions for the soft maximum and the log-densities that they were sampled with: `samples` of the policy in `s`,
    of the policy in `s'`, and uniform, each."""
    keys = jax.random.split(key, 3)

    def sampled(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(lambda k: actor.sample(params, x, k), out_axes=1)(jax.random.split(key, samples))

    current, following = sampled(batch.obs, keys[0]), sampled(batch.next_obs, keys[1])
    uniform = jax.random.uniform(keys[2], current[0].shape, minval=-1.0, maxval=1.0)
    log_uniform = jnp.full(current[1].shape, -actor.width * math.log(2.0))
    actions = jnp.concatenate([current[0], following[0], uniform], axis=1)
    return actions, jnp.concatenate([current[1], following[1], log_uniform], axis=1)


def soft_gap(
    critics: Critics,
    params: Any,
    x: Float[Array, "B n"],
    proposals: tuple[Float[Array, "B S D"], Float[Array, "B S"]],
    data: Float[Array, "K R"],
) -> Float[Array, " K"]:
    """`mean_s log sum_a exp(Q(s, a) - log density(a)) - mean Q(s, recorded)` of each critic.

    **Arguments:** `critics`, `params`; `x`, the states; `proposals`, see `proposed`, which get no gradient; `data`, the
    values of recorded actions.
    """

    def soft_maximum(params: Any, rows: tuple[jax.Array, ...]) -> Float[Array, "K b"]:
        x, actions, log_density = rows
        return jax.nn.logsumexp(critics(params, x, actions) - log_density, axis=-1)

    count = num_chunks(*proposals[1].shape)
    return chunked_ensemble_mean(soft_maximum, params, (x, *proposals), count) - jnp.mean(data, axis=1)


class CQL(SoftActorCritic):
    """Conservative Q-learning."""

    def __init__(self, config: CQLConfig, actions: ActionKind):
        needs_continuous(config, actions)
        super().__init__(actions, config.hidden, config.activation)
        self.config = config

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        params = self.networks(key, batch.obs.shape[-1], hparams) | {"log_alpha": jnp.log(hparams["initial_alpha"])}
        return TrainState.create(params, ["critic"])

    def conservative_loss(
        self,
        params: Any,
        target: Float[Array, " B"],
        proposals: tuple[jax.Array, jax.Array],
        batch: Batch,
        h: dict[str, jax.Array],
        state: TrainState,
    ) -> tuple[jax.Array, tuple[TrainState, dict[str, jax.Array]]]:
        """Squared errors plus `alpha (weight gap - weight threshold)`, summed over critics, after a step of alpha.

        The conservative gap is needed by both losses, so alpha learns here, from the same values.
        """
        data = self.critics(params, batch.obs, batch.action)
        gap = soft_gap(self.critics, params, batch.obs, proposals, data)
        excess = h["conservative_weight"] * (gap - h["threshold"])
        fixed = jax.lax.stop_gradient(excess)
        grad = jax.grad(lambda log: -jnp.mean(limited(log) * fixed))(state.params["log_alpha"])
        state = state.apply_gradients("log_alpha", grad, h["alpha_learning_rate"])
        alpha = limited(state.params["log_alpha"])
        td = jnp.sum(jnp.mean((data - target) ** 2, axis=1))
        metrics = {"td_loss": td, "gap": jnp.mean(gap), "alpha": alpha, "q_mean": jnp.mean(data)}
        return td + jnp.sum(alpha * excess), (state, metrics)

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h = context.hparams
        proposal_key, actor_key = jax.random.split(context.key)
        best = self.actor.distribution(state.params["actor"], batch.next_obs).mode()
        next_value = jnp.min(self.critics(state.target["critic"], batch.next_obs, best), axis=0)
        target = batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, next_value)
        proposals = proposed(self.actor, state.params["actor"], batch, proposal_key, self.config.action_samples)
        loss = jax.value_and_grad(self.conservative_loss, has_aux=True)
        (q_loss, (state, metrics)), grads = loss(state.params["critic"], target, proposals, batch, h, state)
        state = state.apply_gradients("critic", grads, h["critic_learning_rate"])
        state, pi_metrics = self.actor_step(state, batch, actor_key, h)
        metrics |= {"critic_loss": q_loss, "target_mean": jnp.mean(target), **pi_metrics}
        return state.polyak_update(h["tau"], "critic"), metrics


def limited(log_alpha: jax.Array) -> jax.Array:
    """The weight of the conservative term, at most 1e6."""
    return jnp.minimum(jnp.exp(log_alpha), 1e6)


ALGORITHM = OfflineAlgorithm(CQLConfig, CQL)
