"""The data of CLEVR-Robot: the state of an episode, and the parameters."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from envs_jax.clevr.rules import Weights


@struct.dataclass
class Params:
    """Parameters that may vary inside one compiled program."""

    max_steps: jax.Array
    """int32 `[]`: the steps after which an episode is truncated."""
    weights: Weights
    """What success and progress are worth."""


@struct.dataclass
class State:
    """One episode."""

    physics: Any
    """The state of `env.physics`; `env.physics.decode` gives its numbers."""
    balls: jax.Array
    """float32 `[10]`, the x and y of the balls."""
    speeds: jax.Array
    """float32 `[10]`, the x and y of their velocities, in m/s, which are not observed."""
    stale: jax.Array
    """bool `[]`, whether the next push is aimed at `aim`, as the first one is under `compat`."""
    aim: jax.Array
    """float32 `[10]`, another layout of the balls under `compat`, else zeros."""
    instruction: jax.Array
    """int32 `[]`, the number of the instruction within its level."""
    goal: jax.Array
    """int32 `[10]`."""
    pusher: jax.Array
    """float32 `[2]`, where the pusher is."""
    step_count: jax.Array
    """int32 `[]`."""
