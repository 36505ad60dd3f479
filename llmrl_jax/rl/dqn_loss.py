"""DQN's targets and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.policy import QPolicy


def q_targets(
    reward: Float[Array, " B"],
    terminated: Bool[Array, " B"],
    next_value: Float[Array, " B"],
    discount: float | jax.Array,
) -> Float[Array, " B"]:
    """Targets of the chosen actions' values: `reward + discount * next_value`, the reward alone where terminated.

    **Arguments:** `discount`, over all steps that `reward` sums, one number or `[B]`.
    """
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def q_each(policy: QPolicy, each: Sequence[Any], frozen: Any, obs: Any) -> list[Float[Array, "B A"]]:
    """The values of several parameters for the same observations.

    A policy may have a `q_each` of its own, which computes once what depends on no parameters
    (`llmrl_jax.rl.branches`)."""
    own = getattr(policy, "q_each", None)
    return own(each, frozen, obs) if own else [policy.q(params, frozen, obs) for params in each]


def dqn_loss(
    params: Any,
    frozen: Any,
    target: Any,
    batch: Transitions,
    policy: QPolicy,
    discount: float | jax.Array,
    *,
    double: bool = False,
    delta: float | jax.Array = 1.0,
    weight: Float[Array, " B"] | None = None,
) -> tuple[jax.Array, tuple[dict[str, jax.Array], Float[Array, " B"]]]:
    """The mean Huber loss of the chosen actions' values against `q_targets`.

    **Arguments:** `target`, the parameters of the target network, which get no gradient; `batch`, leaves `[B, ...]`
    (a number that is no action makes the loss nan); `discount`, see `q_targets`; `double`, whether `params` instead of
    `target` choose the action that `target` evaluates (1509.06461, eq. 4); `delta`, error beyond which the loss is
    linear; `weight`, per row (None: 1).
    **Returns:** the loss; its metrics, float32 scalars; and the absolute errors.
    """
    q = policy.q(params, frozen, batch.obs)
    action = jnp.where(batch.action < 0, q.shape[-1], batch.action)  # nan beyond the last one; -1 is not the last one
    chosen = jnp.take_along_axis(q, action[:, None], axis=-1, mode="fill")[:, 0]
    if double:
        next_q, online = q_each(policy, (target, params), frozen, batch.next_obs)
        next_value = jnp.take_along_axis(next_q, jnp.argmax(online, axis=-1)[:, None], axis=-1)[:, 0]
    else:
        next_value = jnp.max(policy.q(target, frozen, batch.next_obs), axis=-1)
    wanted = jax.lax.stop_gradient(q_targets(batch.reward, batch.terminated, next_value, discount))
    losses = optax.losses.huber_loss(chosen, wanted, delta=delta)  # type: ignore[arg-type]
    loss = jnp.mean(losses if weight is None else weight * losses)
    metrics = {"loss": loss, "q_mean": jnp.mean(chosen), "target_mean": jnp.mean(wanted)}
    return loss, (metrics, jnp.abs(chosen - wanted))
