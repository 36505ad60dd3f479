"""Scripted experts: proportional control towards waypoints, one function per task, as the package's policies.

Every function is `(xp, hand, gripper, object, goal) -> (waypoint, effort, gain)`, all from the observation: the
target position of the hand, float `[..., 3]`, the effort of the gripper, `[...]`, and the gain of the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


Expert = Callable[..., tuple[Any, Any, float]]


def action(xp: Any, expert: Expert, hand: Any, gripper: Any, object: Any, goal: Any) -> Any:
    """The action of an expert, float `[..., 4]`; it may exceed 1, where the environment clips it."""
    waypoint, effort, gain = expert(xp, hand, gripper, object, goal)
    effort = xp.broadcast_to(xp.asarray(effort, hand.dtype), hand.shape[:-1])
    return xp.concatenate([gain * (waypoint - hand), effort[..., None]], axis=-1)


def _offset(x: float = 0.0, y: float = 0.0, z: float = 0.0) -> np.ndarray:
    return np.array([x, y, z], np.float32)


def _flat(xp: Any, a: Any, b: Any) -> Any:
    """The distance in x and y."""
    return xp.sqrt(xp.square((a - b)[..., :2]).sum(axis=-1))


def _height(xp: Any, a: Any, b: Any) -> Any:
    return xp.abs(a[..., 2] - b[..., 2])


def _first(xp: Any, *cases: Any) -> Any:
    """The waypoint of the first case, `(condition, waypoint)`, that holds; the last one is a waypoint alone."""
    waypoint = cases[-1]
    for condition, candidate in reversed(cases[:-1]):
        waypoint = xp.where(condition[..., None], candidate, waypoint)
    return waypoint


def _point(xp: Any, x: Any, y: Any, z: Any) -> Any:
    """A point from its coordinates, each `[...]` or a number."""
    shape = np.broadcast_shapes(*(np.shape(c) for c in (x, y, z)))
    return xp.stack([xp.broadcast_to(c, shape) for c in (x, y, z)], axis=-1)


def reach(xp, hand, gripper, object, goal):
    return goal, 0.0, 5.0


def reach_wall(xp, hand, gripper, object, goal):
    x, y, z = (hand[..., i] for i in range(3))
    before = (x >= -0.1) & (x <= 0.3) & (y >= 0.6) & (y <= 0.8) & (z < 0.25)
    return _first(xp, (before, goal + _offset(z=1)), goal), 0.0, 5.0


def _push_effort(xp, hand, object):
    away = (_flat(xp, hand, object) > 0.02) | (_height(xp, hand, object) > 0.1)
    return xp.where(away, 0.0, 0.6)


def _descend(xp, hand, puck, height, radius, level):
    """The cases of coming down on a puck: first to `height` above it, unless within `radius` of it in x and y."""
    return (_flat(xp, hand, puck) > radius, puck + _offset(z=height)), (level, puck + _offset(z=0.03))


def push(xp, hand, gripper, object, goal):
    puck = object + _offset(-0.005)
    cases = _descend(xp, hand, puck, 0.2, 0.02, _height(xp, hand, puck) > 0.04)
    return _first(xp, *cases, goal), _push_effort(xp, hand, object), 10.0


def push_wall(xp, hand, gripper, object, goal):
    puck = object + _offset(-0.005)
    x, y = puck[..., 0], puck[..., 1]
    cases = _descend(xp, hand, puck, 0.2, 0.02, _height(xp, hand, puck) > 0.04)
    before = (x >= -0.1) & (x <= 0.3) & (y >= 0.65) & (y <= 0.75)
    ends = ((x > -0.15) & (x < 0.05)) | ((x > 0.15) & (x < 0.35))
    at_edge = ends & (y >= 0.695) & (y <= 0.755)
    round_it = (before, hand + _offset(x=-1)), (at_edge, hand + _offset(y=1))
    return _first(xp, *cases, *round_it, goal), _push_effort(xp, hand, object), 10.0


def pick_place(xp, hand, gripper, object, goal):
    puck = object + _offset(-0.005)
    high = (_height(xp, hand, puck) > 0.05) & (puck[..., 2] < 0.04)
    cases = _descend(xp, hand, puck, 0.1, 0.02, high)
    close = xp.sqrt(xp.square(hand - object).sum(axis=-1)) < 0.07
    return _first(xp, *cases, (gripper > 0.73, hand), goal), xp.where(close, 1.0, 0.0), 10.0


def pick_place_wall(xp, hand, gripper, object, goal):
    puck = object + _offset(-0.005)
    x, y, z = (hand[..., i] for i in range(3))
    cases = _descend(xp, hand, puck, 0.1, 0.015, (_height(xp, hand, puck) > 0.04) & (puck[..., 2] < 0.03))
    before = (x >= -0.15) & (x <= 0.35) & (y >= 0.6) & (y <= 0.8)
    lift = before & (z < 0.25), hand + _offset(z=1)
    cross = before & (z < 0.35), _point(xp, goal[..., 0], goal[..., 1], z)
    level = _height(xp, hand, goal) > 0.01, _point(xp, x, y, goal[..., 2])
    away = (_flat(xp, hand, object) > 0.015) | (_height(xp, hand, object) > 0.1)
    return _first(xp, *cases, lift, cross, level, goal), xp.where(away, 0.0, 0.9), 10.0


def button_press(xp, hand, gripper, object, goal):
    button = object + _offset(z=-0.07)
    misaligned = xp.abs(hand - button) > 0.02 + 1e-5 * xp.abs(button)
    aside = _point(xp, button[..., 0], hand[..., 1] - 0.1, button[..., 2])
    return _first(xp, (misaligned[..., 0] | misaligned[..., 2], aside), button + _offset(y=0.02)), 0.0, 25.0


def button_press_wall(xp, hand, gripper, object, goal):
    button = object + _offset(z=0.04)
    x, y = button[..., 0], button[..., 1]
    misaligned, before = xp.abs(hand[..., 0] - x) > 0.02, y - hand[..., 1] > 0.09
    level = _height(xp, hand, button) > 0.02
    cases = (
        (misaligned, _point(xp, x, hand[..., 1], 0.3)),
        (before, _point(xp, x, y, 0.3)),
        (level, button + _offset(y=-0.05)),
    )
    return _first(xp, *cases, button + _offset(y=-0.02)), xp.where(misaligned | before | level, 1.0, -1.0), 15.0


def coffee_button(xp, hand, gripper, object, goal):
    button = object + _offset(z=-0.07)
    away = xp.sqrt(xp.square((hand - button)[..., np.array([0, 2])]).sum(axis=-1))
    aside = _point(xp, button[..., 0], hand[..., 1], button[..., 2])
    return _first(xp, (away > 0.02, aside), button + _offset(y=0.2)), -1.0, 10.0


def coffee_push(xp, hand, gripper, object, goal):
    mug = object + _offset(0.01, 0, 0.05)
    distant, high = _flat(xp, hand, mug) > 0.06, _height(xp, hand, mug)
    destination = _point(xp, goal[..., 0], goal[..., 1], 0.1)
    effort = xp.where(distant | (high > 0.1), -1.0, 0.5)
    return _first(xp, (distant, mug + _offset(z=0.2)), (high > 0.02, mug), destination), effort, 10.0


def door_unlock(xp, hand, gripper, object, goal):
    lock = object + _offset(-0.04, -0.02, -0.03)
    distant = _flat(xp, hand, lock) > 0.02
    descend = distant & (hand[..., 2] > 0.15), hand + _offset(0, -0.1, -0.1)
    return _first(xp, descend, (distant, lock), lock + _offset(0.1, 0, 0.01)), 1.0, 25.0


def door_lock(xp, hand, gripper, object, goal):
    lock = object + _offset(-0.02, -0.02)
    distant, high = _flat(xp, hand, lock) > 0.02, _height(xp, hand, lock) > 0.02
    lift = distant & (hand[..., 2] < 0.25), hand + _offset(0, -0.1, 0.1)
    return _first(xp, lift, (distant, lock + _offset(z=0.3)), (high, lock), lock + _offset(-0.1, 0, -0.1)), -1.0, 25.0


def door_open(xp, hand, gripper, object, goal):
    door = object + _offset(-0.05)
    distant, high = _flat(xp, hand, door) > 0.12, _height(xp, hand, door) > 0.04
    return _first(xp, (distant, door + _offset(0.06, 0.02, 0.2)), (high, door + _offset(0.06, 0.02)), door), 1.0, 25.0


def unlocked_door_open(xp, hand, gripper, object, goal):
    """`door_open` from beside the lock, where the package's policy would push the handle sideways: back, up, over."""
    aside = hand[..., 0] < object[..., 0] - 0.04
    low = aside & (hand[..., 2] < object[..., 2] + 0.12)
    before = low & (hand[..., 1] > object[..., 1] - 0.02), hand + _offset(-0.05, -0.1, -0.1)
    cross = aside, object + _offset(0.01, 0.02, 0.2)
    waypoint, effort, gain = door_open(xp, hand, gripper, object, goal)
    return _first(xp, before, (low, hand + _offset(z=0.1)), cross, waypoint), effort, gain


