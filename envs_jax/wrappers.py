"""Wrappers of single environments; the batch is made by `envs_jax.resets.VectorEnv`, outermost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

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

    def letters(self, state):
        return self.env.letters(state.env)


class ScaleReward(Wrapper):
    """Multiplies the reward by `scale`; place it outside `EpisodeStatistics` to keep the world's own returns."""

    def __init__(self, env, scale: float):
        super().__init__(env)
        self.scale = scale

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward * jnp.float32(self.scale), terminated, truncated, info
