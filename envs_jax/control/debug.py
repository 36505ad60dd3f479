"""Environments with a known best return, which test learning, memory, vision, bootstrapping and exploration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.env import Environment


@struct.dataclass
class DebugParams:
    """The length of an episode."""

    length: Any
    """Steps."""


@struct.dataclass
class DebugState:
    """The cue to act on, and the step count."""

    cue: jax.Array
    time: jax.Array


class Match(Environment[DebugState, DebugParams]):
    """Name the symbol in the observation; a new one every step.

    Observation: the symbol, one-hot, float32 `[n]`. Reward: 1 if the action is the symbol, else 0. Truncated after
    `length` steps, never terminated, and time is not observed, so the best return is `length`, and the value of the
    best policy 1 / (1 - gamma) if, and only if, truncation is bootstrapped.
    """

    def __init__(self, n: int = 4):
        """**Arguments:** `n`, symbols."""
        self.n = n

    @property
    def default_params(self):
        return DebugParams(length=20)

    def _draw(self, key, time):
        cue = jax.random.randint(key, (), 0, self.n, jnp.int32)
        return jax.nn.one_hot(cue, self.n, dtype=jnp.float32), DebugState(cue, time)

    def reset(self, key, params):
        return self._draw(key, jnp.int32(0))

    def step(self, key, state, action, params):
        reward = (action == state.cue).astype(jnp.float32)
        obs, state = self._draw(key, state.time + 1)
        return obs, state, reward, jnp.bool(False), state.time >= params.length, {}

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (self.n,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(self.n)


class Aim(Environment[DebugState, DebugParams]):
    """Repeat the observed number as a continuous action; a new one every step.

    Observation: float32 `[1]` in [-0.8, 0.8]. Action: float32 `[1]` in [-1, 1]. Reward: 1 minus the distance between
    them. Truncated after `length` steps; the best return is `length`.
    """

    @property
    def default_params(self):
        return DebugParams(length=20)

    def _draw(self, key, time):
        cue = jax.random.uniform(key, (1,), jnp.float32, -0.8, 0.8)
        return cue, DebugState(cue, time)

    def reset(self, key, params):
        return self._draw(key, jnp.int32(0))

    def step(self, key, state, action, params):
        reward = 1 - jnp.abs(action[0] - state.cue[0])
        obs, state = self._draw(key, state.time + 1)
        return obs, state, reward.astype(jnp.float32), jnp.bool(False), state.time >= params.length, {}

    def observation_space(self, params):
        return spaces.Box(-0.8, 0.8, (1,), np.float32)

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)


class Recall(Environment[DebugState, DebugParams]):
    """Remember a sign that is observed only at the start, and name it at the end.

    Observation: float32 `[3]`: the sign (one-hot of 2) on the first step, else zeros; and whether this is the last
    step. Reward: +1 or -1 on that step, which terminates the episode. The best return is 1; without memory it is 0 on
    average.
    """

    @property
    def default_params(self):
        return DebugParams(length=6)

    def _observe(self, state, params):
        sign = jax.nn.one_hot(state.cue, 2, dtype=jnp.float32) * (state.time == 0)
        now = (state.time == params.length - 1).astype(jnp.float32)
        return jnp.append(sign, now), state

    def reset(self, key, params):
        return self._observe(DebugState(jax.random.randint(key, (), 0, 2, jnp.int32), jnp.int32(0)), params)

    def step(self, key, state, action, params):
        ended = state.time >= params.length - 1
        reward = jnp.where(ended, jnp.where(action == state.cue, 1.0, -1.0), 0.0).astype(jnp.float32)
        obs, state = self._observe(state.replace(time=state.time + 1), params)
        return obs, state, reward, ended, jnp.bool(False), {"success": ended & (reward > 0)}

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (3,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(2)


@struct.dataclass
class CatchState:
    """Columns of the ball and of the paddle, and the ball's row."""

    ball: jax.Array
    paddle: jax.Array
    row: jax.Array


class Catch(Environment[CatchState, DebugParams]):
    """Catch a falling ball with a paddle on the bottom row, seen as a picture (bsuite's catch, smaller).

    Observation: uint8 `[H, W, 1]`, 1 at the ball and at the paddle. Actions: left, stay, right. Reward: +1 or -1
    when the ball reaches the bottom row, which terminates the episode. The best return is 1.
    """

    def __init__(self, height: int = 6, width: int = 5):
        """**Arguments:** `height` and `width` of the picture; the ball falls for `height - 1` steps."""
        self.height, self.width = height, width

    @property
    def default_params(self):
        return DebugParams(length=self.height - 1)

    def _observe(self, state):
        rows, columns = np.mgrid[: self.height, : self.width]
        ball = (rows == state.row) & (columns == state.ball)
        paddle = (rows == self.height - 1) & (columns == state.paddle)
        return (ball | paddle)[..., None].astype(jnp.uint8)

    def reset(self, key, params):
        ball, paddle = jax.random.randint(key, (2,), 0, self.width, jnp.int32)
        state = CatchState(ball, paddle, jnp.int32(0))
        return self._observe(state), state

    def step(self, key, state, action, params):
        paddle = jnp.clip(state.paddle + action.astype(jnp.int32) - 1, 0, self.width - 1)
        state = CatchState(state.ball, paddle, state.row + 1)
        ended = state.row >= params.length
        caught = ended & (state.ball == paddle)
        reward = jnp.where(ended, jnp.where(caught, 1.0, -1.0), 0.0).astype(jnp.float32)
        return self._observe(state), state, reward, ended, jnp.bool(False), {"success": caught}

    def observation_space(self, params):
        return spaces.Box(0, 1, (self.height, self.width, 1), np.uint8)

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def action_names(self):
        return ("left", "stay", "right")


class Corridor(Environment[DebugState, DebugParams]):
    """Walk to the far end of a corridor, at a small cost per step: a test of exploration.

    Observation: the cell, one-hot, float32 `[n]`. Two actions: one moves a cell forward, the other a cell back; which
    is which differs from cell to cell. Reward: 1 at the last cell, which terminates the episode, and -0.001 for every
    step forward; truncated after `length` steps. The best return is `1 - 0.001 (n - 1)`, in `n - 1` steps. An agent
    that never reaches the end learns to stay at the start, as in bsuite's deep sea.
    """

    COST = 0.001

    def __init__(self, n: int = 40):
        """**Arguments:** `n`, cells."""
        self.n = n
        self.onward = np.random.default_rng(0).integers(0, 2, n)

    @property
    def default_params(self):
        return DebugParams(length=60)

    def _observe(self, cell):
        return jax.nn.one_hot(cell, self.n, dtype=jnp.float32)

    def reset(self, key, params):
        return self._observe(0), DebugState(jnp.int32(0), jnp.int32(0))

    def step(self, key, state, action, params):
        onward = action == jnp.asarray(self.onward)[state.cue]
        cell = jnp.clip(state.cue + jnp.where(onward, 1, -1), 0, self.n - 1).astype(jnp.int32)
        state = DebugState(cell, state.time + 1)
        at_goal = cell == self.n - 1
        return (
            self._observe(cell),
            state,
            at_goal.astype(jnp.float32) - self.COST * onward.astype(jnp.float32),
            at_goal,
            ~at_goal & (state.time >= params.length),
            {"success": at_goal},
        )

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (self.n,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(2)
