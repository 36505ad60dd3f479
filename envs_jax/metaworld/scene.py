"""The scenes, converted from the installed package `metaworld` and kept in the user's cache: its assets are not copied
into this project.

A body that a reset moves becomes a mocap body: it has no joint in any scene, so this changes nothing but that its place
belongs to the state, not to the model, and one compiled model serves all starts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs_jax.metaworld import proxy
from envs_jax.metaworld.tasks import TASKS
from envs_jax.physics.interface import require


Geometry = Literal["stock", "proxy"]

VERSION = "3.1.1"
"""The version of the package that is re-implemented."""
WELD = np.array([0.0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 5])
"""The weld of the hand to its mocap body: no offset, no turn, torques five times as strong as forces."""


def cache() -> Path:
    """The folder of converted scenes: `llmrl_jax/metaworld` in `XDG_CACHE_HOME`, which is `~/.cache` by default."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "llmrl_jax" / "metaworld"


@functools.cache
def _digest() -> str:
    """A digest of the converter: part of the name of every cached file, so that a change converts again."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in ("scene.py", "proxy.py", "tasks.py"))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:8]


def _cached(task: str, geometry: str) -> Path:
    mujoco = require("mujoco")
    scene, hinge = TASKS[task].scene, "-hinge" if TASKS[task].hinge else ""
    return cache() / f"{scene}{hinge}-{geometry}-{VERSION}-{mujoco.__version__}-{_digest()}.mjb"


def _assets() -> Path:
    """The folder of the package's scenes. **Raises:** `ModuleNotFoundError`, `ImportError` for another version."""
    found = importlib.util.find_spec("metaworld")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"the scenes of Meta-World come from the package metaworld, which is not installed: pip install "
            f"metaworld=={VERSION} (it needs mujoco 3.3.0), once; the converted scenes are kept in {cache()}",
            name="metaworld",
        )
    version = importlib.metadata.version("metaworld")
    if version != VERSION:
        raise ImportError(
            f"metaworld {version} is installed, and its scenes may differ: pip install metaworld=={VERSION}"
        )
    return Path(found.origin).parent / "assets" / "sawyer_xyz"


def check(task: str, geometry: str) -> None:
    """Check that a scene can be loaded, without loading it. **Raises:** as `load`."""
    if not _cached(task, geometry).is_file():
        _assets()


def convert(task: str, geometry: str) -> Any:
    """A task's scene as a `mujoco.MjModel`, from the installed package."""
    mujoco = require("mujoco")
    wanted = TASKS[task]
    path = str(_assets() / f"sawyer_{wanted.scene}.xml")

    def opened() -> Any:
        spec = mujoco.MjSpec.from_file(path)
        for material in spec.materials:
            material.textures = [""] * len(material.textures)
        for texture in list(spec.textures):
            texture.delete()
        spec.body("mocap").quat = [1, 0, 1, 0]
        for base in {other.base[0] for other in TASKS.values() if other.scene == wanted.scene and other.base}:
            spec.body(base).mocap = True
        if wanted.hinge:
            _add_hinge(mujoco, spec, wanted.hinge)
        return spec

    spec = opened()
    model = spec.compile()
    if geometry == "proxy":
        spec = opened()
        proxy.replace(mujoco, spec, model)
        model = spec.compile()
    for i in np.flatnonzero(model.eq_type == mujoco.mjtEq.mjEQ_WELD):
        model.eq_data[i] = 0
        model.eq_data[i, : len(WELD)] = WELD
    return model


def _add_hinge(mujoco: Any, spec: Any, name: str) -> None:
    """Hang the door of the scene with the lock as that of the other scene, and name its handle."""
    body = spec.body(name)
    body.add_joint(
        name="doorjoint",
        type=mujoco.mjtJoint.mjJNT_HINGE,
        axis=[0, 0, 1],
        range=[-2, 0],
        limited=1,
        damping=2,
        armature=0.001,
    )
    (handle,) = (geom for geom in body.geoms if geom.meshname == "door_handle")
    handle.name = "handle"


@functools.lru_cache(maxsize=4)
def load(task: str, geometry: str) -> Any:
    """A task's scene, a `mujoco.MjModel`, from the cache, or converted and put there.

    **Raises:** `ModuleNotFoundError` without mujoco, or without metaworld at the first use of a scene.
    """
    mujoco = require("mujoco")
    path = _cached(task, geometry)
    if not path.is_file():
        model = convert(task, geometry)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            mujoco.mj_saveModel(model, str(Path(folder) / "scene.mjb"), None)
            os.replace(Path(folder) / "scene.mjb", path)
    return mujoco.MjModel.from_binary_path(str(path))
