"""NovelD (Zhang et al., NeurIPS 2021): a step is rewarded for the novelty that it gains, where novelty is that of
random network distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from llmrl_jax.core.checks import NonNegativeFloat
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.bonus import BonusState
from llmrl_jax.rl.rnd import RND, RNDConfig


@dataclass(frozen=True)
class NovelDConfig(RNDConfig):
    """Random network distillation's settings, and NovelD's. Floats are traced."""

    PREFIX: ClassVar[str] = "noveld."

    alpha: NonNegativeFloat = 1.0
    """Weight of the novelty of the observation before a step, which is subtracted: 1 in ELLM's baseline, 0.5 in
    NovelD's paper."""


class NovelD(RND):
    """Novelty differences, a `llmrl_jax.rl.bonus.Bonus`: `max(n(s') - alpha * n(s), 0)` (eq. 1 of the paper, without
    its restriction to first visits, as in ELLM's baseline), where `n` is the predictor's error.

    The rewards are divided by a running standard deviation as those of `RND`, and learned in the same way."""

    name = "noveld"

    def __init__(self, config: NovelDConfig | None = None, features=None):
        """**Arguments:** as for `RND`."""
        super().__init__(config or NovelDConfig(), features)

    def reward(self, state: BonusState, steps: Transitions, gamma: float | jax.Array):
        whole = state.whole
        whole = whole | {"obs": whole["obs"].update(self.features(steps.next_obs, 2))}
        state = BonusState(whole, state.rows)
        before = self.errors(state, whole["params"], steps.obs, 2)
        after = self.errors(state, whole["params"], steps.next_obs, 2)
        gained = jnp.maximum(after - whole["hparams"]["alpha"] * before, 0.0)
        rows, novelty = self.scaled(state, gained)
        reward = gained / jnp.sqrt(novelty.var + 1e-8)
        metrics = {"noveld_error": jnp.mean(after), "noveld_reward": jnp.mean(reward)}
        return BonusState(whole | {"novelty": novelty}, rows), reward, metrics
