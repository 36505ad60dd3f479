"""Images of a scene, drawn here: triangles from back to front, shaded by one light. They need no OpenGL."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from envs_jax.physics.interface import require


SIZE, FINE = 480, 2
"""Side of an image in pixels, and how many times larger it is drawn before it is averaged, which smooths edges."""
EYE, LOOK, FIELD = np.array([0.75, -0.2, 0.75]), np.array([0.0, 0.68, 0.14]), 0.5
"""The position of the camera, the point it looks at, and half the width of its view at a distance of 1."""
LIGHT = np.array([0.35, -0.45, 0.82])
SKY, MARK = (226, 232, 238), (40, 200, 70)
PAINTS = {"table_wood": (0.72, 0.58, 0.43), "wall_metal": (0.62, 0.64, 0.68), "wall_brick": (0.66, 0.36, 0.28)}
"""Colours of materials that only a texture colours in the package."""
PLAIN = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's colour of a geom that was given none: then its material has one."""
COARSE = 0.06
"""Triangles with a longer side than this, in metres, are cut into smaller ones, so that they can be put in order."""
ROUND = 20
"""Sides of the prism that stands for a cylinder."""
FACES = np.array([(0, 1, 3), (0, 3, 2), (4, 6, 7), (4, 7, 5), (0, 4, 5), (0, 5, 1), (2, 3, 7), (2, 7, 6), (0, 2, 6)])
BOX = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
BOX_FACES = np.concatenate([FACES, [(0, 6, 4), (1, 5, 7), (1, 7, 3)]])


