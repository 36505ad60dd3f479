"""Rewards and success of the tasks, as functions of a `View`: version 2 of the package's rewards, from 0 to 10.

Every function takes NumPy or jax arrays with any number of leading axes, and `xp`, the package to compute with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flax import struct


@struct.dataclass
class View:
    """The quantities from which rewards are computed: positions in metres, `[..., 3]` unless said otherwise."""

    action: Any
    """`[..., 4]`."""
    hand: Any
    """As observed, so clipped to the space of observations."""
    gripper: Any
    """`[...]`, the opening of the gripper, 0 to 1, as observed."""
    object: Any
    """The first object, as observed."""
    turned: Any
    """`[..., 4]`, its orientation, as observed."""
    tcp: Any
    """The middle between the finger tips."""
    left: Any
    """The left pad of the gripper."""
    right: Any
    lock: Any
    """The hinge of the lock; zeros in scenes without one."""
    joint: Any
    """`[...]`, the position of the task's joint; 0 for a task without one."""
    target: Any
    object_start: Any
    """The initial position of the task's object, in the sense of its reward."""
    tcp_start: Any
    handle_start: Any
    """The initial position of a window's handle."""
    hand_start: Any


XZ = np.array([0, 2])
"""The axes of the plane in which the gripper closes nothing."""

Judge = Callable[[Any, View], tuple[Any, Any]]
"""`(xp, view) -> (reward, success)`, float and bool `[...]`."""


def length(xp: Any, x: Any) -> Any:
    """The norm over the last axis."""
    return xp.sqrt(xp.square(x).sum(axis=-1))


def long_tail(xp: Any, d: Any) -> Any:
    """1 at 0, 0.1 at 1, falling like the inverse square."""
    return 1 / (xp.square(3 * d) + 1)


def gaussian(xp: Any, d: Any) -> Any:
    """1 at 0, 0.1 at 1."""
    return xp.exp(np.log(0.1) * xp.square(d))


def tolerance(xp: Any, x: Any, high: Any, margin: Any, tail: Callable = long_tail, low: Any = 0.0) -> Any:
    """1 where `low <= x <= high`; outside, `tail` of the distance from there in units of `margin`, or 0 without one."""
    distance = xp.where(x < low, low - x, x - high)
    has_margin = margin > 0
    fading = xp.where(has_margin, tail(xp, distance / xp.where(has_margin, margin, 1.0)), 0.0)
    return xp.where((low <= x) & (x <= high), 1.0, fading)


def hamacher(xp: Any, a: Any, b: Any) -> Any:
    """The Hamacher product of two numbers from 0 to 1: small if either is, 0 if both are 0."""
    total = a + b - a * b
    return xp.where(total > 0, a * b / xp.where(total > 0, total, 1.0), 0.0)


def caging(xp: Any, v: View, object: Any, radius: float, pads: float, xz: float, effort: float = 1.0) -> Any:
    """Degree to which the gripper cages an object, between its pads along y and close in x and z; and whether it is
    closed on it too.

    **Arguments:** `object`, its place; `radius`, its radius; `pads`, how far from it a pad may be; `xz`, how far the
    gripper may be in x and z; `effort`, that closes it fully.
    """

    def side(pad):
        margin = xp.abs(xp.abs(pad[..., 1] - v.object_start[..., 1]) - pads)
        return tolerance(xp, xp.abs(pad[..., 1] - object[..., 1]), pads, margin, low=radius)

    margin = length(xp, (v.object_start - v.tcp_start)[..., XZ]) - xz
    close = tolerance(xp, length(xp, (v.tcp - object)[..., XZ]), xz, margin)
    caged = hamacher(xp, hamacher(xp, side(v.left), side(v.right)), close)
    closed = xp.clip(v.action[..., 3], 0, effort) / effort
    return caged, hamacher(xp, caged, xp.where(caged > 0.97, closed, 0.0))


def _signed_sides(xp: Any, v: View, radius: float, high: float) -> Any:
    """Degree to which the object lies between the pads, each on its own side of it. Margins follow the pads as they
    move."""

    def side(pad, distance):
        margin = xp.abs(xp.abs(v.object[..., 1] - pad[..., 1]) - 0.05)
        return tolerance(xp, distance, high, margin, low=radius)

    left = side(v.left, (v.left - v.object)[..., 1])
    return hamacher(xp, left, side(v.right, (v.object - v.right)[..., 1]))


