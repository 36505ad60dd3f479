"""The agent of BK-RL: the parts of an environment's observations that it sees, and its network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import envs_jax
from envs_jax import spaces
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics, KeepParts
from llmrl_jax.rl.networks import NetworkConfig, NetworkPolicy, one_hots, plane_sizes


OBSERVED = {"babyai": ("image",), "crafter": ("view", "inventory", "daylight")}
"""Parts of observations that an agent sees, by family: as published the image alone in BabyAI, and neither its
direction nor the mission, which are the same for all episodes or say nothing. Crafter's symbols take the place of its
image, if an environment has them."""


def observed_parts(env: Environment, family: str) -> tuple[str, ...]:
    """The parts of an environment's observations that the agent sees."""
    space: Any = env.observation_space(env.default_params)
    symbols = tuple(name for name in OBSERVED[family] if name in space.spaces)
    return symbols if family == "babyai" or "view" in symbols else ("image",)


def playable(env: Environment, parts: tuple[str, ...]) -> Environment:
    """An environment that reports its episodes, and of whose observations only `parts` are computed."""
    return EpisodeStatistics(KeepParts(env, parts))


def make_features(space: spaces.Dict, names: tuple[str, ...], flat: bool) -> Callable[[Any, int], Float[Array, "..."]]:
    """From observations to the network's inputs: codes of grids as one-hot vectors, others divided by their largest
    value.

    **Arguments:** `names`, of the parts; `flat`, whether everything becomes one vector; else the first part is an image
    `[H, W, C]`, and the only one.
    """
    parts: dict[str, Any] = dict(space.spaces)
    planes = {name: _codes(parts[name]) for name in names}
    if not flat and len(names) > 1:
        raise ValueError(
            f"convolutions see an image alone, and the agent observes {', '.join(names)}: leave network.channels and "
            "rnd.channels empty, or choose an environment whose observation is an image"
        )

    def encode_part(name: str, x: jax.Array) -> jax.Array:
        if planes[name]:
            return jnp.concatenate(one_hots(x, planes[name]), axis=-1)
        return x.astype(jnp.float32) / jnp.float32(np.max(parts[name].high))

    def features(obs: Any, batch_dims: int) -> jax.Array:
        if not flat:
            return encode_part(names[0], obs[names[0]])
        lead = obs[names[0]].shape[:batch_dims]
        return jnp.concatenate([encode_part(name, obs[name]).reshape(*lead, -1) for name in names], axis=-1)

    return features


def _codes(space: spaces.Box) -> tuple[int, ...]:
    """The number of codes of each plane of a grid of small codes; empty for other parts."""
    if len(space.shape) != 3 or np.max(space.high) > 63:
        return ()
    return plane_sizes(space)


def make_policy(env: Environment, names: tuple[str, ...], network: NetworkConfig) -> NetworkPolicy:
    """The actor-critic of an environment. **Arguments:** `names`, the parts of an observation that it sees."""
    space: Any = env.observation_space(env.default_params)
    return NetworkPolicy(
        env.action_space(env.default_params),
        hidden=network.hidden,
        channels=network.channels,
        activation="relu" if network.activation == "auto" else network.activation,
        features=make_features(space, names, flat=not network.channels),
    )


def make_env(id: str) -> Environment:
    """The bare environment of an id, as `envs_jax.make` builds it."""
    return envs_jax.make(id)[0]