def door_close(xp, hand, gripper, object, goal):
    door = object + _offset(0.05, 0.12, 0.1)
    beyond = hand[..., 0] > door[..., 0]
    low = beyond & (hand[..., 2] < door[..., 2] + 0.2), _point(xp, hand[..., 0], hand[..., 1], door[..., 2] + 0.25)
    cross = beyond, _point(xp, door[..., 0] - 0.02, door[..., 1], hand[..., 2])
    return _first(xp, low, cross, (_height(xp, hand, door) > 0.04, door + _offset(-0.02)), goal), 1.0, 25.0


def _slide(offset: np.ndarray, height: float, level: float, shift: np.ndarray) -> Expert:
    """Come down beside a handle, then move it by `shift`."""

    def expert(xp, hand, gripper, object, goal):
        handle = object + offset
        cases = (
            (_flat(xp, hand, handle) > 0.04, handle + _offset(z=height)),
            (_height(xp, hand, handle) > level, handle),
        )
        return _first(xp, *cases, handle + shift), 1.0, 25.0

    return expert


window_open = _slide(_offset(-0.03, -0.03, -0.08), 0.3, 0.02, _offset(0.1))
window_close = _slide(_offset(0.03, -0.03, -0.08), 0.25, 0.02, _offset(-0.1))
faucet_open = _slide(_offset(-0.04, 0, 0.03), 0.1, 0.04, _offset(0.1, 0.05))
faucet_close = _slide(_offset(0.04, 0, 0.03), 0.1, 0.04, _offset(-0.1, 0.05))


