"""Starts of episodes that are played again: levels at which the policy sometimes succeeds, and sometimes does not.

A group learns nothing from a start at which all of its episodes succeed, or none. So starts are stored with an estimate
`p` of the policy's success there, some groups of an update begin in copies of them, drawn with weights `p (1 - p)`
(sampling for learnability, 2408.15099), and those of least weight give way to fresh ones of more.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from envs_jax.resets import select
from llmrl_jax.multiturn.record import Record
from llmrl_jax.multiturn.rollout import Steps


@struct.dataclass
class Draw:
    """The starts of `G` groups."""

    index: Int[Array, " G"]
    """Of a stored start; no two are equal."""
    stored: Bool[Array, " G"]
    """True for a group that begins there; else it begins in a fresh one."""


@struct.dataclass
class Starts:
    """`S` starts of episodes: states of the environment with their first observations."""

    obs: Any
    """Leaves `[S, ...]`."""
    env: Any
    """Leaves `[S, ...]`."""
    success: Float[Array, " S"]
    """The estimate `p`, 0 where no start of use is stored yet."""

    @staticmethod
    def empty(size: int, obs: Any, env: Any) -> Starts:
        """None of use. **Arguments:** `size`, `S`; `obs` and `env`, any start."""
        obs, env = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), (obs, env))
        return Starts(obs, env, jnp.zeros(size))

    def draw(self, key: jax.Array, groups: int, share: Any) -> Draw:
        """Starts of groups, without replacement, with probabilities proportional to `p (1 - p)`.

        **Arguments:** `groups`, `G`, at most `S`; `share`, of them that begin in stored starts, fewer where fewer have
        a weight."""
        score = jnp.log(weight(self.success)) + jax.random.gumbel(key, self.success.shape)
        index = jnp.argsort(-score, stable=True)[:groups]
        return Draw(index, (jnp.arange(groups) < jnp.round(share * groups)) & jnp.isfinite(score[index]))

    def rows(self, draw: Draw, obs: Any, env: Any) -> tuple[Any, Any]:
        """Observations and states with which episodes begin. **Arguments:** the fresh ones, leaves `[N, ...]`, those of
        a group in succession."""
        size = len(jax.tree.leaves(obs)[0]) // len(draw.index)
        index, stored = jnp.repeat(draw.index, size), jnp.repeat(draw.stored, size)
        return select(stored, jax.tree.map(lambda x: x[index], (self.obs, self.env)), (obs, env))

    def updated(self, draw: Draw, obs: Any, env: Any, success: Float[Array, " G"], decay: Any) -> Starts:
        """The starts after play.

        An estimate becomes `decay p + (1 - decay) m`, with `m` the mean of the group that began there. Then the fresh
        start of most weight replaces the stored one of least, if it has more, and so on.

        **Arguments:** `obs` and `env`, with which groups began, leaves `[G, ...]`; `success`, the means `m`."""
        size = len(self.success)
        mixed = decay * self.success[draw.index] + (1 - decay) * success
        estimates = self.success.at[jnp.where(draw.stored, draw.index, size)].set(mixed, mode="drop")
        new = jnp.where(draw.stored, -1.0, weight(success))
        best, worst = jnp.argsort(-new, stable=True), jnp.argsort(weight(estimates), stable=True)[: len(new)]
        target = jnp.where(new[best] > weight(estimates)[worst], worst, size)
        old, fresh = (self.obs, self.env, estimates), (obs, env, success)
        return Starts(*jax.tree.map(lambda x, y: x.at[target].set(y[best], mode="drop"), old, fresh))


def weight(success: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """`p (1 - p)`, the variance of success."""
    return success * (1 - success)


def succeeded(record: Record, steps: Steps) -> Bool[Array, " N"]:
    """Success of each row's episode: its environment says so (`info["success"]`) at the end, or, in one that says
    nothing of it, the return is positive."""
    if "success" in steps.info:
        return jnp.any(steps.done & steps.info["success"].astype(bool), axis=1)
    return jnp.sum(jnp.where(record.acts, record.reward, 0.0), axis=1) > 0
