"""The numbers of the scene's equations of motion, read off a compiled model; for programs of our own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from envs_jax.clevr.constants import BALLS, PUSHER_RADIUS, PUSHER_Z, RADIUS
from envs_jax.physics.interface import require


PLANES = 5
"""The table and the walls: left, right, back, front."""


class Equations(NamedTuple):
    """The parameters of MuJoCo's equations for the scene (MuJoCo's documentation, "Computation"); float64."""

    pause: float
    """Seconds of a time step."""
    ball: tuple[float, float]
    """The inertia of a ball with the joint's armature: along an axis, and around one."""
    pusher: float
    """The mass of the pusher, with the armature."""
    damping: tuple[float, float]
    """The damping of a ball and of the pusher."""
    weight: float
    """The force of gravity on a ball, along z."""
    limits: tuple[float, float]
    """The lowest and highest control."""
    margin: float
    """A contact acts where the distance is below."""
    friction: float
    damper: float
    spring: float
    """Reference accelerations are `-damper * velocity - spring * impedance * distance`."""
    impedance: tuple[float, ...]
    """MuJoCo's `solimp`, five numbers."""
    loose: tuple[float, float, float]
    """The factor of `(1 - d) / d` in the regulariser of an edge of the friction pyramid: between two
    balls, ball and pusher, ball and plane."""
    normals: tuple[tuple[float, ...], ...]
    """Of the five planes, away from them."""
    offsets: tuple[float, ...]
    """The distance of a ball with its centre at the origin."""
    scale: float
    """The solver's norm of a gradient is scaled with this."""
    radius: float = RADIUS
    """Of a ball."""
    thin: float = PUSHER_RADIUS
    """The radius of the pusher."""
    height: float = PUSHER_Z
    """The constant height of the pusher's centre."""
    iterations: int = 20
    """The most steps of Newton's method for a time step, as in the scene's option."""
    searches: int = 10
    """The most steps of its line search."""
    tolerance: float = 1e-10
    """Newton's method ends where the scaled norm of the gradient is below; MuJoCo's own is 1e-8."""
    flat: float = 1e-6
    """The line search ends where the slope has fallen by this factor."""


def equations(model: Any) -> Equations:
    """The numbers of a model, that of `envs_jax.clevr.scene.load`. **Raises:** `ModuleNotFoundError` without mujoco;
    `ValueError` for a model of another scene."""
    mujoco = require("mujoco", "clevr")
    sizes = [RADIUS] * BALLS + [PUSHER_RADIUS]
    if model.ngeom != PLANES + len(sizes) or not np.allclose(model.geom_size[PLANES:, 0], sizes):
        raise ValueError(
            f"the model has {model.ngeom} geoms; five planes, {BALLS} balls and a pusher of the scene's sizes are "
            "needed, as envs_jax.clevr.scene.load makes them"
        )
    counts = model.nq, model.nv, model.nu, model.na, model.nmocap
    kind = int(mujoco.mjtIntegrator.mjINT_EULER), int(mujoco.mjtCone.mjCONE_PYRAMIDAL)
    uniform = all(np.ptp(x, 0).max() == 0 for x in (model.geom_friction, model.geom_solref, model.geom_solimp))
    if (
        counts != (7 * BALLS + 2, 6 * BALLS + 2, 2, 0, 0)
        or (model.opt.integrator, model.opt.cone) != kind
        or not (uniform and np.ptp(model.geom_margin) == 0 and model.actuator_ctrllimited.all())
    ):
        raise ValueError(
            f"the model has {counts} positions, velocities, controls, activations and mocap bodies; that of "
            "envs_jax.clevr.scene.load is needed, with free balls, Euler's method, pyramids of friction, limited "
            "controls, and one friction and stiffness for all"
        )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    ball, pusher, contact = 1, 1 + BALLS, data.contact[0]  # bodies; the world is 0
    pause, square = float(model.opt.timestep), float(contact.friction[0]) ** 2
    timeconst, ratio, dmax = max(float(contact.solref[0]), 2 * pause), float(contact.solref[1]), contact.solimp[1]
    inverse, armature = model.body_invweight0[:, 0], model.dof_armature[0]
    loose = np.array([2 * inverse[ball], inverse[ball] + inverse[pusher], inverse[ball]])
    normals = data.geom_xmat[:PLANES].reshape(PLANES, 3, 3)[:, :, 2].copy()
    offsets = -np.sum(normals * data.geom_xpos[:PLANES], 1) - RADIUS
    return Equations(
        pause=pause,
        ball=(float(model.body_mass[ball] + armature), float(model.body_inertia[ball, 0] + armature)),
        pusher=float(model.body_mass[pusher] + model.dof_armature[-1]),
        damping=(float(model.dof_damping[0]), float(model.dof_damping[-1])),
        weight=float(model.body_mass[ball] * model.opt.gravity[2]),
        limits=tuple(model.actuator_ctrlrange[0].tolist()),
        margin=float(contact.includemargin),
        friction=float(contact.friction[0]),
        damper=float(2 / (dmax * timeconst)),
        spring=float(1 / (dmax * timeconst * ratio) ** 2),
        impedance=tuple(contact.solimp.tolist()),
        loose=tuple((loose * (1 + square) * 2 * square).tolist()),
        normals=tuple(map(tuple, normals.tolist())),
        offsets=tuple(offsets.tolist()),
        scale=float(1 / (model.stat.meaninertia * model.nv)),
    )
