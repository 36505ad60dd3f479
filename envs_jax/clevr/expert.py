"""A scripted expert: it looks two pushes ahead in a rough model of what a push does.

The model moves the pushed ball by a typical displacement, lets balls that still roll come to rest, and moves balls that
would overlap apart. It knows no spin, no third dimension and no time; the expert plans again after every push.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.clevr.constants import ACTIONS, AXES, BALLS, DIRECTIONS, GREEN, HIGH, LOW, RADIUS
from envs_jax.clevr.env import ClevrRobot
from envs_jax.clevr.goals import GATHER, LINE, MOST, PUSH
from envs_jax.clevr.rules import ALLOWED
from envs_jax.clevr.state import State
from envs_jax.env import Environment


SHOVE = np.where(np.abs(DIRECTIONS).sum(axis=1, keepdims=True) > 1, 0.197 / 0.8, 0.248) * DIRECTIONS
"""How far a push moves a ball that stood still, in metres, measured: float64 `[8, 2]`."""
COAST = 0.066
"""Seconds that a rolling ball's velocity lasts: its mass with armature over its damping."""
INSIDE_LOW, INSIDE_HIGH = LOW + RADIUS, HIGH - RADIUS
TOUCH = 2 * RADIUS
FAR, WIDE = 0.375, np.deg2rad(40)
"""The relation that the expert aims at: closer than this, and within this angle of the axis."""
TILT = np.deg2rad(27)
"""The angle that it allows between neighbours in a line."""
CLOSE = 0.315
"""The distance from green that it aims at."""
BEST = 10
"""First pushes that are followed by a second one."""
DOUBT, PATIENCE = 0.03, 8
"""The standard deviation of the noise on the cost of a first push, in metres, and the step at which it is reached."""
LATER = 0.03
"""The price of a second push, in metres of the cost."""


def _push(there: jax.Array, action: jax.Array) -> jax.Array:
    """The balls `[5, 2]` after a push, by the rough model."""
    ball, way = action // len(DIRECTIONS), action % len(DIRECTIONS)
    pushed = jnp.arange(BALLS) == ball
    there = there + jnp.where(pushed[:, None], jnp.asarray(SHOVE, jnp.float32)[way], 0)
    there = jnp.clip(there, INSIDE_LOW, INSIDE_HIGH)
    for _ in range(3):
        apart = there[:, None] - there[None]
        away = jnp.hypot(apart[..., 0], apart[..., 1]) + jnp.eye(BALLS)
        deep = jnp.maximum(TOUCH - away, 0) * (1 - jnp.eye(BALLS))
        # the pusher holds on to its ball, so the other one gives way
        share = jnp.where(pushed[:, None], 0.15, jnp.where(pushed[None], 0.85, 0.5))
        there = there + jnp.sum((deep * share / away)[..., None] * apart, axis=1)
        there = jnp.clip(there, INSIDE_LOW, INSIDE_HIGH)
    return there


def _beyond(along: jax.Array, across: jax.Array, angle: float) -> jax.Array:
    """How far a point is outside a wedge around an axis, in metres; 0 inside."""
    return jnp.maximum(jnp.abs(across) * np.cos(angle) - along * np.sin(angle), 0)


def _relations(goal: jax.Array, there: jax.Array) -> jax.Array:
    triples = goal[1:].reshape(MOST, 3)
    axes = jnp.asarray(AXES, jnp.float32)[triples[:, 1]]
    apart = there[triples[:, 0]] - there[triples[:, 2]]
    along = jnp.sum(apart * axes, axis=-1)
    across = apart[:, 0] * axes[:, 1] - apart[:, 1] * axes[:, 0]
    cost = jnp.maximum(jnp.hypot(along, across) - FAR, 0) + _beyond(along, across, WIDE)
    return jnp.sum(jnp.where(triples[:, 0] >= 0, cost, 0))


def _line(there: jax.Array) -> jax.Array:
    apart = there[1:] - there[:-1]
    return jnp.sum(_beyond(apart[:, 0], apart[:, 1], TILT))


def _gather(there: jax.Array) -> jax.Array:
    apart = there - there[GREEN]
    return jnp.sum(jnp.maximum(jnp.hypot(apart[:, 0], apart[:, 1]) - CLOSE, 0))


def _cost(goal: jax.Array, there: jax.Array) -> jax.Array:
    """How far a layout is from a goal, in metres; 0 if it is reached with room to spare."""
    kind = goal[0]
    return jnp.where(kind == LINE, _line(there), jnp.where(kind == GATHER, _gather(there), _relations(goal, there)))


def expert_action(env: Environment, state: State) -> jax.Array:
    """The expert's action in a state of CLEVR-Robot; pure, so `jit`, `vmap` and `scan` apply.

    **Arguments:** `env`, the environment or a wrapper of it; `state`, of the world itself.
    **Returns:** int32 `[]`.
    **Raises:** `TypeError` for another world.
    """
    world: Any = env.unwrapped
    if not isinstance(world, ClevrRobot):
        raise TypeError(f"expert_action acts in CLEVR-Robot, and {env.id} is a {type(world).__name__}")
    goal, actions = state.goal, jnp.arange(ACTIONS, dtype=jnp.int32)
    there = (state.balls + COAST * state.speeds).reshape(BALLS, 2)
    first = jax.vmap(_push, (None, 0))(there, actions)
    # a plan that fails is not repeated for ever: what a push is thought to be worth varies with the clock
    doubt = DOUBT * jax.random.normal(jax.random.key(state.step_count), (ACTIONS,), jnp.float32)
    raw = jax.vmap(_cost, (None, 0))(goal, first)
    noise = doubt * jnp.minimum(state.step_count, PATIENCE) / PATIENCE
    _, best = jax.lax.top_k(-(raw + noise), BEST)
    second = jax.vmap(lambda t: jax.vmap(_push, (None, 0))(t, actions))(first[best])
    later = jax.vmap(jax.vmap(_cost, (None, 0)), (None, 0))(goal, second).min(axis=1)
    value = jnp.where(raw[best] > 0, later + LATER + noise[best], noise[best])
    planned = best[jnp.argmin(value)]
    step = len(DIRECTIONS) * goal[1] + jnp.argmax(jnp.asarray(ALLOWED)[goal[2]])
    return jnp.where(goal[0] == PUSH, step, planned).astype(jnp.int32)
