"""The mesh: three axes, `data`, `fsdp` and `tensor`, written as `data=4,fsdp=2`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from llmrl_jax.core.checks import nearest


AXES = ("data", "fsdp", "tensor")
"""Axes of the mesh, in their order: rows are split over `data` and `fsdp`, weights over `fsdp` and `tensor`."""


@dataclass(frozen=True)
class MeshSpec:
    """Number of devices along each axis."""

    data: int = 1
    """Rows of the batch (environments) are split over it; weights are replicated."""
    fsdp: int = 1
    """Rows and weights are both split over it; weights are gathered where they are used."""
    tensor: int = 1
    """Heads, MLP widths and the vocabulary are split over it."""

    def __post_init__(self):
        for name in AXES:
            if getattr(self, name) < 1:
                raise ValueError(f"mesh axis {name} is {getattr(self, name)}; at least 1 is needed")

    @staticmethod
    def parse(text: str) -> MeshSpec:
        """Read `data=4,fsdp=2`; axes left out are 1. **Raises:** `ValueError`, naming the nearest axis."""
        sizes: dict[str, int] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, size = (s.strip() for s in part.partition("="))
            if name not in AXES:
                raise ValueError(f"no mesh axis {name!r}{nearest(name, list(AXES))} (the axes are {', '.join(AXES)})")
            if not equals or not size.isdecimal():
                raise ValueError(f"mesh axis {part!r} is not NAME=NUMBER, as in 'data=4,fsdp=2'")
            if name in sizes:
                raise ValueError(f"mesh axis {name} is given twice in {text!r}")
            sizes[name] = int(size)
        return MeshSpec(**sizes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.data * self.fsdp * self.tensor

    def __str__(self) -> str:
        return " x ".join(f"{name}={getattr(self, name)}" for name in AXES if getattr(self, name) > 1) or "data=1"


def make_mesh(spec: str | MeshSpec = "", devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Mesh with the axes data, fsdp and tensor, all of type Auto (jax's own default, Explicit, breaks flax).

    **Arguments:** `spec`, as `"data=4,fsdp=2"` (axes left out are 1); `devices`, all of them by default. A mesh may use
    only the first devices if its size divides their number and one process holds them all.
    **Raises:** `ValueError`, with the arithmetic, if there are too few devices or the mesh does not divide them.
    """
    spec = MeshSpec.parse(spec) if isinstance(spec, str) else spec
    present = list(jax.devices() if devices is None else devices)
    if spec.size > len(present):
        raise ValueError(f"{spec} needs {spec.size} devices, {len(present)} are present")
    if len(present) % spec.size:
        raise ValueError(f"{spec} needs {spec.size} devices, which does not divide the {len(present)} present")
    if spec.size < len(present) and len({d.process_index for d in present}) > 1:
        raise ValueError(f"{spec} needs {spec.size} devices; with several processes it must use all {len(present)}")
    shape = (spec.data, spec.fsdp, spec.tensor)
    grid = np.array(present[: math.prod(shape)], dtype=object).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))
