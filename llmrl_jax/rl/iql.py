"""Implicit Q-learning (Kostrikov et al., 2110.06169): values of recorded actions only, and advantage-weighted cloning.

The value of a state is an upper expectile of the values of its recorded actions, so that no other action is ever
valued. V makes its step first, and the targets of the critics and the weights of the actor read the new V, as in the
paper's algorithm 1 and its authors' code. Defaults are CORL's; the paper has no discrete actions, which have a
categorical actor here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.core.checks import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat
from llmrl_jax.rl.actors import CategoricalActor, Critics, GaussianActor, init_mlp, mlp
from llmrl_jax.rl.distributions import among
from llmrl_jax.rl.gradient import TrainState
from llmrl_jax.rl.offline import Context, OfflineConfig
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.registry import OfflineAlgorithm


LOG_STD_MIN = -5.0
"""Lower bound of the actor's log standard deviation, as in the authors' code; it begins at 0."""


@dataclass(frozen=True)
class IQLConfig(OfflineConfig):
    """Hyper-parameters, with CORL's defaults for MuJoCo's environments."""

    NAME: ClassVar[str] = "iql"
    normalize: bool = True
    learning_rate: NonNegativeFloat = 3e-4
    """Learning rate, for all networks."""
    actor_decay_steps: NonNegativeInt = 1_000_000
    """Gradient steps over which the actor's learning rate falls to 0 along a cosine; 0: it is constant."""
    gamma: Fraction = 0.99
    """Discount per step."""
    tau: Fraction = 0.005
    """Polyak averaging rate of the target critics."""
    expectile: Fraction = 0.7
    """Expectile of the values of recorded actions; 0.5 is their mean."""
    beta: NonNegativeFloat = 3.0
    """Weight of advantages in the exponents of the actor's weights."""
    max_weight: PositiveFloat = 100.0
    """Largest weight of a step in the actor's loss."""


def expectile_loss(error: Float[Array, " B"], expectile: Any) -> Float[Array, ""]:
    """`mean |expectile - [error < 0]| error^2` (eq. 5)."""
    return jnp.mean(jnp.abs(expectile - (error < 0)) * error**2)


class IQL:
    """Implicit Q-learning."""

    def __init__(self, config: IQLConfig, actions: ActionKind):
        self.config = config
        self.actor: Any = (
            CategoricalActor(actions.width, config.hidden, config.activation)
            if actions.discrete
            else GaussianActor(actions.width, config.hidden, config.activation, low=LOG_STD_MIN)
        )
        self.critics = Critics(actions, config.hidden, config.activation)

    def init(self, key: jax.Array, batch: Batch, hparams: dict[str, jax.Array]) -> TrainState:
        a, b, c = jax.random.split(key, 3)
        n = batch.obs.shape[-1]
        params = {
            "actor": self.actor.init(a, n),
            "critic": self.critics.init(b, n),
            "value": init_mlp(c, n, self.config.hidden, 1),
        }
        return TrainState.create(params, ["critic"])

    def value(self, params: Any, x: jax.Array) -> Float[Array, " B"]:
        return mlp(params, x, self.config.activation)[:, 0]

    def value_loss(self, params: Any, q: Float[Array, " B"], batch: Batch, expectile: Any) -> jax.Array:
        """Expectile loss of `q - V(s)`."""
        return expectile_loss(q - self.value(params, batch.obs), expectile)

    def critic_loss(self, params: Any, target: Float[Array, " B"], batch: Batch) -> jax.Array:
        """Mean squared error to `r + gamma (1 - terminated) V(s')`, over steps and critics."""
        return jnp.mean((self.critics(params, batch.obs, batch.action) - target) ** 2)

    def actor_loss(self, params: Any, weight: Float[Array, " B"], batch: Batch) -> jax.Array:
        """`-mean w log pi(a | s)`."""
        return -jnp.mean(weight * among(self.actor.distribution(params, batch.obs), batch.mask).log_prob(batch.action))

    def step(self, state: TrainState, batch: Batch, context: Context) -> tuple[TrainState, dict[str, jax.Array]]:
        h, params, rate = context.hparams, state.params, context.hparams["learning_rate"]
        q = jnp.min(self.critics(state.target["critic"], batch.obs, batch.action), axis=0)
        v_loss, grads = jax.value_and_grad(self.value_loss)(params["value"], q, batch, h["expectile"])
        state = state.apply_gradients("value", grads, rate)
        value = state.params["value"]
        target = batch.reward + h["gamma"] * jnp.where(batch.terminated, 0.0, self.value(value, batch.next_obs))
        q_loss, grads = jax.value_and_grad(self.critic_loss)(params["critic"], target, batch)
        state = state.apply_gradients("critic", grads, rate)
        advantage = q - self.value(value, batch.obs)
        weight = jnp.minimum(jnp.exp(h["beta"] * advantage), h["max_weight"])
        pi_loss, grads = jax.value_and_grad(self.actor_loss)(params["actor"], weight, batch)
        state = state.apply_gradients("actor", grads, rate * self.actor_factor(context.count))
        metrics = {
            "actor_loss": pi_loss,
            "critic_loss": q_loss,
            "value_loss": v_loss,
            "advantage_mean": jnp.mean(advantage),
            "target_mean": jnp.mean(target),
        }
        return state.polyak_update(h["tau"], "critic"), metrics

    def actor_factor(self, count: jax.Array) -> Any:
        """Factor of the actor's learning rate after `count` gradient steps."""
        if not self.config.actor_decay_steps:
            return 1.0
        fraction = jnp.minimum(count / self.config.actor_decay_steps, 1.0)
        return 0.5 * (1 + jnp.cos(jnp.pi * fraction))

    def act(self, params, x, mask=None):
        return among(self.actor.distribution(params["actor"], x), mask)


ALGORITHM = OfflineAlgorithm(IQLConfig, IQL)