@functools.cache
def _ball() -> tuple[np.ndarray, np.ndarray]:
    """A sphere of radius 1, of stripes: its corners and triangles."""
    tall, wide = np.meshgrid(np.linspace(0, np.pi, ROUND // 2 + 1), np.arange(ROUND) * 2 * np.pi / ROUND, indexing="ij")
    points = np.stack([np.sin(tall) * np.cos(wide), np.sin(tall) * np.sin(wide), np.cos(tall)], axis=-1).reshape(-1, 3)
    i, j = (x.ravel() for x in np.meshgrid(np.arange(ROUND // 2), np.arange(ROUND), indexing="ij"))
    a, b = i * ROUND + j, i * ROUND + (j + 1) % ROUND
    faces = np.concatenate([np.stack([a, a + ROUND, b], -1), np.stack([b, a + ROUND, b + ROUND], -1)])
    return points, faces


def _tube(radius: float, half: float) -> tuple[np.ndarray, np.ndarray]:
    """A cylinder."""
    angle = np.arange(ROUND) * 2 * np.pi / ROUND
    ring = radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    ends = [np.concatenate([ring, np.full((ROUND, 1), z)], axis=1) for z in (-half, half)]
    points = np.concatenate([*ends, [(0, 0, -half), (0, 0, half)]])
    j = np.arange(ROUND)
    k = (j + 1) % ROUND
    sides = [np.stack([j, k, k + ROUND], -1), np.stack([j, k + ROUND, j + ROUND], -1)]
    caps = [np.stack([k, j, 0 * j + 2 * ROUND], -1), np.stack([j + ROUND, k + ROUND, 0 * j + 2 * ROUND + 1], -1)]
    return points, np.concatenate([*sides, *caps])


def shape(mujoco: Any, model: Any, geom: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The corners `[V, 3]` and triangles `[F, 3]` of a geom, in its own frame; None for one that is not drawn."""
    kinds, size = mujoco.mjtGeom, model.geom_size[geom]
    kind = model.geom_type[geom]
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        start, faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        return model.mesh_vert[first : first + count], model.mesh_face[start : start + faces]
    if kind == kinds.mjGEOM_BOX:
        return BOX * size, BOX_FACES
    if kind == kinds.mjGEOM_SPHERE:
        points, faces = _ball()
        return points * size[0], faces
    if kind == kinds.mjGEOM_CYLINDER:
        return _tube(size[0], size[1])
    if kind == kinds.mjGEOM_CAPSULE:
        points, faces = _ball()
        return points * size[0] + np.sign(points[:, 2:]) * [0, 0, size[1]], faces
    return None


def _paint(model: Any, geom: int) -> np.ndarray:
    """The colour of a geom, RGBA from 0 to 1."""
    material, color = model.geom_matid[geom], model.geom_rgba[geom]
    if material < 0 or not np.allclose(color, PLAIN):
        return np.array(color)
    name = model.mat(material).name
    return np.array([*PAINTS[name], 1.0]) if name in PAINTS else np.array(model.mat_rgba[material])


def _cut(triangles: np.ndarray) -> np.ndarray:
    """Triangles `[F, 3, 3]`, the large ones cut into four until none is coarse."""
    pieces = []
    while len(triangles):
        sides = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2).max(axis=1)
        large = sides > COARSE
        pieces.append(triangles[~large])
        a, b, c = (triangles[large][:, i] for i in range(3))
        ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
        parts = (a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)
        triangles = np.concatenate([np.stack(part, axis=1) for part in parts])
    return np.concatenate(pieces)


class Painter:
    """Draws one scene; the shapes are read once."""

    def __init__(self, model: Any):
        """**Arguments:** `model`, a `mujoco.MjModel`."""
        self._mujoco = require("mujoco")
        self.model, self._data = model, self._mujoco.MjData(model)
        visible = [i for i in range(model.ngeom) if model.geom_group[i] < 3 and _paint(model, i)[3] > 0.05]
        meshes = [(i, shape(self._mujoco, model, i)) for i in visible]
        self.shapes = [(i, _cut(parts[0][parts[1]])) for i, parts in meshes if parts is not None]

    def picture(self, qpos: np.ndarray, mocap: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The scene with its joints at `qpos` `[nq]`, mocap bodies at `mocap` `[nmocap, 3]`, and a ball at `target`.

        **Returns:** uint8 `[480, 480, 3]`.
        """
        from PIL import Image, ImageDraw

        data = self._data
        data.qpos[:], data.mocap_pos[:] = qpos, mocap
        self._mujoco.mj_kinematics(self.model, data)
        corners, colors = [], []
        for i, triangles in self.shapes:
            corners.append(triangles @ data.geom_xmat[i].reshape(3, 3).T + data.geom_xpos[i])
            colors.append(np.broadcast_to(255 * _paint(self.model, i)[:3], (len(triangles), 3)))
        ball, faces = _ball()
        corners.append((0.015 * ball + target)[faces])
        colors.append(np.broadcast_to(np.array(MARK, float), (len(faces), 3)))
        flat, shades = _projected(np.concatenate(corners), np.concatenate(colors))
        image = Image.new("RGB", (SIZE * FINE, SIZE * FINE), SKY)
        draw = ImageDraw.Draw(image)
        for triangle, shade in zip(flat.tolist(), shades.tolist()):
            draw.polygon(triangle, fill=tuple(shade))
        return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX))


def _projected(corners: np.ndarray, colors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The triangles that face the camera, from back to front: pixels `[F, 6]` and shaded colours `[F, 3]`."""
    forward = (LOOK - EYE) / np.linalg.norm(LOOK - EYE)
    right = np.cross(forward, [0, 0, 1])
    right /= np.linalg.norm(right)
    axes = np.stack([right, -np.cross(right, forward), forward])
    points = (corners - EYE) @ axes.T
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    facing = ((EYE - corners.mean(axis=1)) * normals).sum(axis=1)
    visible = (points[..., 2].min(axis=1) > 0.05) & (np.abs(facing) > 0)
    normals = np.where(facing[:, None] < 0, -normals, normals)  # some meshes are inside out
    bright = 0.45 + 0.55 * np.clip(normals @ (LIGHT / np.linalg.norm(LIGHT)), 0, 1)
    order = np.argsort(-points[..., 2].mean(axis=1))
    order = order[visible[order]]
    pixels = (points[order, :, :2] / points[order, :, 2:] / FIELD + 1) * SIZE * FINE / 2
    shaded = np.clip(colors[order] * bright[order, None], 0, 255).astype(int)
    return pixels.reshape(-1, 6), shaded
