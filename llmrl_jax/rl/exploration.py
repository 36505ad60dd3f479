"""How DQN explores: epsilon over time, and random actions of which a guide makes a part."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from envs_jax.actions import mask_of
from llmrl_jax.rl.distributions import Categorical
from llmrl_jax.rl.gradient import linear_decay
from llmrl_jax.rl.policy import epsilon_greedy


NOT_YET = -1


@struct.dataclass
class FirstReward:
    """When training began to be rewarded; part of a learner's state if epsilon waits for it."""

    total: Float[Array, ""]
    """The sum of all rewards so far."""
    update: Int[Array, ""]
    """The update after which the sum was 1 or more; `NOT_YET` before that."""

    @classmethod
    def start(cls) -> FirstReward:
        return cls(jnp.float32(0), jnp.int32(NOT_YET))

    def after(self, reward: jax.Array, update: Int[Array, ""]) -> FirstReward:
        """With the rewards of one update."""
        total = self.total + jnp.sum(reward)
        began = (self.update == NOT_YET) & (total >= 1)
        return FirstReward(total, jnp.where(began, update, self.update))


def decayed(
    update: Int[Array, ""], updates: float, begin: Any, end: Any, first: FirstReward | None = None
) -> Float[Array, ""]:
    """Epsilon in an update: falls linearly from `begin` to `end` over `updates` updates.

    **Arguments:** `first`, counts from the update after the first reward instead of from 0; until then it is `begin`.
    """
    if first is not None:
        update = jnp.where(first.update == NOT_YET, 0, update - first.update)
    return end + (begin - end) * linear_decay(update, updates)


def guided(
    q: Float[Array, "*B A"],
    guide_q: Float[Array, "*B A"],
    obs: Any,
    epsilon: float | jax.Array,
    fraction: float | jax.Array,
) -> Categorical:
    """The best of the offered actions; with probability `epsilon` another one, which is the guide's best with
    probability `fraction`, else uniformly random (ellm reference, 1.4)."""
    own = epsilon_greedy(q, obs, epsilon * (1 - fraction) / (1 - epsilon * fraction + 1e-9))
    mask = mask_of(obs)
    offered = guide_q if mask is None else jnp.where(mask, guide_q, -jnp.inf)
    best = jnp.argmax(offered, axis=-1, keepdims=True) == jnp.arange(q.shape[-1])
    share = epsilon * fraction
    probs = (1 - share) * own.probs + share * best
    return Categorical.masked(jnp.log(jnp.where(probs > 0, probs, 1.0)), probs > 0)
