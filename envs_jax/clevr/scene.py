"""The scene as MuJoCo XML, made here: five balls with free joints, a pusher on two slides, a table with four walls."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs_jax.clevr.constants import BALLS, HIGH, LOW, PUSHER_RADIUS, PUSHER_Z, RADIUS, REST_Z, TABLE_Z
from envs_jax.physics.interface import require


TILT = 1.57
"""Angle by which the planes of the walls are turned: short of a right angle, as published, by 0.8 mrad."""

OPTION = '<option timestep="0.01" iterations="20" integrator="Euler" solver="Newton" cone="pyramidal"/>'


def _walls() -> str:
    (left, front), (right, back) = LOW, HIGH
    places = {
        "left": (f"{left} 0 0", f"0 {TILT} 0"),
        "right": (f"{right} 0 0", f"0 {-TILT} 0"),
        "back": (f"0 {back} 0", f"{TILT} 0 0"),
        "front": (f"0 {front} 0", f"{-TILT} 0 0"),
    }
    return "".join(
        f'<geom name="{name}" type="plane" pos="{pos}" euler="{turn}" size="2 2 0.1" contype="1" conaffinity="0"/>'
        for name, (pos, turn) in places.items()
    )


def _ball(number: int) -> str:
    return (
        f'<body name="ball{number}" pos="{0.3 * number} 0 {REST_Z}">'
        '<joint type="free" damping="0.75" armature="0.04"/>'
        f'<geom type="sphere" size="{RADIUS}" density="1" contype="1" conaffinity="1"/></body>'
    )


def xml() -> str:
    """The text of the model.

    Balls hit everything; the pusher hits balls and passes through walls. It also passes through the table, which it
    never reaches, so this pair is left out; and its slides have no limits, which are ten metres away.
    """
    slide = '<joint name="{0}" type="slide" axis="{1}" damping="0.5" armature="0.04"/>'
    pusher = (
        f'<body name="pusher" pos="0 0 {PUSHER_Z}">{slide.format("x", "1 0 0")}{slide.format("y", "0 1 0")}'
        f'<geom type="sphere" size="{PUSHER_RADIUS}" density="0.5" contype="1" conaffinity="0"/></body>'
    )
    motors = "".join(f'<motor joint="{axis}" ctrllimited="true" ctrlrange="-2 2"/>' for axis in "xy")
    return (
        f'<mujoco model="clevr"><compiler angle="radian"/>{OPTION}'
        '<default><geom friction="0.8 0.1 0.1" condim="3" margin="0.002"/></default><worldbody>'
        f'<geom name="table" type="plane" pos="0 0 {TABLE_Z}" size="2 2 0.1" contype="1" conaffinity="1"/>'
        f"{_walls()}{''.join(map(_ball, range(BALLS)))}{pusher}</worldbody>"
        '<contact><exclude body1="world" body2="pusher"/></contact>'
        f"<actuator>{motors}</actuator></mujoco>"
    )


def load() -> Any:
    """The compiled model, a `mujoco.MjModel`. **Raises:** `ModuleNotFoundError` without mujoco."""
    return require("mujoco", "clevr").MjModel.from_xml_string(xml())


def balls_of(xp: Any, qpos: Any) -> Any:
    """The x and y of each ball, `[..., 5, 2]`, of joint positions `[..., 37]`."""
    return qpos[..., : 7 * BALLS].reshape(*qpos.shape[:-1], BALLS, 7)[..., :2]


def speeds_of(xp: Any, qvel: Any) -> Any:
    """The velocity of each ball along x and y, `[..., 5, 2]`, of joint velocities `[..., 32]`."""
    return qvel[..., : 6 * BALLS].reshape(*qvel.shape[:-1], BALLS, 6)[..., :2]


def qpos_of(xp: Any, balls: Any) -> Any:
    """The joint positions `[..., 37]` of balls that rest on the table at `[..., 5, 2]`, the pusher in the middle."""
    batch = balls.shape[:-2]
    resting = xp.broadcast_to(xp.asarray(np.array([REST_Z, 1.0, 0, 0, 0]), balls.dtype), (*batch, BALLS, 5))
    flat = xp.concatenate([balls, resting], axis=-1).reshape(*batch, 7 * BALLS)
    return xp.concatenate([flat, xp.zeros((*batch, 2), balls.dtype)], axis=-1)
