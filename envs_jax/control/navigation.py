"""NavigationTrack-v0 of gym_navigation: a robot with five range finders on a track between walls.

The tracks, constants and order of events are those of gym_navigation, the time limit
that of ProPS.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.control.angles import wrap
from envs_jax.control.render import BLACK, BLUE, RED, blank, disc, rod
from envs_jax.env import Environment


def _edges(*corners: tuple[float, float]) -> np.ndarray:
    """The sides of a polygon: float32 `[n, 2, 2]`, start and end points in meters."""
    ends = np.array(corners, np.float32)
    return np.stack([ends, np.roll(ends, -1, axis=0)], axis=1)


_SQUARE = _edges((0, 0), (0, 20), (20, 20), (20, 0))
_OUTSIDE = _edges((0, 0), (0, 20), (20, 20), (20, 8.5), (11.5, 8.5), (11.5, 0))
_INSIDE = _edges((3, 3), (3, 17), (17, 17), (17, 11.5), (8.5, 11.5), (8.5, 3))
_MIDDLE = _edges((1.5, 1.5), (1.5, 18.5), (18.5, 18.5), (18.5, 10), (10, 10), (10, 1.5))

TRACKS = {
    1: (np.concatenate([_OUTSIDE, _INSIDE]), _MIDDLE),
    2: (_SQUARE, np.array([[[1, 1], [19, 19]]], np.float32)),
}
"""Walls, all parallel to an axis, and the boxes (two corners each) in one of which the robot starts."""

RAYS = np.array([-math.pi / 2, -math.pi / 4, 0.0, math.pi / 4, math.pi / 2], np.float32)
"""The directions of the range finders, from straight ahead, clockwise."""

MARGIN = 6
"""Standard deviations of noise within which every observation lies: a float32 normal does not go beyond 5.5."""


@struct.dataclass
class NavigationParams:
    """gym_navigation's constants, in meters and radians."""

    forward: Any = 0.2
    """Distance covered by a step forward."""
    creep: Any = 0.04
    """Distance covered while turning."""
    turn: Any = 0.2
    """Angle of a turn."""
    motion_noise: Any = 0.02
    """Standard deviation of the noise on the distance, and on the angle, of every step."""
    sensor_noise: Any = 0.02
    """Standard deviation of the noise on every range."""
    max_range: Any = 30.0
    """The reading of a range finder that sees no wall."""
    collision: Any = 0.4
    """A range below this is a collision."""
    collision_reward: Any = -200.0
    forward_reward: Any = 5.0
    turn_reward: Any = -0.5
    max_steps: Any = 1000
    """Steps until truncation."""


