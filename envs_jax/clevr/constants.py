"""The numbers of the table, its balls, the pusher and the actions, as in KALM (2404.09248)."""

from __future__ import annotations

import numpy as np


COLORS = ("red", "blue", "green", "purple", "cyan")
"""The balls, in the order of the observation."""
BALLS = len(COLORS)
GREEN = COLORS.index("green")

RADIUS, PUSHER_RADIUS = 0.13, 0.05
"""Radii of a ball and of the pusher, in metres."""
TABLE_Z, REST_Z, PUSHER_Z = -0.325, -0.195, -0.2
"""Heights of the table, and of the centres of a resting ball and of the pusher."""
LOW, HIGH = np.array([-0.6, -0.3]), np.array([0.6, 0.7])
"""Corners of the table: its walls are at these x and y."""

SIDES = ("behind", "left", "front", "right")
"""The four directions of the language, in the order of their codes."""
AXES = np.array([(0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0)])
"""The unit vector of each."""

DIRECTIONS = np.array([(1, 0), (0, 1), (-1, 0), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)])
"""The eight pushes: action `8 * ball + direction`."""
COMPASS = ("right", "back", "left", "front", "right and back", "left and back", "right and front", "left and front")
"""The eight pushes in words."""
ACTIONS = BALLS * len(DIRECTIONS)
ACTION_NAMES = tuple(f"{color} {direction}" for color in COLORS for direction in COMPASS)

OFFSET = 0.15
"""The initial distance of the pusher behind the ball's centre, in units of the direction."""
TIME_STEPS = 40
"""Physics steps of 0.01 s in one macro-action."""

HORIZON = 50
"""Steps of an episode; at level easy, 1."""