def _close_in_plane(xp: Any, v: View) -> Any:
    """Closeness of the gripper to the object in x and z."""
    margin = length(xp, (v.object_start - v.tcp_start)[..., XZ]) - 0.005
    return tolerance(xp, length(xp, (v.tcp - v.object)[..., XZ]), 0.005, margin)


def _placed(xp: Any, v: View, scale: Any = 1.0, radius: float = 0.05) -> tuple[Any, Any]:
    """The (scaled) distance of the object from the target, and its tolerance."""
    away = length(xp, (v.object - v.target) * scale)
    return away, tolerance(xp, away, radius, length(xp, (v.object_start - v.target) * scale))


def _in_hand(xp: Any, v: View, radius: float) -> Any:
    return (length(xp, v.object - v.tcp) < radius) & (v.gripper > 0)


def reach(xp: Any, v: View) -> tuple[Any, Any]:
    """The gripper to the target."""
    away = length(xp, v.tcp - v.target)
    return 10 * tolerance(xp, away, 0.05, length(xp, v.hand_start - v.target)), away <= 0.05


def push(xp: Any, v: View) -> tuple[Any, Any]:
    """The puck to the target, along the table."""
    away, placed = _placed(xp, v)
    grasped = sum(caging(xp, v, v.object, 0.015, 0.05, 0.005))
    reward = xp.where(_in_hand(xp, v, 0.02), 2 * grasped + 1 + 5 * placed, grasped)
    return xp.where(away < 0.05, 10.0, reward), away <= 0.05


def pick_place(xp: Any, v: View) -> tuple[Any, Any]:
    """The puck to a target in the air."""
    away, placed = _placed(xp, v)
    caged = hamacher(xp, _signed_sides(xp, v, 0.015, 0.05), _close_in_plane(xp, v))
    closed = xp.where(caged > 0.97, xp.clip(v.action[..., 3], 0, 1), 0.0)
    grasped = (hamacher(xp, caged, closed) + caged) / 2
    lifted = _in_hand(xp, v, 0.02) & (v.object[..., 2] - 0.01 > v.object_start[..., 2])
    reward = hamacher(xp, grasped, placed) + xp.where(lifted, 1 + 5 * placed, 0.0)
    return xp.where(away < 0.05, 10.0, reward), away <= 0.07


def _two_legs(xp: Any, v: View, waypoint: Any, scale: Any) -> tuple[Any, Any, Any]:
    """The reward of the way past a wall, the distance from the target, and the tolerance of the first leg."""
    scale = np.asarray(scale)
    first = tolerance(
        xp, length(xp, (v.object - waypoint) * scale), 0.05, length(xp, (v.object_start - waypoint) * scale)
    )
    away, second = _placed(xp, v)
    return 1 + xp.where(v.object[..., 1] > 0.75, 4 + 3 * second, 4 * first), away, first


def push_wall(xp: Any, v: View) -> tuple[Any, Any]:
    """The puck round the wall to the target."""
    z = v.object[..., 2]
    waypoint = xp.stack([xp.full_like(z, -0.05), xp.full_like(z, 0.77), z], axis=-1)
    bonus, away, _ = _two_legs(xp, v, waypoint, (3.0, 1.0, 1.0))
    grasped = sum(caging(xp, v, v.object, 0.015, 0.05, 0.005))
    reward = grasped + xp.where(_in_hand(xp, v, 0.02), bonus, 0.0)
    return xp.where(away < 0.05, 10.0, reward), away <= 0.07


def pick_place_wall(xp: Any, v: View) -> tuple[Any, Any]:
    """The puck over the wall to the target."""
    x = v.target[..., 0]
    waypoint = xp.stack([x, xp.full_like(x, 0.77), xp.full_like(x, 0.25)], axis=-1)
    bonus, away, first = _two_legs(xp, v, waypoint, (1.0, 1.0, 3.0))
    grasped = hamacher(xp, caging(xp, v, v.object, 0.015, 0.05, 0.005)[1], first)
    lifted = _in_hand(xp, v, 0.02) & (v.object[..., 2] - 0.015 > v.object_start[..., 2])
    reward = grasped + xp.where(lifted, bonus, 0.0)
    return xp.where(away < 0.05, 10.0, reward), away <= 0.07


