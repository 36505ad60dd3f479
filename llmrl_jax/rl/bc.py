"""Behavioural cloning: the policy that makes the recorded actions most likely.

Continuous actions: the mean squared error of a deterministic actor. Discrete ones: the cross-entropy, plus a penalty on
the squares of the logits. Both, and their defaults, are those of d3rlpy's BC and DiscreteBC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from llmrl_jax.core.checks import fields_in, refuse_unread
from llmrl_jax.rl.actors import CategoricalActor, DeterministicActor
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.offline import Context, Trained
from llmrl_jax.rl.offline_config import OfflineConfig
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


@dataclass(frozen=True)
class BCConfig(OfflineConfig):
    """Hyper-parameters, with d3rlpy's defaults."""

    NAME: ClassVar[str] = "bc"
    batch_size: int = 100
    """Steps of a batch; with imagined data half of them are real, half imagined."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    beta: float = 0.5
    """Discrete actions: weight of the mean square of the logits."""

    def check(self):
        fields_in(self, "[0, inf)", "learning_rate", "beta", prefix=self.prefix)


class BC:
    """See the module."""

    def __init__(self, config: BCConfig, actions: ActionKind):
        if not actions.discrete:
            refuse_unread(config, ["beta"], "bc with continuous actions", prefix=config.prefix)
        kind = CategoricalActor if actions.discrete else DeterministicActor
        self.actor: Any = kind(actions.width, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> Trained:
        return Trained.begin({"actor": self.actor.init(key, batch.obs.shape[-1])})

    def loss(self, params: Any, batch: Batch, beta: Any) -> jax.Array:
        """`mean (pi(s) - a)^2`, or `mean -log pi(a | s) + beta mean logits^2`."""
        if isinstance(self.actor, DeterministicActor):
            return jnp.mean((self.actor(params, batch.obs) - batch.action) ** 2)
        found: Categorical = self.actor.distribution(params, batch.obs)
        return -jnp.mean(found.log_prob(batch.action)) + beta * jnp.mean(found.logits**2)

    def step(self, trained: Trained, batch: Batch, context: Context) -> tuple[Trained, dict[str, jax.Array]]:
        h = context.hparams
        loss, grads = jax.value_and_grad(self.loss)(trained.params["actor"], batch, h["beta"])
        return trained.descended("actor", grads, h["learning_rate"]), {"actor_loss": loss}

    def act(self, params, x):
        return self.actor.distribution(params["actor"], x)


ALGORITHM = OfflineAlgorithm(BCConfig, BC)
