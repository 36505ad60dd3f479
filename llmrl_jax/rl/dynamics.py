"""An ensemble of learned dynamics: each member predicts the change of the features, the reward and the end of a step.

A member is an MLP that gives a Gaussian of the change of features and of the reward (Chua et al., 1805.12114; Yu et
al., 2005.13239), and the log-odds of a terminal state. Sentence vectors of instructions are inputs only.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.rl.mlp import init_ensemble, mlp
from llmrl_jax.rl.offline_data import Batch


LOW, HIGH = -10.0, 0.5
"""First bounds of the log of a variance; both learn."""
BOUND_WEIGHT = 0.01
"""Weight of the distance of the bounds in the loss."""


@struct.dataclass
class Prediction:
    """What members expect; leaves `[*K, B, ...]`."""

    mean: jax.Array
    """Change of features and, last, the reward, `[*K, B, n + 1]`."""
    log_variance: jax.Array
    logit: jax.Array
    """Log-odds that the step ends in a terminal state, `[*K, B]`."""


class Dynamics:
    """The functions of an ensemble of `members` MLPs."""

    def __init__(self, members: int, hidden: tuple[int, ...], width: int):
        """**Arguments:** `width`, numbers of an action."""
        self.members, self.hidden, self.width = members, hidden, width

    def init(self, key: jax.Array, inputs: int, features: int) -> dict[str, Any]:
        """Initial parameters. **Arguments:** `inputs`, features with sentence vectors; `features`, without."""
        nets = init_ensemble(key, self.members, inputs + self.width, self.hidden, 2 * (features + 1) + 1)
        bounds = {
            "low": jnp.full((self.members, features + 1), LOW),
            "high": jnp.full((self.members, features + 1), HIGH),
        }
        return {"nets": nets, **bounds}

    def member(self, params: Any, x: Float[Array, "B n"], action: Float[Array, "B D"]) -> Prediction:
        """What one member expects, whose leaves have no axis of members."""
        out = mlp(params["nets"], jnp.concatenate([x, action], axis=-1), "silu")
        mean, log_variance = jnp.split(out[..., :-1], 2, axis=-1)
        log_variance = params["high"] - jax.nn.softplus(params["high"] - log_variance)
        log_variance = params["low"] + jax.nn.softplus(log_variance - params["low"])
        return Prediction(mean, log_variance, out[..., -1])

    def loss(self, params: Any, rows: Batch) -> jax.Array:
        """The negative log-likelihood of each member's own rows, leaves `[K, B, ...]`, summed over members."""

        def one(params: Any, rows: Batch) -> jax.Array:
            found = self.member(params, rows.obs, rows.action)
            error = found.mean - wanted(rows)
            gaussian = jnp.mean(error**2 * jnp.exp(-found.log_variance) + found.log_variance)
            ends = rows.terminated.astype(jnp.float32)
            end = jnp.mean(jax.nn.softplus(found.logit) - ends * found.logit)
            return gaussian + end + BOUND_WEIGHT * (jnp.sum(params["high"]) - jnp.sum(params["low"]))

        return jnp.sum(jax.vmap(one)(params, rows))

    def errors(self, params: Any, rows: Batch) -> Float[Array, " K"]:
        """The mean squared error of each member's mean on the same rows, `[B, ...]`."""
        found = jax.vmap(lambda one: self.member(one, rows.obs, rows.action))(params)
        return jnp.mean((found.mean - wanted(rows)) ** 2, axis=(1, 2))

    def imagined(
        self, params: Any, elite: Int[Array, " E"], x: jax.Array, action: jax.Array, key: jax.Array, features: int
    ) -> Batch:
        """A step from each row, drawn from what a random one of the best members expects."""
        who, noise, end = jax.random.split(key, 3)
        found = jax.vmap(lambda i: self.member(jax.tree.map(lambda p: p[i], params), x, action))(elite)
        chosen = jax.random.randint(who, (x.shape[0],), 0, elite.shape[0])
        found = jax.tree.map(lambda leaf: leaf[chosen, jnp.arange(x.shape[0])], found)
        drawn = found.mean + jnp.exp(0.5 * found.log_variance) * jax.random.normal(noise, found.mean.shape)
        after = jnp.concatenate([x[:, :features] + drawn[:, :-1], x[:, features:]], axis=-1)
        terminated = jax.random.uniform(end, found.logit.shape) < jax.nn.sigmoid(found.logit)
        return Batch(x, action, drawn[:, -1], after, terminated, features)


def wanted(rows: Batch) -> Float[Array, "B m"]:
    """The change of the features and, last, the reward."""
    return jnp.concatenate([(rows.next_obs - rows.obs)[:, : rows.features], rows.reward[:, None]], axis=-1)
