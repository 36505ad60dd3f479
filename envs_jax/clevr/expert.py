"""A scripted expert: it looks two pushes ahead in a rough model of what a push does.

The model moves the pushed ball by a typical displacement, lets balls that still roll come to rest, and moves balls that
would overlap apart. It knows no spin, no third dimension and no time; the expert plans again after every push.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.clevr.constants import ACTIONS, AXES, BALLS, DIRECTIONS, GREEN, HIGH, LOW, RADIUS
from envs_jax.clevr.env import ClevrRobot
from envs_jax.clevr.goals import GATHER, LINE, MAX_RELATIONS, PUSH
from envs_jax.clevr.rules import ALLOWED
from envs_jax.clevr.state import State
from envs_jax.env import Environment


SHOVE = np.where(np.abs(DIRECTIONS).sum(axis=1, keepdims=True) > 1, 0.197 / 0.8, 0.248) * DIRECTIONS
"""The displacement of a ball at rest by a push, in metres, measured: float64 `[8, 2]`."""
COAST = 0.066
"""Seconds that a rolling ball's velocity lasts: its mass with armature over its damping."""
INSIDE_LOW, INSIDE_HIGH = LOW + RADIUS, HIGH - RADIUS
TOUCH = 2 * RADIUS
MAX_DISTANCE, MAX_ANGLE = 0.375, np.deg2rad(40)
"""The relation that the expert aims at: closer than this, and within this angle of the axis."""
TILT = np.deg2rad(27)
"""The angle that it allows between neighbours in a line."""
CLOSE = 0.315
"""The distance from green that it aims at."""
PAIRS = tuple(itertools.combinations(range(BALLS), 2))
BEST = 10
"""First pushes that are followed by a second one."""
DOUBT, PATIENCE = 0.03, 8
"""The standard deviation of the noise on the cost of a first push, in metres, and the step at which it is reached."""
LATER = 0.03
"""The price of a second push, in metres of the cost."""
Layouts = tuple[jax.Array, jax.Array]
"""The x and the y of the balls, each `[5, N]`: `N` layouts along the last axis, many of which a CPU computes at once.
(With balls along it the expert takes eight times as long.)"""


def _push(layouts: Layouts, action: jax.Array) -> Layouts:
    """Layouts after a push, by the rough model; `action`, `[N]`."""
    ball, direction = action // len(DIRECTIONS), action % len(DIRECTIONS)
    shove = jnp.asarray(SHOVE, jnp.float32)[direction].T
    pushed = ball == jnp.arange(BALLS)[:, None]
    layouts = _inside(*(a + jnp.where(pushed, b, 0) for a, b in zip(layouts, shove)))

    def part(_: Any, layouts: Layouts) -> Layouts:
        """Balls that overlap move apart. In a loop, since XLA would repeat all of it for every use of its result."""
        x, y = (list(a) for a in layouts)
        moved_x, moved_y = list(x), list(y)
        for i, j in PAIRS:
            dx, dy = x[i] - x[j], y[i] - y[j]
            away = _distance(dx, dy)
            deep = jnp.maximum(TOUCH - away, 0) / away
            # the pusher holds on to its ball, so the other one gives way
            fraction = jnp.where(pushed[i], 0.15, jnp.where(pushed[j], 0.85, 0.5))
            moved_x[i], moved_y[i] = moved_x[i] + deep * fraction * dx, moved_y[i] + deep * fraction * dy
            moved_x[j], moved_y[j] = moved_x[j] - deep * (1 - fraction) * dx, moved_y[j] - deep * (1 - fraction) * dy
        return _inside(jnp.stack(moved_x), jnp.stack(moved_y))

    return tracing.fori_loop(0, 3, part, layouts)


def _inside(x: jax.Array, y: jax.Array) -> Layouts:
    return jnp.clip(x, INSIDE_LOW[0], INSIDE_HIGH[0]), jnp.clip(y, INSIDE_LOW[1], INSIDE_HIGH[1])


def _distance(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sqrt(x**2 + y**2)


def _beyond(along: jax.Array, lateral: jax.Array, angle: float) -> jax.Array:
    """The distance of a point from a wedge around an axis, in metres; 0 inside."""
    return jnp.maximum(jnp.abs(lateral) * np.cos(angle) - along * np.sin(angle), 0)


def _relations(goal: jax.Array, layouts: Layouts) -> jax.Array:
    x, y = layouts
    ball, side, reference = goal[1:].reshape(MAX_RELATIONS, 3).T
    axes = jnp.asarray(AXES, jnp.float32)[side].T[..., None]
    dx, dy = x[ball] - x[reference], y[ball] - y[reference]
    along, lateral = dx * axes[0] + dy * axes[1], dx * axes[1] - dy * axes[0]
    cost = jnp.maximum(_distance(along, lateral) - MAX_DISTANCE, 0) + _beyond(along, lateral, MAX_ANGLE)
    return jnp.sum(jnp.where(ball[:, None] >= 0, cost, 0), axis=0)


def _line(layouts: Layouts) -> jax.Array:
    dx, dy = (a[1:] - a[:-1] for a in layouts)
    return jnp.sum(_beyond(dx, dy, TILT), axis=0)


def _gather(layouts: Layouts) -> jax.Array:
    dx, dy = (a - a[GREEN] for a in layouts)
    return jnp.sum(jnp.maximum(_distance(dx, dy) - CLOSE, 0), axis=0)


def _cost(goal: jax.Array, layouts: Layouts) -> jax.Array:
    """The distance of layouts from a goal, in metres, `[N]`; 0 where it is reached with room to spare."""
    kind = goal[0]
    return jnp.where(
        kind == LINE, _line(layouts), jnp.where(kind == GATHER, _gather(layouts), _relations(goal, layouts))
    )


def expert_action(env: Environment, state: State) -> jax.Array:
    """The expert's action in a state of CLEVR-Robot; pure, so `jit`, `vmap` and `scan` apply.

    **Arguments:** `env`, the environment or a wrapper of it; `state`, of the innermost environment.
    **Returns:** int32 `[]`.
    **Raises:** `TypeError` for another environment.
    """
    world: Any = env.unwrapped
    if not isinstance(world, ClevrRobot):
        raise TypeError(f"expert_action acts in CLEVR-Robot, and {env.id} is a {type(world).__name__}")
    goal, actions = state.goal, jnp.arange(ACTIONS, dtype=jnp.int32)
    rested = (state.balls + COAST * state.speeds).reshape(BALLS, 2)
    x, y = jnp.broadcast_to(rested.T[..., None], (2, BALLS, ACTIONS))
    first = _push((x, y), actions)
    # a plan that fails is not repeated for ever: what a push is thought to be worth varies with the clock
    doubt = DOUBT * jax.random.normal(jax.random.key(state.step_count), (ACTIONS,), jnp.float32)
    raw = _cost(goal, first)
    noise = doubt * jnp.minimum(state.step_count, PATIENCE) / PATIENCE
    _, best = jax.lax.top_k(-(raw + noise), BEST)
    x, y = (jnp.repeat(a[:, best], ACTIONS, axis=1) for a in first)
    second = _cost(goal, _push((x, y), jnp.tile(actions, BEST)))
    later = second.reshape(BEST, ACTIONS).min(axis=1)
    value = jnp.where(raw[best] > 0, later + LATER + noise[best], noise[best])
    planned = best[jnp.argmin(value)]
    step = len(DIRECTIONS) * goal[1] + jnp.argmax(jnp.asarray(ALLOWED)[goal[2]])
    return jnp.where(goal[0] == PUSH, step, planned).astype(jnp.int32)