def coffee_push(xp: Any, v: View) -> tuple[Any, Any]:
    """The mug under the machine."""
    away, placed = _placed(xp, v, np.array([2.0, 2.0, 1.0]))
    _, grasped = caging(xp, v, v.object, 0.02, 0.05, 0.05, effort=0.7)
    margin = xp.abs(length(xp, v.object_start - v.tcp_start) - 0.04)
    reached = tolerance(xp, length(xp, v.object - v.tcp), 0.04, margin)
    reward = hamacher(xp, (grasped + reached) / 2, placed) + xp.where(_in_hand(xp, v, 0.04), 1 + 5 * placed, 0.0)
    return xp.where(away < 0.05, 10.0, reward), length(xp, v.object - v.target) <= 0.07


def soccer(xp: Any, v: View) -> tuple[Any, Any]:
    """The ball into the goal."""
    scale = np.array([3.0, 1.0, 1.0])
    away = length(xp, (v.object - v.target) * scale)
    placed = tolerance(xp, away, 0.07, length(xp, (v.object - v.object_start) * scale))
    line = v.target[..., 1] - 0.1
    overshoot = v.object[..., 1] - line
    missed = (overshoot > 0) & (xp.abs((v.object - v.target)[..., 0]) > 0.1)
    placed = xp.where(missed, xp.clip(placed - 2 * overshoot / (1 - line), 0, 1), placed)
    radius = 0.013
    caged = hamacher(xp, _signed_sides(xp, v, radius, 0.05), _close_in_plane(xp, v))
    grasped = (caged + xp.where(caged > 0.95, _signed_sides(xp, v, radius, radius + 0.01), 0.0)) / 2
    reward = xp.where(away < 0.07, 10.0, 3 * grasped + 6.5 * placed)
    return reward, length(xp, v.object - v.target) <= 0.07


def button(travel: float) -> Judge:
    """A button in a wall that faces the robot, `travel` metres from its target."""

    def judge(xp, v):
        distance = length(xp, v.object - v.tcp)
        left = xp.abs((v.target - v.object)[..., 1])
        at_it = tolerance(xp, distance, 0.05, length(xp, v.object - v.tcp_start))
        reward = 2 * hamacher(xp, xp.maximum(v.gripper, 0), at_it)
        pressed = tolerance(xp, left, 0.005, travel)
        return reward + xp.where(distance <= 0.05, 8 * pressed, 0.0), left <= 0.02

    return judge


def button_wall(xp: Any, v: View) -> tuple[Any, Any]:
    """A button behind a wall."""
    distance = length(xp, v.object - v.tcp)
    left = xp.abs((v.target - v.object)[..., 1])
    at_it = tolerance(xp, distance, 0.01, length(xp, v.object - v.tcp_start))
    pressed = tolerance(xp, left, 0.005, 0.0935)
    approach = 2 * hamacher(xp, (1 - v.gripper) / 2, at_it)
    return xp.where(distance > 0.07, approach, 4 + 2 * v.gripper + 4 * pressed**2), left <= 0.03


SHOULDER, FLAT = np.array([0.0, 0.055, 0.07]), np.array([0.25, 1.0, 0.5])
"""The point that pushes the lock, relative to the hand; and the scale of its distance."""


def unlock(xp: Any, v: View) -> tuple[Any, Any]:
    """The lock to the right. The margin follows the hinge of the lock, which is the package's start of the object."""
    distance = length(xp, (v.hand + SHOULDER - v.object) * FLAT)
    ready = tolerance(xp, distance, 0.02, length(xp, (v.tcp_start + SHOULDER - v.lock) * FLAT))
    left = xp.abs((v.target - v.object)[..., 0])
    return 2 * ready + 8 * tolerance(xp, left, 0.005, 0.1), left <= 0.02


def lock(xp: Any, v: View) -> tuple[Any, Any]:
    """The lock downwards. The margin is the distance itself: the package's start of the pad follows the pad."""
    distance = length(xp, (v.object - v.left) * FLAT)
    left = xp.abs((v.target - v.object)[..., 2])
    ready = hamacher(xp, xp.maximum(v.gripper, 0), tolerance(xp, distance, 0.01, distance))
    return 2 * ready + 8 * tolerance(xp, left, 0.005, 0.1), left <= 0.02


