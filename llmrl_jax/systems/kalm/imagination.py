"""Imagined episodes: a grounded model carries out an instruction in its own head (kalm reference, section 4.4).

Two passes of one place for each step, behind a cache: the action is read off the state at the same time, and the next
state off the action. (The published program takes both from one pass, so that each action belongs to the state before.)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from envs_jax import tracing
from envs_jax.threads import cores
from llmrl_jax.lm.cache import UNROLLED
from llmrl_jax.systems.kalm.world_model import Units, WorldModel
from llmrl_jax.systems.kalm.worlds import Label


PIECE = 16
"""Episodes of a small model that a core imagines at once: the cache of more does not fit a core's own, and products as
small as these gain nothing from two cores."""


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
        return (cache, after), (after, action)

    first = jnp.asarray(first, jnp.float32)
    _, found = tracing.scan(step, (cache, first), None, length=horizon)
    after, actions = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)
    states = jnp.concatenate([first[:, None], after], axis=1)
    rewards, success = label(goals, states, actions)
    reached = jnp.any(success, axis=1)
    ends = jnp.where(reached, jnp.argmax(success, axis=1) + 1, horizon)
    return Imagined(states, actions, jnp.asarray(rewards, jnp.float32), ends.astype(jnp.int32), reached)


def piece_of(model: WorldModel, together: int) -> int:
    """How many of the episodes that are imagined at the same time one program has: on a CPU `PIECE` for a model of few
    layers, else all of them."""
    small = model.llama.config.num_hidden_layers <= UNROLLED and tracing.platform() == "cpu"
    return min(together, PIECE) if small else together


def in_pieces(play: Callable[..., Imagined], rows: Any, size: int) -> Imagined:
    """Episodes on the host, `size` at a time, as many programs at the same time as there are cores.

    **Arguments:** `play`, a compiled function of `size` rows; `rows`, its arguments, leaves `[B, ...]` of NumPy. The
    last piece is filled up with the first rows.
    """
    count = len(jax.tree.leaves(rows)[0])

    def piece(start: int) -> Imagined:
        at = np.arange(start, start + size) % count
        return jax.tree.map(np.asarray, play(*jax.tree.map(lambda x: jnp.asarray(x[at]), rows)))

    with ThreadPoolExecutor(cores()) as pool:
        made = list(pool.map(piece, range(0, count, size)))
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *made)
