"""Behavioural cloning: the policy that makes the recorded actions most likely.

Continuous actions: the mean squared error of a deterministic actor. Discrete ones: the cross-entropy, plus a penalty on
the squares of the logits (`cloning_loss`). Both, and their defaults, are those of d3rlpy's BC and DiscreteBC of version
2.0.2, which KALM used. From 2.1 on d3rlpy penalises normalised log-probabilities: `beta_on="log_probs"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llmrl_jax.core.checks import NonNegativeFloat, PositiveInt, refuse_unread
from llmrl_jax.rl.actors import CategoricalActor, DeterministicActor
from llmrl_jax.rl.distributions import Categorical, among
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, OfflineConfig
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


BetaOn = Literal["logits", "log_probs"]
"""The numbers whose squares are penalised: the network's outputs, or their normalised log-probabilities."""


@dataclass(frozen=True)
class BCConfig(OfflineConfig):
    """Hyper-parameters, with the defaults of d3rlpy 2.0.2."""

    NAME: ClassVar[str] = "bc"
    batch_size: PositiveInt = 100
    learning_rate: NonNegativeFloat = 1e-3
    """Learning rate."""
    beta: NonNegativeFloat = 0.5
    """Discrete actions: weight of the mean square of what `beta_on` names."""
    beta_on: BetaOn = "logits"
    """Discrete actions: the numbers that `beta` penalises; `log_probs`: d3rlpy from version 2.1 on."""


def cloning_loss(
    cloned: Categorical, action: Int[Array, " B"], beta: Any, beta_on: BetaOn, offered: Bool[Array, "B A"] | None = None
) -> Float[Array, ""]:
    """`mean -log pi(a | s) + beta mean x^2`, with `x` the logits or the log-probabilities of all actions, or of those
    that are offered.

    Logits can be shifted, so with them the policy of deterministic data stays sharp. All log-probabilities are 0 for no
    policy, and their squares are smallest for the uniform one: with 40 actions and `beta` 0.5 the optimum for a state
    with a single action gives it 0.865 with logits, 0.214 with log-probabilities.
    """
    choices = among(cloned, offered)
    penalised = cloned.logits if beta_on == "logits" else choices.log_probs
    return -jnp.mean(choices.log_prob(action)) + beta * jnp.mean(penalised**2, where=offered)


class BC:
    """Behavioural cloning."""

    def __init__(self, config: BCConfig, actions: ActionKind):
        if not actions.discrete:
            refuse_unread(config, ["beta", "beta_on"], "bc with continuous actions")
        self.beta_on: BetaOn = config.beta_on
        kind = CategoricalActor if actions.discrete else DeterministicActor
        self.actor: Any = kind(actions.width, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        return TrainState.create({"actor": self.actor.init(key, batch.obs.shape[-1])})

    def loss(self, params: Any, batch: Batch, beta: Any) -> jax.Array:
        """`mean (pi(s) - a)^2`, or `cloning_loss`."""
        if isinstance(self.actor, DeterministicActor):
            return jnp.mean((self.actor(params, batch.obs) - batch.action) ** 2)
        return cloning_loss(self.actor.distribution(params, batch.obs), batch.action, beta, self.beta_on, batch.mask)

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h = context.hparams
        loss, grads = jax.value_and_grad(self.loss)(state.params["actor"], batch, h["beta"])
        return state.apply_gradients("actor", grads, h["learning_rate"]), {"actor_loss": loss}

    def act(self, params, x, mask=None):
        return among(self.actor.distribution(params["actor"], x), mask)


ALGORITHM = OfflineAlgorithm(BCConfig, BC)