def hammer(xp, hand, gripper, object, goal):
    handle = object + _offset(-0.04, 0, -0.01)
    nail = _offset(0.24, 0.71, 0.11) + _offset(-0.19, 0, 0.05)
    distant, high = _flat(xp, hand, handle) > 0.04, _height(xp, hand, handle)
    cases = _descend(xp, hand, handle, 0.1, 0.04, (high > 0.05) & (handle[..., 2] < 0.03))
    away = xp.sqrt(xp.square((hand - nail)[..., np.array([0, 2])]).sum(axis=-1)) > 0.02
    before = _point(xp, nail[0], hand[..., 1], nail[2])
    return _first(xp, *cases, (away, before), nail), xp.where(distant | (high > 0.1), 0.0, 0.8), 10.0


def soccer(xp, hand, gripper, object, goal):
    ball = object + _offset(z=0.03)
    z = xp.where(_flat(xp, hand, ball) < 0.02, 0.1, 0.03)
    side = ball[..., 0] - goal[..., 0]
    approach = _first(
        xp, (side < -0.05, ball + _offset(-0.03)), (side > 0.05, ball + _offset(0.03)), ball + _offset(y=-0.03)
    )
    approach = _point(xp, approach[..., 0], approach[..., 1], z)
    away = xp.sqrt(xp.square(hand - approach).sum(axis=-1)) > 0.01
    return _first(xp, (away, approach), ball), 1.0, 25.0
