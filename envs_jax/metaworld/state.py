"""The data of a Meta-World task: the state of an episode, and the parameters."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct


@struct.dataclass
class Params:
    """Parameters that may vary inside one compiled program."""

    max_steps: jax.Array
    """int32 `[]`: the steps after which an episode is truncated."""
    ends_at_success: jax.Array
    """bool `[]`: whether success ends an episode. The package's episodes go on."""


@struct.dataclass
class Start:
    """The initial quantities of an episode that rewards need: float32, in metres."""

    targets: Any
    """`[S, 3]`, the target of each stage."""
    object: Any
    """`[3]`, where the object began, in the sense of the reward."""
    tcp: Any
    """`[3]`, where the middle between the finger tips began."""
    handle: Any
    """`[3]`, where the first part of the observation began; for windows."""


@struct.dataclass
class State:
    """One episode."""

    physics: Any
    """The state of `env.physics`; `env.physics.decode` gives its numbers."""
    frame: jax.Array
    """float32 `[18]`, the last frame, not clipped, which the next observation repeats."""
    start: Start
    stage: jax.Array
    """int32 `[]`, 0, or 1 in the second stage of a composite task."""
    step_count: jax.Array
    """int32 `[]`."""
