"""Proxy geometry: boxes for the shapes whose collisions MJX cannot compute, and fewer pairs of shapes to look at.

Cylinders become boxes of the same cross section and height, meshes their bounding boxes. Masses and inertias stay those
of the package's shapes. Shapes that never collide are left out, unless they are named: the observation may read them.
So the contacts differ from those of the package, and nothing else does.
"""

from __future__ import annotations

from typing import Any

import numpy as np


GRIPPER, FREE, DOOR = 1, 2, 4
"""What collides with what: the gripper with everything but itself; what moves freely also with the retaining wall and
the floor, which the gripper does not reach; and a door with its frame, since an open one starts inside it. The parts of
any other apparatus do not collide with each other: their joints have limits."""
CROSS = np.sqrt(np.pi) / 2
"""Half the side of a square over the radius of a circle of the same area."""


def replace(mujoco: Any, spec: Any, model: Any) -> None:
    """Replace the shapes of a scene.

    **Arguments:** `spec`, a `mujoco.MjSpec`; `model`, the `mujoco.MjModel` compiled from one like it.
    """
    kinds = mujoco.mjtGeom
    for body in spec.bodies:
        if body.name not in ("", "world"):  # the only body without a name is the frame of the window, which is fixed
            _keep_inertia(body, model)
    for number, geom in enumerate(list(spec.geoms)):
        compiled = model.geom(number)
        if not (compiled.contype[0] or compiled.conaffinity[0]):
            if not geom.name:
                geom.delete()
            continue
        masks = _masks(model, int(compiled.bodyid[0]))
        geom.contype, geom.conaffinity = masks
        kind = compiled.type[0]
        if kind == kinds.mjGEOM_CYLINDER:
            radius, half = compiled.size[:2]
            geom.type, geom.size = kinds.mjGEOM_BOX, [CROSS * radius, CROSS * radius, half]
        elif kind == kinds.mjGEOM_MESH:
            _box_for_mesh(mujoco, geom, model, number)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            mesh.delete()


def _keep_inertia(body: Any, model: Any) -> None:
    """Give a body the mass and inertia that its shapes gave it."""
    compiled = model.body(body.name)
    if compiled.mass[0] <= 0:
        return
    body.explicitinertial = True
    body.mass, body.ipos, body.iquat = compiled.mass[0], compiled.ipos, compiled.iquat
    body.inertia = compiled.inertia
    body.fullinertia = np.full(6, np.nan)


def _masks(model: Any, body: int) -> tuple[int, int]:
    """`contype` and `conaffinity` of the shapes of a body, by what it is part of."""
    above = [body]
    while above[-1]:
        above.append(int(model.body_parentid[above[-1]]))
    names = {model.body(i).name for i in above}
    if "right_l6" in names:  # the wrist's own mesh meets nothing in the package either
        return (GRIPPER, 0) if "right_hand" in names else (0, 0)
    if any(model.jnt_type[model.body_jntadr[i]] == 0 for i in above if model.body_jntnum[i]):
        return FREE, GRIPPER
    if above[0] == 0 or "RetainingWall" in names:
        return 0, FREE
    hung = "door_link" in names and model.body("door_link").jntnum[0]
    return (DOOR, GRIPPER | FREE) if hung else (0, GRIPPER | FREE | DOOR)


def _box_for_mesh(mujoco: Any, geom: Any, model: Any, number: int) -> None:
    """The bounding box of a mesh, in the frame of its inertia."""
    center, half = model.geom_aabb[number, :3], model.geom_aabb[number, 3:]
    turned = np.zeros(3)
    mujoco.mju_rotVecQuat(turned, center, model.geom_quat[number])
    geom.type, geom.meshname = mujoco.mjtGeom.mjGEOM_BOX, ""
    geom.pos, geom.quat, geom.size = model.geom_pos[number] + turned, model.geom_quat[number], half
