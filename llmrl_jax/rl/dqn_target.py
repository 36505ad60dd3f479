"""The target network of deep Q-learning: what targets are computed with, and when it follows the trained network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llmrl_jax.rl.dqn_config import DQNConfig
from llmrl_jax.rl.policy import QPolicy


def network_of_targets(config: DQNConfig, policy: QPolicy, target: Any, params: Any) -> Any:
    """The parameters that targets are computed with: the target network's, with the trained encoder if it is shared;
    the trained ones if there is no target network."""
    if not config.has_target:
        return params
    if config.share_encoder:
        return {**params, **{name: target[name] for name in policy.heads}}  # type: ignore[attr-defined]
    return target


def follow(config: DQNConfig, update: Int[Array, ""], tau: Float[Array, ""], target: Any, params: Any) -> Any:
    """The target network after update `update` (from 0), which moves by the share `tau` towards `params` when it is
    due."""
    if not config.has_target:
        return target
    if every := config.target_steps:  # whether the steps of this update pass a multiple of it
        due = passes(update, config.num_envs * config.num_steps, every)
    else:
        due = (update + 1) % config.target_every == 0
    return jax.tree.map(
        lambda new, old: jnp.where(due, (tau * new + (1 - tau) * old).astype(old.dtype), old), params, target
    )


def passes(update: Int[Array, "*B"], steps: int, every: int) -> Bool[Array, "*B"]:
    """Whether the steps of update `update` (from 0, `steps` each) reach a multiple of `every`.

    **Arguments:** `update`, int32; `steps` and `every`, from 1 to 2^31 - 1. Exact although the product of both may have
    62 bits: the rest of a division by `every` is doubled and added to, one bit of `steps` after another."""
    whole = jnp.uint32(every)
    one = update.astype(jnp.uint32) % whole
    left = jnp.zeros_like(one)  # of all steps before the update
    for bit in f"{steps % every:b}":
        left = _rest(left + left, whole)
        left = _rest(left + one, whole) if bit == "1" else left
    return left + jnp.uint32(min(steps, every)) >= whole


def _rest(x: jax.Array, every: jax.Array) -> jax.Array:
    """`x % every` for `x` below twice `every`, as sums of two rests are."""
    return jnp.where(x >= every, x - every, x)
