"""Competence: the policy's own estimate of whether it will reach the goal (after MAGELLAN, 2502.07709).

A head on the prompt's hidden state gives the log-odds of success, from any step of an episode. It learns on the passes
that PPO makes anyway, by the binary cross-entropy to the outcome: 1 where the episode ends in success, 0 where it ends
in failure or in a time-out. An episode that goes on beyond the rollout has no outcome yet. Were its steps left out,
long episodes, which are the failures, would be seldom learnt from, and all goals look easy; so the prediction at its
last state stands for it, as in a critic without discount whose only reward is success.

MAGELLAN learns from first observations alone and chooses goals by how fast the estimate rises. Here goals are the
world's to choose; the estimate is reported, and `llmrl glam eval` compares it with the outcome of the episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float

from llmrl_jax.agents.language import LanguagePolicy, over_steps


@struct.dataclass
class Outcome:
    """The outcome of the episode that each step belongs to."""

    success: jax.Array
    """float32 `[T, N]`: 1 or 0, or the estimate at the rollout's end where the episode goes on."""
    known: jax.Array
    """bool `[T, N]`: whether the episode ended."""


def outcomes(success: Bool[Array, "T N"], ended: Bool[Array, "T N"], estimate: Float[Array, " N"]) -> Outcome:
    """The outcome of every step's episode.

    **Arguments:** `success`, of the steps that end an episode; `ended`, which those are; `estimate`, the probability
    of success in the state after the last step.
    """

    def back(after, step):
        success, ended = step
        after = (jnp.where(ended, success.astype(jnp.float32), after[0]), ended | after[1])
        return after, after

    start = (estimate, jnp.zeros(estimate.shape, bool))
    return Outcome(*jax.lax.scan(back, start, (success, ended), reverse=True)[1])


@dataclass(frozen=True)
class Competence:
    """The head's learning, as a `llmrl_jax.rl.policy.Auxiliary`; predictions are log-odds."""

    policy: LanguagePolicy
    """With a `competence_head`."""
    coef: float
    name: str = "competence"

    def consider(self, params: Any, frozen: Any, obs: Any):
        """The distribution over actions, the value and the log-odds of success of each row, by one pass."""
        distribution, hidden = self.policy.consider(params, frozen, obs)
        return distribution, self.policy.value(params, hidden), self.policy.competence(params, hidden)

    def step(self, params, frozen, obs, carry, first):
        distribution, value, odds = self.consider(params, frozen, obs)
        return distribution, value, carry, odds

    def unroll(self, params, frozen, obs, carry, first):
        return over_steps(lambda flat: self.consider(params, frozen, flat), obs, first)

    def targets(self, params: Any, frozen: Any, rollout: Any, runner: Any) -> Outcome:
        estimate = self.policy.success_probability(params, frozen, runner.obs)
        return outcomes(rollout.info["success"], rollout.terminated | rollout.truncated, estimate)

    def loss(self, prediction, target):
        return jnp.mean(optax.sigmoid_binary_cross_entropy(prediction, target.success))

    def report(self, rollout: Any, target: Outcome, task_names: tuple[str, ...]) -> dict[str, jax.Array]:
        """`competence`, the mean estimate; over the steps whose episode ended in the rollout `competence_brier`, the
        mean squared error, and `competence_bias`, estimate less outcome, in all and by task."""
        estimate = jax.nn.sigmoid(rollout.prediction)
        error = estimate - target.success

        def mean(x, mask):
            return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.sum(mask)

        report = {
            "competence": jnp.mean(estimate),
            "competence_brier": mean(error**2, target.known),
            "competence_bias": mean(error, target.known),
        }
        for i, task in enumerate(task_names if len(task_names) > 1 else ()):
            report[f"competence_bias/{task}"] = mean(error, target.known & (rollout.info["task"] == i))
        return report


BINS = 10
"""Of equal width, over which the calibration error is taken."""


def calibration(estimate: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """How accurate estimates of success were, on the host; nan where there are none.

    **Arguments:** `estimate`, float `[N]`, probabilities; `success`, bool `[N]`.
    **Returns:** `estimate`, their mean; `brier`, the mean squared error (Brier 1950); `calibration_error`, the mean
    over bins of |mean estimate - success rate|, weighted by the number of episodes in each (ECE, 1706.04599).
    """
    if not len(estimate):
        return dict.fromkeys(("estimate", "brier", "calibration_error"), float("nan"))
    error = estimate.astype(np.float64) - success
    bins = np.minimum((estimate * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bins, weights=error, minlength=BINS))
    return {
        "estimate": float(np.mean(estimate, dtype=np.float64)),
        "brier": float(np.mean(error**2)),
        "calibration_error": float(gaps.sum() / len(estimate)),
    }
