"""Statistics of a data set, and the normalisations of published offline learners."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llmrl_jax.data.transitions import DataError, Trajectories, Transitions


D4RL_RETURNS = {
    "halfcheetah": (-280.18, 12135.0),
    "hopper": (-20.27, 3234.3),
    "walker2d": (1.63, 4592.3),
}
"""World -> the mean returns of the random and the expert policy in D4RL's normalized scores (2004.07219)."""


def episode_returns(trajectories: Trajectories) -> Float[Array, " E"]:
    """The undiscounted return of every episode."""
    return jnp.sum(jnp.where(trajectories.mask, trajectories.reward, 0.0), axis=1)


def d4rl_score(returns: Any, low: float, high: float) -> Any:
    """Returns in percent: 0 is the random policy's, `low`, and 100 the expert's, `high`."""
    return 100 * (returns - low) / (high - low)


def observation_moments(transitions: Transitions, eps: float = 1e-3) -> tuple[Any, Any]:
    """The mean and the standard deviation plus `eps` of every entry of an observation, as CORL computes them; trees
    with the structure of an observation, float32."""
    obs = jax.tree.map(lambda x: x.astype(jnp.float32), transitions.obs)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), obs)
    return mean, jax.tree.map(lambda x: jnp.std(x, axis=0) + eps, obs)


def normalize_observations(transitions: Transitions, mean: Any, std: Any) -> Transitions:
    """Replace observations by `(x - mean) / std`; a policy trained on them needs the same in its world."""

    def normal(tree):
        return jax.tree.map(lambda x, m, s: (x.astype(jnp.float32) - m) / s, tree, mean, std)

    return transitions.replace(obs=normal(transitions.obs), next_obs=normal(transitions.next_obs))


def reward_scale(trajectories: Trajectories, span: float = 1000.0) -> float:
    """The factor of rewards with which the range of episode returns is `span`, as in IQL (2110.06169).

    **Raises:** `DataError` if all returns are equal.
    """
    returns = episode_returns(trajectories)
    low, high = float(jnp.min(returns)), float(jnp.max(returns))
    if low == high:
        raise DataError(
            f"all {len(trajectories)} episodes have the return {low:g}: rewards cannot be scaled by returns"
        )
    return span / (high - low)