@struct.dataclass
class NavigationState:
    """The pose of the robot and the step count."""

    pose: jax.Array
    """float32 `[3]`: x, y, and the yaw in [-pi, pi], from the y axis, clockwise."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


class NavigationTrack(Environment[NavigationState, NavigationParams]):
    """Follow the track without touching a wall: forward (0), turn right (1), turn left (2).

    Observation: float32 `[5]`, the ranges from the left to the right, noise included. Reward: `forward_reward` or
    `turn_reward` per step, or `collision_reward` for a collision, which terminates the episode. Truncated after
    `max_steps`. The robot first moves, then turns.
    """

    id = "NavigationTrack-v0"

    def __init__(self, track_id: int = 1, compat: str | None = None):
        """**Arguments:** `track_id`, 1 for the ring with a notch, 2 for the empty square; `compat`, `"gym_navigation"`
        to move the robot forward even if the noise makes a distance negative, as gym_navigation does.
        **Raises:** `ValueError` for another track or `compat`.
        """
        if track_id not in TRACKS:
            raise ValueError(f"NavigationTrack-v0 has no track {track_id!r}; choose one of {list(TRACKS)}")
        if compat not in (None, "gym_navigation"):
            raise ValueError(f"NavigationTrack-v0 has no compat {compat!r}; choose 'gym_navigation', or leave it out")
        self.compat = compat
        self.walls, self.starts = TRACKS[track_id]
        upright = self.walls[:, 0, 0] == self.walls[:, 1, 0]
        self._upright, self._level = self._along(upright, 0), self._along(~upright, 1)

    def _along(self, chosen: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The chosen walls, each at one value of the axis: that value, and their bounds on the other axis."""
        ends = self.walls[chosen]
        return ends[:, 0, axis], ends[:, :, 1 - axis].min(1), ends[:, :, 1 - axis].max(1)

    @property
    def default_params(self):
        return NavigationParams()

    def ranges(self, pose: jax.Array, params: NavigationParams) -> jax.Array:
        """The distances to the nearest wall along every ray, without noise: float32 `[5]`, in meters."""
        x, y, sin, cos = pose[0], pose[1], jnp.sin(pose[2]), jnp.cos(pose[2])
        dx = (sin * np.cos(RAYS) + cos * np.sin(RAYS))[:, None]
        dy = (cos * np.cos(RAYS) - sin * np.sin(RAYS))[:, None]

        def nearest(walls, along, lateral, d_along, d_lateral):
            # a ray parallel to the wall divides by 0: its distance is infinity
            coordinate, low, high = walls
            distance = (coordinate - along) / d_along
            meets = lateral + distance * d_lateral
            hit = (distance >= 0) & (low <= meets) & (meets <= high)
            return jnp.where(hit, distance, jnp.inf).min(axis=1)

        ranges = jnp.minimum(nearest(self._upright, x, y, dx, dy), nearest(self._level, y, x, dy, dx))
        return jnp.minimum(ranges, params.max_range).astype(jnp.float32)

    def reset(self, key, params):
        area_key, pose_key, noise_key = jax.random.split(key, 3)
        area = jax.random.randint(area_key, (), 0, len(self.starts), jnp.int32)
        low, high = jnp.asarray(self.starts)[area]
        uniforms = jax.random.uniform(pose_key, (3,), jnp.float32)
        pose = jnp.append(low + uniforms[:2] * (high - low), math.pi * (2 * uniforms[2] - 1))
        noise = params.sensor_noise * jax.random.normal(noise_key, RAYS.shape, jnp.float32)
        return self.ranges(pose, params) + noise, NavigationState(pose, jnp.int32(0))

    def step(self, key, state, action, params):
        noise = jax.random.normal(key, (2 + len(RAYS),), jnp.float32)
        forward = action == 0
        distance = jnp.where(forward, params.forward, params.creep) + params.motion_noise * noise[0]
        angle = jnp.where(forward, 0.0, jnp.where(action == 1, params.turn, -params.turn))
        angle = angle + params.motion_noise * noise[1]
        if self.compat:
            distance = jnp.abs(distance)
        x, y, yaw = state.pose[0], state.pose[1], state.pose[2]
        pose = jnp.stack([x + distance * jnp.sin(yaw), y + distance * jnp.cos(yaw), wrap(yaw + angle)])
        pose = pose.astype(jnp.float32)
        obs = (self.ranges(pose, params) + params.sensor_noise * noise[2:]).astype(jnp.float32)
        terminated = jnp.any(obs < params.collision)
        reward = jnp.where(forward, params.forward_reward, params.turn_reward)
        reward = jnp.where(terminated, params.collision_reward, reward).astype(jnp.float32)
        state = NavigationState(pose, state.time + 1)
        return obs, state, reward, terminated, state.time >= params.max_steps, {}

    def observation_space(self, params):
        margin = MARGIN * params.sensor_noise
        return spaces.Box(-margin, params.max_range + margin, RAYS.shape, np.float32)

    def action_space(self, params):
        return spaces.Discrete(3)

    @property
    def action_names(self):
        return ("forward", "turn right", "turn left")

    def render(self, state):
        """The track from above, 12 pixels per meter, with the robot and its rays, as uint8 `[264, 264, 3]`."""
        params = self.default_params
        pose, ranges = np.asarray(state.pose, np.float64), np.asarray(self.ranges(state.pose, params), np.float64)
        picture = blank(264, 264)

        def pixel(x, y):
            return np.array([12 + 12 * x, 252 - 12 * y])

        for start, end in self.walls:
            rod(picture, pixel(*start), pixel(*end), 2, BLACK)
        center = pixel(*pose[:2])
        for angle, length in zip(pose[2] + RAYS, ranges):
            rod(picture, center, center + 12 * length * np.array([np.sin(angle), -np.cos(angle)]), 1, RED)
        disc(picture, center, 12 * params.collision, BLUE)
        return picture
