"""Action masks: the actions that are available in a state.

An environment that offers only some of its actions in a state has a mask in its observation: the part `action_mask`,
bool `[A]`, true for those that are offered; at least one always is. As part of the observation, the mask is also in the
history that a policy reads and in the rollouts that it learns from. The environment still accepts any action; policies
give those that are not offered probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Bool

from envs_jax import spaces
from envs_jax.env import Wrapper


MASK = "action_mask"
"""The part of an observation that says which actions are offered."""


def mask_of(obs: Any) -> Bool[Array, "*B A"] | None:
    """The mask in an observation, of any batch; None if every action is always offered."""
    return obs.get(MASK) if isinstance(obs, Mapping) else None


def mask_space(num_actions: int) -> spaces.Box:
    """The space of masks over `num_actions` actions."""
    return spaces.Box(False, True, (num_actions,), np.bool_)


class OtherActions(Wrapper):
    """An environment with other actions than the wrapped one; subclasses define which of them are offered."""

    def offered(self, mask: Bool[Array, " A"]) -> Bool[Array, " B"]:
        """The mask over the actions of this wrapper, from the one over those of the wrapped environment."""
        raise NotImplementedError

    def _observe(self, obs: Any) -> Any:
        mask = mask_of(obs)
        return obs if mask is None else {**obs, MASK: self.offered(mask)}

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self._observe(obs), state

    def step(self, key, state, action, params):
        obs, *result = self.env.step(key, state, action, params)
        return self._observe(obs), *result

    def observation_space(self, params):
        space = self.env.observation_space(params)
        if not (isinstance(space, spaces.Dict) and MASK in space.spaces):
            return space
        return spaces.Dict({**space.spaces, MASK: mask_space(self.action_space(params).n)})  # type: ignore[attr-defined]
