"""Competence: the policy's own estimate of its success probability (after MAGELLAN, 2502.07709).

A head on the prompt's hidden state gives the log-odds of success, at any step of an episode. It is trained on PPO's
forward passes with the binary cross-entropy to the outcome: 1 if the episode ends in success, 0 if it ends in failure
or a time-out. An episode that continues beyond the rollout has no outcome yet. Omitting its steps would underrepresent
long episodes, which are the failures, and bias the estimates upwards; so the target is the prediction at its last
state, as in an undiscounted critic whose only reward is success.

MAGELLAN learns only from first observations and chooses goals by the learning progress of the estimate. Here the
environment chooses goals; the estimate is reported, and `llmrl glam eval` compares it with the outcomes.
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

from envs_jax import tracing
from llmrl_jax.agents.language import LanguagePolicy, over_steps


@struct.dataclass
class Outcome:
    """The outcome of the episode that each step belongs to."""

    success: jax.Array
    """float32 `[T, N]`: 1 or 0, or the estimate at the rollout's end if the episode continues."""
    ended: jax.Array
    """bool `[T, N]`: whether the episode ended."""


def outcomes(success: Bool[Array, "T N"], ended: Bool[Array, "T N"], estimate: Float[Array, " N"]) -> Outcome:
    """The outcome of every step's episode.

    **Arguments:** `success`, at steps that end an episode; `ended`, whether a step ends an episode; `estimate`, the
    probability of success in the state after the last step.
    """

    def back(after, step):
        success, ended = step
        after = (jnp.where(ended, success.astype(jnp.float32), after[0]), ended | after[1])
        return after, after

    start = (estimate, jnp.zeros(estimate.shape, bool))
    return Outcome(*tracing.scan(back, start, (success, ended), reverse=True)[1])


@dataclass(frozen=True)
class Competence:
    """Training of the head, as a `llmrl_jax.rl.policy.Auxiliary`; predictions are log-odds."""

    policy: LanguagePolicy
    """With a `competence_head`."""
    coef: float
    name: str = "competence"

    def consider(self, params: Any, frozen: Any, obs: Any):
        """Distribution over actions, the value and the log-odds of success of each row, in one forward pass."""
        distribution, hidden = self.policy.distribution_and_hidden(params, frozen, obs)
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
        mean squared error, and `competence_bias`, estimate minus outcome, overall and by task."""
        estimate = jax.nn.sigmoid(rollout.prediction)
        error = estimate - target.success

        def mean(x, mask):
            return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.sum(mask)

        report = {
            "competence": jnp.mean(estimate),
            "competence_brier": mean(error**2, target.ended),
            "competence_bias": mean(error, target.ended),
        }
        for i, task in enumerate(task_names if len(task_names) > 1 else ()):
            report[f"competence_bias/{task}"] = mean(error, target.ended & (rollout.info["task"] == i))
        return report


_BINS = 10
"""Number of bins of equal width for the calibration error."""


def calibration(estimate: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """Accuracy of estimates of success, on the host; nan if there are none.

    **Arguments:** `estimate`, float `[N]`, probabilities; `success`, bool `[N]`.
    **Returns:** `estimate`, their mean; `brier`, the mean squared error (Brier 1950); `calibration_error`, the mean
    over bins of |mean estimate - success rate|, weighted by the number of episodes in each (ECE, 1706.04599).
    """
    if not len(estimate):
        return dict.fromkeys(("estimate", "brier", "calibration_error"), float("nan"))
    error = estimate.astype(np.float64) - success
    bins = np.minimum((estimate * _BINS).astype(int), _BINS - 1)
    gaps = np.abs(np.bincount(bins, weights=error, minlength=_BINS))
    return {
        "estimate": float(np.mean(estimate, dtype=np.float64)),
        "brier": float(np.mean(error**2)),
        "calibration_error": float(gaps.sum() / len(estimate)),
    }
