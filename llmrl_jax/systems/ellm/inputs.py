"""What networks see of an observation: pictures, symbols, texts as embeddings, and goals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax import spaces
from envs_jax.env import Environment
from llmrl_jax.lm.encoder import TextEncoder, summed
from llmrl_jax.rl.branches import Inputs, l2_normalized
from llmrl_jax.rl.features import Symbols, plane_sizes
from llmrl_jax.systems.ellm.goals import unpacked
from llmrl_jax.systems.ellm.placing import Placing


SYMBOLS = ("view", "inventory")
"""The parts of an observation that are symbols: a grid of codes, and counts."""


PICTURE = "image"
"""The part of an observation that is a picture, uint8 `[H, W, C]`; in some worlds a part of that name has codes."""


def picture_of(space: Any) -> tuple[str, ...]:
    """The part of an observation space that is a picture, if there is one."""
    part: Any = dict(space.spaces).get(PICTURE) if isinstance(space, spaces.Dict) else None
    return (PICTURE,) if part is not None and np.dtype(part.dtype) == np.uint8 else ()


def make_inputs(
    env: Environment, space: spaces.Dict, captions: int, *, texts: tuple[str, ...], encoder: TextEncoder, goals: bool
) -> Callable[[Any], Inputs]:
    """Build the function from observations `[B, ...]` to the inputs of `llmrl_jax.rl.branches`.

    A text is the normalised sum of the embeddings of its phrases: a state has too many texts for a table of whole ones.

    **Arguments:** `env`, for its phrasebooks; `space`, of the observations, further parts of which are not read;
    `captions`, how many captions are goals; `texts`, the parts of the observation that are text; `encoder`; `goals`,
    whether the network sees goals.
    """
    tables = {name: np.asarray(encoder.encode_texts(env.captions[name].phrases)) for name in texts}
    parts: dict[str, Any] = dict(space.spaces)
    view = plane_sizes(parts["view"]) if "view" in parts else ()
    most = float(np.max(parts["inventory"].high)) if "inventory" in parts else 1.0

    def inputs(obs: Any) -> Inputs:
        found: dict[str, Any] = {}
        if PICTURE in parts:
            found["image"] = obs[PICTURE]
        if "inventory" in parts:
            found["symbols"] = obs["inventory"].astype(jnp.float32) / most
        if view:
            counts = found.get("symbols", jnp.zeros((obs["view"].shape[0], 0)))
            found["symbols"] = Symbols(obs["view"], counts, view)
        if tables:
            total = sum(summed(table, obs[name]) for name, table in tables.items())
            found["text"] = l2_normalized(total)  # type: ignore[arg-type]
        if goals:
            found["goals"] = unpacked(obs["goals"], captions)
        return found

    return inputs


def closed_inputs(
    env: Placing, *, texts: tuple[str, ...], encoder: TextEncoder, goals: bool, symbols: bool
) -> Callable[[Any], Inputs]:
    """`make_inputs` for a world with closed-form goals: these are symbols too, by slot and place, since the same object
    has different slots in different episodes. **Arguments:** as there; `symbols`, whether the network sees them."""
    tables = {name: np.asarray(encoder.encode_texts(env.captions[name].phrases)) for name in texts}

    def inputs(obs: Any) -> Inputs:
        found: dict[str, jax.Array] = {}
        parts = [env.facts.features(obs)] if symbols else []
        if goals:
            bits = unpacked(obs["goals"], env.num_goals)
            found["goals"] = env.as_captions(obs["categories"], bits)
            parts.append(bits.astype(jnp.float32))
            if symbols:
                parts.append(env.facts.goal_features(obs, found["goals"]))
        if parts:
            found["symbols"] = jnp.concatenate(parts, axis=-1)
        if tables:
            found["text"] = l2_normalized(sum(summed(table, obs[name]) for name, table in tables.items()))  # type: ignore[arg-type]
        return found

    return inputs


def novelty_features(
    inputs: Callable[[Any], Inputs], stacked: Collection[str] = ()
) -> Callable[[Any, int], Float[Array, "*B D"]]:
    """What a novelty bonus sees: the picture's pixels, symbols and texts, without goals.

    **Arguments:** `inputs`, of networks; `stacked`, the parts of observations that are stacks of frames: of such a
    picture the bonus sees the newest frame.
    """

    def features(obs: Any, batch_dims: int) -> Float[Array, "*B D"]:
        lead = jax.tree.leaves(obs)[0].shape[:batch_dims]
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[batch_dims:]), obs)
        seen = inputs(rows)
        parts = [seen[name] for name in ("symbols", "text") if name in seen]
        parts = [x.vector() if isinstance(x, Symbols) else x for x in parts]
        if "image" in seen:
            image = seen["image"][..., -1] if PICTURE in stacked else seen["image"]
            parts.append(image.reshape(image.shape[0], -1).astype(jnp.float32) / 255)
        return jnp.concatenate(parts, axis=-1).reshape(*lead, -1)

    return features
