"""Wrappers of single environments; the batch is made by `envs_jax.resets.VectorEnv`, outermost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax import spaces
from envs_jax.checks import nearest
from envs_jax.env import Wrapper


@struct.dataclass
class EpisodeState:
    """The wrapped state, with the sums of the running episode."""

    env: Any
    episode_return: jax.Array
    episode_length: jax.Array


class EpisodeStatistics(Wrapper):
    """Adds `info["episode_return"]` (float32) and `info["episode_length"]` (int32): the sums of the episode so far.

    When `terminated | truncated`, they are those of the whole episode.

    Learners read their metrics of episodes from it, so it is the innermost wrapper.

    **Example:**

    ```pycon
    >>> import envs_jax, jax
    >>> from envs_jax.wrappers import EpisodeStatistics
    >>> env, params = envs_jax.make("CartPole-v1")
    >>> env = EpisodeStatistics(env)
    >>> _, state = env.reset(jax.random.key(0), params)
    >>> *_, info = env.step(jax.random.key(1), state, 1, params)
    >>> float(info["episode_return"]), int(info["episode_length"])
    (1.0, 1)
    ```
    """

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return obs, EpisodeState(state, jnp.float32(0), jnp.int32(0))

    def step(self, key, state, action, params):
        obs, env, reward, terminated, truncated, info = self.env.step(key, state.env, action, params)
        total, length = state.episode_return + reward, state.episode_length + 1
        info = {**info, "episode_return": total, "episode_length": length}
        return obs, EpisodeState(env, total, length), reward, terminated, truncated, info

    def render(self, state):
        return self.env.render(state.env)

    def ascii(self, state):
        return self.env.ascii(state.env)


class KeepParts(Wrapper):
    """Keeps some parts of an observation, a dict. What makes the others is not computed in a compiled step."""

    def __init__(self, env, parts: Sequence[str]):
        """**Raises:** `ValueError`, naming the nearest, for a part that the observation lacks."""
        super().__init__(env)
        space = env.observation_space(env.default_params)
        names = list(getattr(space, "spaces", ()))
        for name in parts:
            if name not in names:
                raise ValueError(
                    f"the observation of {env.id} has no part {name!r}{nearest(name, names)} ({', '.join(names)})"
                )
        self.parts = tuple(parts)

    def _select(self, obs):
        return {name: obs[name] for name in self.parts}

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self._select(obs), state

    def step(self, key, state, action, params):
        obs, state, *result = self.env.step(key, state, action, params)
        return self._select(obs), state, *result

    def observation_space(self, params):
        space: Any = self.env.observation_space(params)
        return spaces.Dict(self._select(space.spaces))

    @property
    def captions(self):
        return {name: book for name, book in self.env.captions.items() if name in self.parts}

    @property
    def episode_captions(self):
        return tuple(name for name in self.env.episode_captions if name in self.parts)

    @property
    def stacked(self):
        return {name: stack for name, stack in self.env.stacked.items() if name in self.parts}


class ScaleReward(Wrapper):
    """Multiplies the reward by `scale`; place it outside `EpisodeStatistics` to keep the environment's own returns."""

    def __init__(self, env, scale: float):
        super().__init__(env)
        self.scale = scale

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward * jnp.float32(self.scale), terminated, truncated, info
