"""The recent past as part of the observation: what a text policy is prompted with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.checks import nearest
from envs_jax.env import Environment, Wrapper


@struct.dataclass
class HistoryState:
    """The wrapped state, with the window."""

    env: Any
    text: jax.Array
    """int16 `[n, C]`, the captions of the window, oldest first, padded with -1."""
    actions: jax.Array
    """int32 `[n - 1]`, the actions between them, padded with -1."""
    count: jax.Array
    """int32 `[]`, the captions in the window, 1 to `n`."""


class PromptHistory(Wrapper):
    """Keeps the last `n` captions and the `n - 1` actions between them, of the running episode only.

    The observation becomes `{mission [M], text [n, C], actions int32 [n - 1], count int32 []}`, oldest first, the
    places that are not in use -1 (GLAM keeps three captions and two actions; glam reference, section 2.4).
    """

    def __init__(self, env: Environment, n: int = 3, *, keep: Sequence[str] = ()):
        """**Arguments:** `env`, whose observation has a `mission` and a `text`; `n`, the captions to keep; `keep`,
        other parts of the observation to pass on as they are now (`image`, `direction`).

        **Raises:** `ValueError` for an `n` below 1, `TypeError` for an environment without text or without
        discrete actions, `KeyError` for a part to keep that the observation does not have."""
        super().__init__(env)
        self.n, self.keep = n, tuple(keep)
        if n < 1:
            raise ValueError(f"the window is {n} captions; at least 1 is needed")
        space = env.observation_space(env.default_params)
        names = list(space.spaces) if isinstance(space, spaces.Dict) else []
        if "text" not in names or "mission" not in names:
            raise TypeError(
                f"{env.id or type(env).__name__} has no text: its observation is {names or space}; the ids of text "
                "worlds begin with BabyAI-Text/"
            )
        if not isinstance(env.action_space(env.default_params), spaces.Discrete):
            raise TypeError(f"{env.id or type(env).__name__} has no discrete actions to remember")
        for name in self.keep:
            if name not in names:
                raise KeyError(
                    f"the observation has no part {name!r}{nearest(name, names)} (it has {', '.join(names)})"
                )

    def _observe(self, obs: Any, state: HistoryState) -> dict[str, Any]:
        window = {"mission": obs["mission"], "text": state.text, "actions": state.actions, "count": state.count}
        return window | {name: obs[name] for name in self.keep}

    def reset(self, key, params):
        obs, env = self.env.reset(key, params)
        text = jnp.full((self.n, *obs["text"].shape), -1, obs["text"].dtype).at[0].set(obs["text"])
        state = HistoryState(env, text, jnp.full(self.n - 1, -1, jnp.int32), jnp.int32(1))
        return self._observe(obs, state), state

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params)
        full = state.count == self.n
        place = jnp.where(full, self.n - 1, state.count)  # of the new caption, once a full window has moved up
        new = jnp.arange(self.n) == place
        moved = jnp.where(full, jnp.roll(state.text, -1, axis=0), state.text)
        text = jnp.where(new[:, None], obs["text"], moved)
        actions = state.actions
        if self.n > 1:
            moved = jnp.where(full, jnp.roll(actions, -1), actions)
            actions = jnp.where(new[1:], jnp.asarray(action, jnp.int32), moved)
        state = HistoryState(env, text, actions, jnp.minimum(state.count + 1, self.n))
        return self._observe(obs, state), state, reward, terminated, truncated, info

    def observation_space(self, params):
        inner = self.env.observation_space(params).spaces  # type: ignore[attr-defined]
        actions = self.env.action_space(params).n  # type: ignore[attr-defined]
        window = {
            "mission": inner["mission"],
            "text": spaces.stack(inner["text"], self.n),
            "actions": spaces.Box(-1, actions - 1, (self.n - 1,), np.int32),
            "count": spaces.Box(1, self.n, (), np.int32),
        }
        return spaces.Dict(window | {name: inner[name] for name in self.keep})

    def describe(self, obs):
        """The strings of the newest caption and the mission, as the wrapped environment words them."""
        now = {name: obs[name] for name in ("mission", *self.keep)}
        return self.env.describe(now | {"text": np.asarray(obs["text"])[int(obs["count"]) - 1]})

    def render(self, state):
        return self.env.render(state.env)
