"""Images of a MuJoCo scene, by MuJoCo's own renderer."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs_jax.physics.interface import require


SIZE = 480
"""Side of an image in pixels."""


def _screen() -> bool:
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


class Painter:
    """Draws one model, in one OpenGL context of its own."""

    def __init__(self, model: Any, camera: Mapping[str, Any]):
        """**Arguments:** `model`, a `mujoco.MjModel`; `camera`, attributes of the free camera (`distance`, `lookat`,
        `elevation`), for a model without a camera named `track`.

        **Raises:** `RuntimeError` if no OpenGL context can be made.
        """
        mujoco = require("mujoco")
        self._forward, self._model, self._data = mujoco.mj_forward, model, mujoco.MjData(model)
        try:
            # checked first: what MuJoCo creates without a screen, or only in part, fails again when it is deleted
            if mujoco.GLContext.__module__ == "mujoco.glfw" and not _screen():
                raise OSError("there is no screen")
            mujoco.GLContext(1, 1).free()
            self._renderer = mujoco.Renderer(model, SIZE, SIZE)
            # exit handlers run in reverse order: the renderer is closed before its display
            closing = weakref.finalize(self, self._renderer.close)
            closing.atexit = False
            atexit.register(closing)
        except Exception as error:
            raise RuntimeError(
                f"MuJoCo cannot draw here: no OpenGL context ({type(error).__name__}: {error}). Without a screen, set "
                "MUJOCO_GL=egl, or osmesa, before mujoco is imported"
            ) from error
        self._camera = mujoco.MjvCamera()
        track = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        if track >= 0:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, track
            return
        mujoco.mj_forward(model, self._data)
        free = {"lookat": np.median(self._data.geom_xpos, axis=0), "distance": model.stat.extent}
        for name, value in {**free, **camera}.items():
            setattr(self._camera, name, value)

    def picture(self, qpos: np.ndarray) -> np.ndarray:
        """The scene with its joints at `qpos`, float64 `[nq]`, as uint8 `[480, 480, 3]`."""
        self._data.qpos[:] = qpos
        self._forward(self._model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        return self._renderer.render()
