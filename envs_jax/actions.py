"""Action masks: the actions that are available in a state.

An environment that offers only some of its actions in a state has a mask in its observation: the part `action_mask`,
bool `[A]`, true for those that are offered; at least one always is. As part of the observation, the mask is also in the
history that a policy reads and in the rollouts that it learns from. The environment still accepts any action; policies
give those that are not offered probability 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from envs_jax import spaces
from envs_jax.env import Environment, Wrapper


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


def check_done(env: Environment, actions: Sequence[str]) -> None:
    """Check that the missions of an environment can be accomplished with some of its actions: the option `done_actions`
    makes "done" one of those that are needed. **Raises:** `ValueError` if it is missing."""
    if getattr(env.unwrapped, "done_actions", False) and "done" not in actions:
        raise ValueError(
            f"{env.id} is won by saying done, but num_actions is {len(actions)}, without it: take "
            f"{env.action_names.index('done') + 1}, or leave done_actions out of the environment"
        )


class ChosenActions(OtherActions):
    """An environment with its first `n` actions, and further ones without effect.

    Each of these is BabyAI's "done", as in GLAM's published code. Environments that read it (`done_actions`) are
    refused. If the environment masks useless actions, the further ones are always masked; where it offers none of the
    first `n`, all of these are offered.
    """

    def __init__(self, env: Environment, n: int, extra: tuple[str, ...] = ()):
        """**Raises:** `ValueError` for an `n` that the environment does not have; with further actions, for an `n` that
        includes "done", a name that is already an action's, or an environment that reads "done"."""
        super().__init__(env)
        names = env.action_names
        self.idle = names.index("done") if extra else len(names)
        if not 1 <= n <= self.idle:
            available = (
                f"{self.idle} actions that do something" if extra else f"{len(names)} actions: {', '.join(names)}"
            )
            raise ValueError(f"num_actions is {n}, but {env.id} has {available}")
        if len({*names, *extra}) < len(names) + len(extra):
            raise ValueError(f"two of the actions {', '.join((*names, *extra))} have the same name")
        check_done(env, (*names[:n], *extra))
        self.n, self.extra = n, extra

    def step(self, key, state, action, params):
        action = jnp.where(action < self.n, action, self.idle) if self.extra else action
        return super().step(key, state, action, params)

    def offered(self, mask):
        kept = mask[: self.n]
        return jnp.concatenate([kept | ~jnp.any(kept), jnp.zeros(len(self.extra), bool)])

    def action_space(self, params):
        return spaces.Discrete(self.n + len(self.extra))

    @property
    def action_names(self):
        return (*self.env.action_names[: self.n], *self.extra)

    @property
    def keys(self):
        return {key: action for key, action in self.env.keys.items() if action < self.n}
