"""ProPS's Pong: five numbers instead of pixels, and an opponent that does not miss (2511.21928)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.control.render import BLACK, WHITE, blank, disc
from envs_jax.env import Environment


WIDTH, HEIGHT = 800, 600
PADDLE_WIDTH, PADDLE_HEIGHT = 10, 80
BALL = 10
"""All in pixels; the ball is a square of this side, located by its upper left corner. Rows count downwards."""


@struct.dataclass
class PongParams:
    """Speeds in pixels per step."""

    paddle_speed: Any = 5.0
    ball_speed: Any = 5.0
    """Always, across the screen; at most, along the paddles."""
    max_steps: Any = 1000
    """Steps until truncation."""


@struct.dataclass
class PongState:
    """Positions and speeds, and the step count."""

    game: jax.Array
    """float32 `[6]`: the upper ends of the agent's paddle and of the opponent's; the ball's column, row and speeds."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class Pong(Environment[PongState, PongParams]):
    """Return the ball with the paddle on the left: up (0), down (1), stay (2).

    Observation: float32 `[5]`, the row of the middle of the agent's paddle, the ball's column and row, and its speed
    along both. Reward: 1 for each return. Terminated when the ball is out on either side; truncated after `max_steps`,
    within which at most three returns are possible. The opponent follows the ball. The point where the ball hits a
    paddle determines the angle at which it leaves.
    """

    id = "Pong-v0"

    def __init__(self, compat: str | None = None):
        """**Arguments:** `compat`, `"props"` for ProPS's upper and lower wall, which reverse a ball beyond them on
        every step, even if it is already moving back (so it may get stuck); by default they send it back.
        **Raises:** `ValueError` for another `compat`.
        """
        if compat not in (None, "props"):
            raise ValueError(f"Pong-v0 has no compat {compat!r}; choose 'props', or leave it out")
        self.compat = compat

    @property
    def default_params(self):
        return PongParams()

    def observe(self, state: PongState) -> jax.Array:
        """The observation of a state."""
        player, _, x, y, dx, dy = (state.game[i] for i in range(6))
        return jnp.stack([player + PADDLE_HEIGHT / 2, x, y, dx, dy])

    def reset(self, key, params):
        side, slope = jax.random.split(key)
        dx = jnp.where(jax.random.bernoulli(side, jnp.float32(0.5)), params.ball_speed, -params.ball_speed)
        dy = jax.random.uniform(slope, (), jnp.float32, -1.0, 1.0) * params.ball_speed
        paddle = (HEIGHT - PADDLE_HEIGHT) / 2
        game = jnp.stack([paddle, paddle, WIDTH / 2, HEIGHT / 2, dx, dy]).astype(jnp.float32)
        state = PongState(game, jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        player, opponent, x, y, dx, dy = (state.game[i] for i in range(6))
        lowest = HEIGHT - PADDLE_HEIGHT
        move = jnp.where(action == 0, -1.0, jnp.where(action == 1, 1.0, 0.0)).astype(jnp.float32)
        player = jnp.clip(player + move * params.paddle_speed, 0, lowest)
        follow = jnp.where(opponent + PADDLE_HEIGHT / 2 < y, 1.0, -1.0).astype(jnp.float32)
        opponent = jnp.clip(opponent + follow * params.paddle_speed, 0, lowest)

        x, y = x + dx, y + dy
        at_top, at_bottom = y <= 0, y >= HEIGHT - BALL
        if self.compat:
            dy = jnp.where(at_top | at_bottom, -dy, dy)
        else:
            dy = jnp.where(at_top, jnp.abs(dy), jnp.where(at_bottom, -jnp.abs(dy), dy))

        leftwards = dx < 0
        paddle = jnp.where(leftwards, player, opponent)
        at_paddle = jnp.where(leftwards, x <= PADDLE_WIDTH, x >= WIDTH - PADDLE_WIDTH - BALL)
        hit = at_paddle & (paddle <= y) & (y <= paddle + PADDLE_HEIGHT)
        dx = jnp.where(hit, -dx, dx)
        dy = jnp.where(hit, params.ball_speed * (2 * (y - paddle) / PADDLE_HEIGHT - 1), dy)

        state = PongState(jnp.stack([player, opponent, x, y, dx, dy]).astype(jnp.float32), state.time + 1)
        terminated = (x < 0) | (x > WIDTH - BALL)
        reward = (hit & leftwards).astype(jnp.float32)
        return self.observe(state), state, reward, terminated, state.time >= params.max_steps, {}

    def observation_space(self, params):
        speed, half = params.ball_speed, PADDLE_HEIGHT / 2
        low = spaces.bounds(half, -speed, -speed, -speed, -speed)
        high = spaces.bounds(HEIGHT - half, WIDTH - BALL + speed, HEIGHT + speed, speed, speed)
        return spaces.Box(low, high, (5,), np.float32)

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def action_names(self):
        return ("up", "down", "stay")

    def render(self, state):
        """The game in white on black, at half size, as uint8 `[300, 400, 3]`."""
        player, opponent, x, y = np.asarray(state.game[:4], np.float64) / 2
        picture = blank(HEIGHT // 2, WIDTH // 2, BLACK)
        for top, columns in ((player, slice(PADDLE_WIDTH // 2)), (opponent, slice(-PADDLE_WIDTH // 2, None))):
            picture[round(top) : round(top) + PADDLE_HEIGHT // 2, columns] = WHITE
        disc(picture, (x + BALL / 4, y + BALL / 4), BALL / 4, WHITE)
        return picture