def door_open(xp: Any, v: View) -> tuple[Any, Any]:
    """The door's handle to the left, the door turned by `joint`."""
    door = v.object - np.array([0.05, 0.0, 0.0])
    radius = length(xp, (v.hand - door)[..., :2])
    outside = radius > 0.12
    floor = xp.where(outside, 0.04 * xp.log(xp.where(outside, radius - 0.12, 1.0)) + 0.4, 0.0)
    depth = floor - v.hand[..., 2]
    clearance = xp.where(depth <= 0, 1.0, tolerance(xp, depth, 0.01, floor / 2))
    at_it = tolerance(xp, length(xp, v.hand - door - np.array([0.05, 0.03, -0.01])), 0.06, 0.5)
    effort = (xp.clip(v.action[..., 3], -1, 1) + 1) / 2
    ajar = xp.where(v.joint < -np.pi / 90, 0.2, 0.0)
    wide = tolerance(xp, np.pi * 2 / 3 + v.joint, 0.5, np.pi / 3)
    reward = 2 * hamacher(xp, hamacher(xp, clearance, at_it), effort) + 8 * (ajar + 0.8 * wide)
    success = xp.abs((v.object - v.target)[..., 0]) <= 0.08
    return xp.where(success, 10.0, reward), success


def door_close(xp: Any, v: View) -> tuple[Any, Any]:
    """The door's handle to the target."""
    away = length(xp, v.object - v.target)
    placed = tolerance(xp, away, 0.05, length(xp, v.object_start - v.target), gaussian)
    margin = length(xp, v.hand_start - v.object) + 0.1
    reached = tolerance(xp, length(xp, v.tcp - v.target), 0.0125, margin, gaussian)
    return xp.where(away < 0.05, 10.0, 3 * reached + 6 * placed), away <= 0.08


def window(tail: Callable, start: str) -> Judge:
    """The handle of a window to the target along x; `start` names what the distance is compared with."""

    def judge(xp, v):
        left = xp.abs((v.object - v.target)[..., 0])
        margin = xp.abs(xp.abs((getattr(v, start) - v.target)[..., 0]) - 0.05)
        distance = length(xp, v.object - v.tcp)
        at_it = tolerance(xp, distance, 0.02, xp.abs(length(xp, v.handle_start - v.tcp_start) - 0.02), tail)
        return 10 * hamacher(xp, at_it, tolerance(xp, left, 0.05, margin)), left <= 0.05

    return judge


def faucet(offset: tuple[float, float, float]) -> Judge:
    """The end of a faucet's handle, `offset` from what is observed, to the target."""

    def judge(xp, v):
        end = v.object + np.array(offset)
        away = length(xp, end - v.target)
        placed = tolerance(xp, away, 0.07, xp.abs(length(xp, v.object_start - v.target) - 0.07))
        margin = xp.abs(length(xp, v.object_start - v.tcp_start) - 0.01)
        reached = tolerance(xp, length(xp, end - v.tcp), 0.01, margin, gaussian)
        return xp.where(away <= 0.07, 10.0, 4 * reached + 6 * placed), away <= 0.07

    return judge


def hammer(xp: Any, v: View) -> tuple[Any, Any]:
    """The nail into the block by `joint` metres, with the hammer."""
    head = v.object + np.array([0.16, 0.06, 0.0])
    level = xp.maximum(1 - length(xp, v.turned - np.array([1.0, 0.0, 0.0, 0.0])) / 0.4, 0)
    at_handle = xp.abs((v.object - v.hand)[..., 0]) < 0.07  # along its handle, the hammer may be held anywhere
    x = xp.where(at_handle, v.hand[..., 0], v.object[..., 0])
    handle = xp.concatenate([x[..., None], v.object[..., 1:]], axis=-1)
    grasped = sum(caging(xp, v, handle, 0.015, 0.02, 0.01)) / 2
    driven = tolerance(xp, length(xp, v.target - head), 0.02, 0.2)
    placed = xp.where(head[..., 2] > 0.02, 0.1, 0.0) + 0.9 * driven
    reward = (2 * grasped + 6 * placed) * level
    success = v.joint > 0.09
    return xp.where(success & (reward > 5), 10.0, reward), success
