"""Shortest ways from every pose to every place that the crosshair can be pointed at.

A target is a spot, or the front of a receptacle without spots; its height is fixed. The number of steps from a pose is
that of moves and turns to the nearest pose that points at it, plus that of looks up or down.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from envs_jax.housekeep.apartment import RECEPTACLES
from envs_jax.housekeep.constants import BANDS, FORWARD, LEFT, POSES, RIGHT
from envs_jax.housekeep.tables import Tables, tables


UNREACHABLE = 255
"""In place of a number of steps: there is no way."""


@dataclass(frozen=True)
class Routes:
    """Tables over poses and `T` targets: the `S` spots, then the fronts of receptacles without spots."""

    receptacle: np.ndarray
    """int16 `[T]`."""
    band: np.ndarray
    """int8 `[T]`."""
    steps: np.ndarray
    """uint8 `[POSES, T]`: moves and turns to the nearest pose that points at the target; `UNREACHABLE` without one."""
    action: np.ndarray
    """int8 `[POSES, T]`: the first of them; 0 at such a pose."""
    end: np.ndarray
    """int16 `[POSES, T]`: that pose."""
    nearest: np.ndarray
    """int16 `[POSES * 3, R]`, by `pose * 3 + pitch`: the nearest target of each receptacle."""
    cost: np.ndarray
    """int16 `[POSES * 3, R]`: the steps to it, looks included."""


@functools.cache
def routes() -> Routes:
    """The routes of the apartment."""
    world: Tables = tables()
    spots = world.spots
    bare = np.array([i for i in range(len(RECEPTACLES)) if not len(spots.of_receptacle(i))])
    receptacle = np.concatenate([spots.receptacle, bare])
    hit = world.hit_receptacle.reshape(POSES, -1)
    easiest = [np.argmax((hit == i).sum(0)) for i in bare]
    band = np.concatenate([spots.band, easiest])
    hit_spot = world.hit_spot.reshape(POSES, -1)
    numbers = np.arange(len(receptacle))
    at_target = np.where(numbers < len(spots), hit_spot[:, band] == numbers, hit[:, band] == receptacle)
    at_target &= np.repeat(world.walkable, 4)[:, None]

    pose = np.arange(POSES)
    turned = [pose // 4 * 4 + (pose % 4 + turn) % 4 for turn in (-1, 1)]
    after = {FORWARD: world.ahead.astype(int) * 4 + pose % 4, LEFT: turned[0], RIGHT: turned[1]}
    steps = np.where(at_target, 0, UNREACHABLE).astype(np.uint8)
    action = np.zeros(steps.shape, np.int8)
    while True:
        before = steps.copy()
        for move, next_pose in after.items():
            candidate = np.minimum(before[next_pose], UNREACHABLE - 1) + np.uint8(1)
            better = candidate < steps
            steps, action = np.where(better, candidate, steps), np.where(better, move, action).astype(np.int8)
        if np.array_equal(before, steps):
            break

    next_ = np.choose(action, [after[move][:, None] for move in (FORWARD, LEFT, RIGHT)])
    end = np.where(steps == 0, pose[:, None], next_)
    for _ in range(8):  # doubles the number of steps each time
        end = np.take_along_axis(end, end, axis=0)

    looks = np.abs(np.arange(len(BANDS))[:, None] - band)
    total = (steps[:, None].astype(np.int16) + looks).reshape(POSES * len(BANDS), -1)
    nearest = np.empty((len(total), len(RECEPTACLES)), np.int16)
    for i in range(len(RECEPTACLES)):
        targets = np.flatnonzero(receptacle == i)
        nearest[:, i] = targets[np.argmin(total[:, targets], axis=1)]
    cost = np.take_along_axis(total, nearest.astype(int), axis=1)
    return Routes(receptacle.astype(np.int16), band.astype(np.int8), steps, action, end.astype(np.int16), nearest, cost)
