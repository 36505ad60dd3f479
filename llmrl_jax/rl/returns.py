"""Advantages and returns of recorded steps, for episodes that end by termination, by truncation, or by both at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from envs_jax import tracing


def _accumulate(x: Float[Array, "T *B"], decay: Float[Array, "T *B"], last: Float[Array, "*B"]) -> Float[Array, "T *B"]:
    """`y[t] = x[t] + decay[t] * y[t + 1]`, with `y[T] = last`."""

    def back(y, step):
        x_t, decay_t = step
        y = x_t + decay_t * y
        return y, y

    return tracing.scan(back, last, (x, decay), reverse=True, unroll=min(16, x.shape[0]))[1]


def gae(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    terminated: Bool[Array, "T *B"],
    truncated: Bool[Array, "T *B"],
    gamma: float | jax.Array,
    gae_lambda: float | jax.Array,
) -> tuple[Float[Array, "T *B"], Float[Array, "T *B"]]:
    """Generalised advantage estimation (Schulman et al., 1506.02438, eq. 16), with termination and truncation separate.

    `delta[t] = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]`: a truncated step still bootstraps.
    `A[t] = delta[t] + gamma * gae_lambda * A[t + 1]`, cut at the end of an episode of either kind.

    **Arguments:** `reward`, `value` (of the step's observation), `next_value` (of the observation that the step
    reached, before any reset), `terminated`, `truncated`, all `[T, ...]`; `gamma` and `gae_lambda`, in [0, 1].
    **Returns:** `(advantages, returns)`, float32 `[T, ...]`; the returns are `advantages + value`.
    """
    goes_on = ~(terminated | truncated)
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    advantages = _accumulate(delta, gamma * gae_lambda * goes_on, jnp.zeros_like(delta[-1]))
    return advantages, advantages + value


def lambda_returns(
    reward: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    terminated: Bool[Array, "T *B"],
    truncated: Bool[Array, "T *B"],
    gamma: float | jax.Array,
    td_lambda: float | jax.Array,
) -> Float[Array, "T *B"]:
    """TD(lambda) targets: `G[t] = reward[t] + gamma * ((1 - l) * next_value[t] + l * G[t + 1])`.

    `l` is `td_lambda`, and 0 where the episode ended (there is no `G[t + 1]`) and on the last step; the target of a
    terminated step is its reward alone. Arguments as for `gae`.
    """
    next_value = jnp.where(terminated, 0.0, next_value)
    mix = jnp.where(terminated | truncated, 0.0, td_lambda)
    return _accumulate(reward + gamma * (1 - mix) * next_value, gamma * mix, next_value[-1])
