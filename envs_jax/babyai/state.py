"""The data of a BabyAI environment: packed cells, the state of an episode, and the parameters."""

from __future__ import annotations

import jax
from flax import struct

from envs_jax.babyai.constants import EMPTY, GREY, WALL
from envs_jax.babyai.mission import Mission


# A cell, or a carried object, is one int16: type (4 bits), colour (3), state (2), object id + 1 (6; 0 is no object).
COLOR_SHIFT, STATE_SHIFT, ID_SHIFT = 4, 7, 9
TYPE_MASK, COLOR_MASK, STATE_MASK = 15, 7, 3

EMPTY_CELL = EMPTY
WALL_CELL = WALL | GREY << COLOR_SHIFT

MAX_OBJECTS = 62
"""Objects (doors included) in one world: ids fit six bits of a cell."""

MAX_SIDE = 31
"""Cells along a side of the largest grid: a set of cells has a word of 32 bits per column, and minigrid has no grid
larger than 22 (3 x 3 rooms of size 8), BK-RL none larger than 30."""


def pack(type, color=0, state=0, id=-1):
    """One cell as an integer; works on ints and arrays. `id` is an object's index, -1 for none."""
    return type | color << COLOR_SHIFT | state << STATE_SHIFT | (id + 1) << ID_SHIFT


def type_of(cell):
    """The MiniGrid type id of a packed cell."""
    return cell & TYPE_MASK


def color_of(cell):
    """The MiniGrid colour id of a packed cell."""
    return cell >> COLOR_SHIFT & COLOR_MASK


def state_of(cell):
    """The MiniGrid state of a packed cell: 0 open, 1 closed, 2 locked for doors, else 0."""
    return cell >> STATE_SHIFT & STATE_MASK


def id_of(cell):
    """The object id of a packed cell, -1 for none."""
    return (cell >> ID_SHIFT) - 1


@struct.dataclass
class Params:
    """Parameters that may vary inside one compiled program."""

    max_steps: jax.Array
    """int32 `[]`: the steps after which an episode is truncated; 0 means the level's own rule,
    `room_size**2 * rows * columns * navigations`."""
    reward_decay: jax.Array
    """float32 `[]`: the reward of a success is `1 - decay * steps / max_steps`. Rounded to the nearest thousandth."""
    task_weights: jax.Array
    """float32 `[tasks]`: the unnormalised probability of each task of `env.task_names` for an episode."""


@struct.dataclass
class State:
    """One episode. `W x H` is the grid, `O` the number of objects, doors included; sets of objects are `S` words of 32
    bits (see `verify.members`). Cells are numbered `x * H + y`."""

    grid: jax.Array
    """int16 `[W, H]`, packed cells."""
    object: jax.Array
    """int16 `[O]`, the type, colour and id of each object, packed; 0 for an object left out."""
    cell: jax.Array
    """int16 `[O]`, where each object lies; -1 if carried, hidden in a box, destroyed or left out."""
    content: jax.Array
    """int16 `[O]`, the packed object inside each box, 0 for nothing."""
    tracked: jax.Array
    """int16 `[O]`, the position of each object according to the verifier: `cell` as of the last drop action."""
    carrying: jax.Array
    """int16 `[]`, the packed object in the agent's hands, 0 for nothing."""
    position: jax.Array
    """int32 `[2]`, the agent's x and y."""
    direction: jax.Array
    """int32 `[]`, 0 right, 1 down, 2 left, 3 up."""
    step_count: jax.Array
    """int32 `[]`."""
    max_steps: jax.Array
    """int32 `[]`."""
    mission: Mission
    mission_caption: jax.Array
    """int16 `[MISSION_LENGTH]`, the mission in words."""
    mover: jax.Array
    """uint32 `[4, S]`, per clause, the set of objects that match its first descriptor."""
    fixed: jax.Array
    """uint32 `[4, S]`, the same for the second descriptor of `put next`."""
    held: jax.Array
    """int8 `[4]`, per clause, the object id in hand when the clause was last checked, -1 for none."""
    met: jax.Array
    """bool `[4]`, clauses that have succeeded."""
    matched: jax.Array
    """bool `[4]`, clauses whose condition held when last checked, as a `done` action claims. Only used with
    `done_actions`."""
    task: jax.Array
    """int32 `[]`, index into `env.task_names`."""
