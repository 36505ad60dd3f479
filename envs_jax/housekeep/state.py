"""The data of a Housekeep environment: the state of an episode, and the parameters."""

from __future__ import annotations

import jax
from flax import struct


@struct.dataclass
class Params:
    """Parameters that may vary inside one compiled program. `N` categories of objects, `R` receptacles."""

    max_steps: jax.Array
    """int32 `[]`: the steps after which an episode is truncated."""
    objects: jax.Array
    """int32 `[2]`: the smallest and the largest number of objects of a random episode."""
    misplaced: jax.Array
    """int32 `[2]`: the smallest and the largest number of misplaced ones."""
    pick_reward: jax.Array
    """float32 `[]`: the first pick of a misplaced object."""
    wrong_pick_reward: jax.Array
    """float32 `[]`: the pick of an object that lies in a correct place."""
    place_reward: jax.Array
    """float32 `[]`: the first correct placement of an object that was misplaced at the start."""
    wrong_place_reward: jax.Array
    """float32 `[]`: a placement on a receptacle that is not correct."""
    fail_reward: jax.Array
    """float32 `[]`: a grab or a release that fails."""
    clip_reward: jax.Array
    """bool `[]`: whether rewards are clipped to [-1, 1]."""
    suggesting: jax.Array
    """bool `[]`: whether rewards follow `suggestions` instead of the correct places."""
    suggestions: jax.Array
    """bool `[N, R]`: whether category `n` should be stored in or on receptacle `r`, according to who suggests goals."""


@struct.dataclass
class State:
    """One episode. `O` slots hold objects; those of a smaller number of objects come first."""

    cell: jax.Array
    """int32 `[]`, where the agent stands: `y * WIDTH + x`."""
    heading: jax.Array
    """int32 `[]`, 0 right, 1 down, 2 left, 3 up on the image."""
    pitch: jax.Array
    """int32 `[]`, the height that it looks at: 0 low, 1 middle, 2 high."""
    category: jax.Array
    """int16 `[O]`, the category of each object, -1 for an empty slot."""
    spot: jax.Array
    """int16 `[O]`, the spot of each object; `IN_HAND`, or `ABSENT` for an empty slot."""
    held: jax.Array
    """int32 `[]`, the object in the agent's hand, -1 for none."""
    misplaced: jax.Array
    """bool `[O]`, objects that were misplaced at the start."""
    picked: jax.Array
    """bool `[O]`, objects that have been picked up."""
    placed: jax.Array
    """bool `[O]`, objects that have been put in a correct place."""
    rewarded: jax.Array
    """bool `[O]`, objects that have been put where the rewarding table says yes."""
    seen_objects: jax.Array
    """bool `[O]`, objects seen in this episode."""
    seen_receptacles: jax.Array
    """uint32 `[words]`, receptacles seen in this episode: bit `r % 32` of word `r // 32`."""
    initial: jax.Array
    """int32 `[]`, the number of objects in a correct place at the start."""
    best: jax.Array
    """int32 `[]`, the largest such number in this episode."""
    step_count: jax.Array
    """int32 `[]`."""
