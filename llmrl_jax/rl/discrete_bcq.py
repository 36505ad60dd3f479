"""BCQ for discrete actions (Fujimoto et al., 1910.01708): double DQN among the actions that the data make likely.

An action may be chosen if its probability by a cloned policy is more than `flexibility` times that of the likeliest.
Equations and defaults are those of d3rlpy 2.0.2's DiscreteBCQ; later versions penalise other numbers (`beta_on`).
The networks share no layers, as the authors' (d3rlpy's share those of the first critic by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llmrl_jax.core.checks import FractionBelowOne, NonNegativeFloat
from llmrl_jax.rl.actors import CategoricalActor, Critics
from llmrl_jax.rl.bc import BetaOn, cloning_loss
from llmrl_jax.rl.discrete_cql import DiscreteConfig, double_targets, greedy, huber
from llmrl_jax.rl.distributions import among
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, needs_discrete
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


@dataclass(frozen=True)
class DiscreteBCQConfig(DiscreteConfig):
    """Hyper-parameters, with the defaults of d3rlpy 2.0.2."""

    NAME: ClassVar[str] = "discrete_bcq"
    flexibility: FractionBelowOne = 0.3
    """Probability, relative to the likeliest action's, above which an action may be chosen."""
    beta: NonNegativeFloat = 0.5
    """Weight of the mean square of the numbers of the cloned policy that `beta_on` names."""
    beta_on: BetaOn = "logits"
    """The numbers that `beta` penalises: `logits` as the authors; `log_probs` as d3rlpy from version 2.1 on."""


class DiscreteBCQ:
    """Batch-constrained Q-learning for discrete actions."""

    def __init__(self, config: DiscreteBCQConfig, actions: ActionKind):
        needs_discrete(config, actions)
        self.config = config
        self.imitator = CategoricalActor(actions.width, config.hidden, config.activation)
        self.critics = Critics(actions, config.hidden, config.activation, config.critics)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        critic_key, imitator_key = jax.random.split(key)
        n = batch.obs.shape[-1]
        params = {"critic": self.critics.init(critic_key, n), "imitator": self.imitator.init(imitator_key, n)}
        return TrainState.create(params, ["critic"])

    def allowed(
        self, imitator: Any, x: jax.Array, flexibility: Any, mask: Bool[Array, "B A"] | None = None
    ) -> Bool[Array, "B A"]:
        """Actions that the data make likely, of those that are offered."""
        log_probs = among(self.imitator.distribution(imitator, x), mask).log_probs
        return jnp.exp(log_probs - jnp.max(log_probs, axis=-1, keepdims=True)) > flexibility

    def loss(
        self, params: dict[str, Any], target: Float[Array, " B"], batch: Batch, beta: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Huber's loss, plus the `cloning_loss` of the cloned policy."""
        td = huber(self.critics(params["critic"], batch.obs, batch.action) - target)
        cloned = self.imitator.distribution(params["imitator"], batch.obs)
        imitation = cloning_loss(cloned, batch.action, beta, self.config.beta_on, batch.mask)
        return td + imitation, {"critic_loss": td, "imitator_loss": imitation}

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h, params = context.hparams, state.params
        allowed = self.allowed(params["imitator"], batch.next_obs, h["flexibility"], batch.next_mask)
        target = double_targets(self.critics, params["critic"], state.target["critic"], batch, h["gamma"], allowed)
        nets = {name: params[name] for name in ("critic", "imitator")}
        (_, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(nets, target, batch, h["beta"])
        for name in nets:
            state = state.apply_gradients(name, grads[name], h["learning_rate"])
        state = state.hard_update((context.count + 1) % self.config.target_every == 0, "critic")
        return state, metrics | {"target_mean": jnp.mean(target), "allowed": jnp.mean(jnp.sum(allowed, axis=-1))}

    def act(self, params, x, mask=None):
        """Greedy action among those above the threshold."""
        q = jnp.mean(self.critics.all_values(params["critic"], x), axis=0)
        return greedy(q, self.allowed(params["imitator"], x, self.config.flexibility, mask))


ALGORITHM = OfflineAlgorithm(DiscreteBCQConfig, DiscreteBCQ)
