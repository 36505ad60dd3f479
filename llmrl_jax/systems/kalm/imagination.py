"""Imagined episodes: a grounded model carries out an instruction in its own head (kalm reference, section 4.4).

Two passes of one place for each step, behind a cache: the action is read off the state at the same time, and the next
state off the action. (The published program takes both from one pass, so that each action belongs to the state before.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from llmrl_jax.systems.kalm.world_model import Units, WorldModel
from llmrl_jax.systems.kalm.worlds import Label


@struct.dataclass
class Imagined:
    """`B` episodes of at most `T` steps. Steps after the end are undefined."""

    states: Float[Array, "B T+1 d"]
    actions: jax.Array
    """int32 `[B, T]`, or float32 `[B, T, a]`."""
    rewards: Float[Array, "B T"]
    lengths: Int[Array, " B"]
    """Steps up to the first success, or all."""
    success: jax.Array
    """bool `[B]`, whether the rules say so."""


def imagine(
    model: WorldModel,
    variables: Any,
    units: Units,
    tokens: Int[Any, "B P"],
    lengths: Int[Any, " B"],
    first: Float[Any, "B d"],
    goals: Any,
    label: Label,
    horizon: int,
) -> Imagined:
    """Episodes for instructions, from given first states; the most likely action is taken.

    **Arguments:** `tokens` and `lengths`, see `patterns.prompts`; `goals`, leaves `[B, ...]`; `horizon`, T.
    """
    cache = model.start(variables, tokens, lengths, 2 * horizon)
    layers = model.each_layer(variables)

    def step(carry: Any, _: None) -> Any:
        cache, state = carry
        hidden, cache = model.advance(variables, cache, model.enter_state(variables, units, state), layers)
        action = model.act(variables, hidden)
        hidden, cache = model.advance(variables, cache, model.enter_action(variables, action), layers)
        after = model.next_state(variables, units, hidden, state)
        reward, success = label(goals, state, after, action)
        return (cache, after), (after, action, jnp.asarray(reward, jnp.float32), success)

    first = jnp.asarray(first, jnp.float32)
    _, found = jax.lax.scan(step, (cache, first), None, length=horizon)
    after, actions, rewards, success = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)
    reached = jnp.any(success, axis=1)
    ends = jnp.where(reached, jnp.argmax(success, axis=1) + 1, horizon)
    states = jnp.concatenate([first[:, None], after], axis=1)
    return Imagined(states, actions, rewards, ends.astype(jnp.int32), reached)
