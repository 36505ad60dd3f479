"""A window of recent observations and actions as part of the observation, for the prompts of a text policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.checks import at_least, nearest
from envs_jax.env import Environment, Wrapper


@struct.dataclass
class HistoryState:
    """The wrapped state, with the window."""

    env: Any
    text: Any
    """int16 `[n, C]`, the captions of the window, oldest first, padded with -1; if an environment has several captions
    that change, a dict of such arrays by name."""
    actions: jax.Array
    """int32 `[n - 1]`, the actions between them, padded with -1."""
    count: jax.Array
    """int32 `[]`, the captions in the window, 1 to `n`."""


class PromptHistory(Wrapper):
    """Keeps the last `n` captions and the `n - 1` actions between them, of the running episode only.

    `env.captions` names the parts of the observation that are captions. In the observation, those that stay the same
    throughout an episode (`env.episode_captions`, a mission) are unchanged, every other one is `[n, C]`, oldest first;
    `actions` int32 `[n - 1]` and `count` int32 `[]` are added. Unused entries are -1. In BabyAI: `{mission [M], text
    [n, C], actions, count}` (GLAM keeps three captions and two actions, 2302.02662).

    **Example:**

    ```pycon
    >>> import envs_jax
    >>> from envs_jax.history import PromptHistory
    >>> env, params = envs_jax.make("BabyAI-Text/GoToObjS4-v0")
    >>> spaces = PromptHistory(env, 3).observation_space(params).spaces
    >>> sorted(spaces), spaces["actions"].shape, spaces["text"].shape[0]
    (['actions', 'count', 'mission', 'text'], (2,), 3)
    ```
    """

    def __init__(self, env: Environment, n: int = 3, *, keep: Sequence[str] = ()):
        """**Arguments:** `env`, whose observation has a caption that changes; `n`, the captions to keep; `keep`, other
        parts of the observation to pass through, their current values only (`image`, `direction`).

        **Raises:** `ValueError` for an `n` below 1, `TypeError` for an environment without text or without
        discrete actions, `KeyError` for a part to keep that the observation does not have."""
        super().__init__(env)
        self.n, self.keep = n, tuple(keep)
        at_least("n", n, 1, remedy="it is the number of captions in the window")
        space = env.observation_space(env.default_params)
        names = list(space.spaces) if isinstance(space, spaces.Dict) else []
        self.moving = tuple(name for name in env.captions if name not in env.episode_captions)
        """The captions of the window."""
        if not self.moving:
            raise TypeError(
                f"{env.id or type(env).__name__} has no text: its observation is {names or space}, and none of it is a "
                "caption that changes; take a text world (`llmrl envs list text`)"
            )
        if not isinstance(env.action_space(env.default_params), spaces.Discrete):
            raise TypeError(f"{env.id or type(env).__name__} has no discrete actions to remember")
        for name in self.keep:
            if name not in names:
                raise KeyError(
                    f"the observation has no part {name!r}{nearest(name, names)} (it has {', '.join(names)})"
                )

    def _text(self, obs: Any) -> Any:
        """The captions of the window, as `HistoryState.text` holds them."""
        return obs[self.moving[0]] if len(self.moving) == 1 else {name: obs[name] for name in self.moving}

    def _named(self, text: Any) -> dict[str, Any]:
        return {self.moving[0]: text} if len(self.moving) == 1 else text

    def _observe(self, obs: Any, state: HistoryState) -> dict[str, Any]:
        window = {name: obs[name] for name in self.env.episode_captions} | self._named(state.text)
        return window | {"actions": state.actions, "count": state.count} | {name: obs[name] for name in self.keep}

    def reset(self, key, params):
        obs, env = self.env.reset(key, params)
        text = jax.tree.map(lambda now: jnp.full((self.n, *now.shape), -1, now.dtype).at[0].set(now), self._text(obs))
        state = HistoryState(env, text, jnp.full(self.n - 1, -1, jnp.int32), jnp.int32(1))
        return self._observe(obs, state), state

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params)
        full = state.count == self.n
        index = jnp.where(full, self.n - 1, state.count)  # of the new caption, after a full window has been shifted
        new = jnp.arange(self.n) == index

        def moved(past, now):
            return jnp.where(new[:, None], now, jnp.where(full, jnp.roll(past, -1, axis=0), past))

        text = jax.tree.map(moved, state.text, self._text(obs))
        actions = state.actions
        if self.n > 1:
            earlier = jnp.where(full, jnp.roll(actions, -1), actions)
            actions = jnp.where(new[1:], jnp.asarray(action, jnp.int32), earlier)
        state = HistoryState(env, text, actions, jnp.minimum(state.count + 1, self.n))
        return self._observe(obs, state), state, reward, terminated, truncated, info

    def observation_space(self, params):
        inner = self.env.observation_space(params).spaces  # type: ignore[attr-defined]
        actions = self.env.action_space(params).n  # type: ignore[attr-defined]
        window = {name: inner[name] for name in self.env.episode_captions}
        window |= {name: spaces.stack(inner[name], self.n) for name in self.moving}
        window |= {
            "actions": spaces.Box(-1, actions - 1, (self.n - 1,), np.int32),
            "count": spaces.Box(1, self.n, (), np.int32),
        }
        return spaces.Dict(window | {name: inner[name] for name in self.keep})

    @property
    def stacked(self):
        return {name: stack for name, stack in self.env.stacked.items() if name in self.keep}

    def describe(self, obs):
        """Strings of the newest captions and of those of the episode, as the wrapped environment renders them."""
        now = {name: obs[name] for name in (*self.env.episode_captions, *self.keep)}
        newest = {name: np.asarray(obs[name])[int(obs["count"]) - 1] for name in self.moving}
        return self.env.describe(now | newest)

    def render(self, state):
        return self.env.render(state.env)

    def ascii(self, state):
        return self.env.ascii(state.env)
