"""The structs of Crafter: the state of one environment, its parameters, and the words that hold its objects."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt, UInt8, UInt32

from envs_jax.crafter import constants as c


KIND_BIT, HEALTH_BIT, COUNTER_BIT = 12, 15, 18
"""First bits of the parts of an object's word: kind, health, counter; its cell has bits 0 to 11."""


@struct.dataclass
class Params:
    """Numbers of an environment that may differ between rows of one compiled program. Defaults are the package's."""

    length: Int[Array, ""] | int = 10_000
    """Steps after which an episode is truncated."""
    damage: Int[Array, ""] | int = 1
    """Damage of an attack without a sword; swords do at least as much."""
    table_wood: Int[Array, ""] | int = 2
    """Wood that a table takes."""
    health_reward: Float[Array, ""] | float = 0.1
    """Reward per point of health gained, and minus that per point lost."""
    unlock_reward: Float[Array, ""] | float = 1.0
    """Reward of a step that unlocks at least one achievement."""
    counts_full: Bool[Array, ""] | bool = True
    """Whether collecting an item that is held nine times already counts as an achievement; not so for ELLM."""
    dying: Bool[Array, ""] | bool = True
    """Whether an episode ends at health 0."""
    task: Int[Array, ""] | int = -1
    """The task that is rewarded instead of achievements, an index into `envs_jax.crafter.tasks.TASKS`; -1: none. Only
    environments made with a `task` follow tasks; in others a task is refused, and inside jit the reward is nan."""
    end_on_success: Bool[Array, ""] | bool = False
    """Whether an episode ends when its task is done."""


@struct.dataclass
class State:
    """One world. `S` slots hold its objects in the order in which they were created."""

    material: UInt8[Array, "4096"]
    """The material of every cell."""
    slots: UInt32[Array, " S"]
    """The objects except for the player, see `word`; 0 for an empty slot."""
    used: Int[Array, ""]
    """Slots from this one on are empty; before it, removed objects leave gaps."""
    position: Int[Array, "2"]
    """The player's cell (x, y)."""
    facing: Int[Array, ""]
    """The direction that the player faces, an index into `constants.DIRECTIONS`."""
    inventory: Int[Array, "16"]
    """Counts in the order of `constants.ITEMS`."""
    achievements: Int[Array, "22"]
    """Counts in the order of `constants.ACHIEVEMENTS`."""
    hunger: Int[Array, ""]
    """Half points of hunger; the package counts in points of 1, and 0.5 asleep."""
    thirst: Int[Array, ""]
    """Half points of thirst."""
    fatigue: Int[Array, ""]
    recover: Int[Array, ""]
    """Half points of recovery."""
    sleeping: Bool[Array, ""]
    last_health: Int[Array, ""]
    """Health after the player's last turn, before creatures moved: who is hurt wakes up."""
    touched: UInt32[Array, "2"]
    """Chunks that ever held an object, as bits; only these are balanced."""
    room: UInt8[Array, "72"]
    """Cells of grass per chunk, then cells of path per chunk."""
    step: Int[Array, ""]
    """Steps since the reset."""
    progress: Int[Array, ""]
    """Parts of the task that are done."""
    lost: Int[Array, ""]
    """Objects that found no slot, or no place among those that move; such a world is not exact any more."""
    frames: Any = ()
    """The last images of an observation that stacks them; else `()`."""


def cell_of(word: UInt[Array, "*n"]) -> Int[Array, "*n"]:
    """The cell of an object, int32."""
    return (word & jnp.uint32(c.CELLS - 1)).astype(jnp.int32)


def xy(cell: Int[Array, "*n"]) -> tuple[Int[Array, "*n"], Int[Array, "*n"]]:
    """Column and row of a cell's number."""
    return cell >> 6, cell & (c.AREA - 1)


def distance(a: Int[Array, "*n"], b: Int[Array, "*m"]) -> Int[Array, "*k"]:
    """The L1 distance of two cells, in cells; Crafter knows no other."""
    (x0, y0), (x1, y1) = xy(a), xy(b)
    return jnp.abs(x0 - x1) + jnp.abs(y0 - y1)


def kind_of(word: UInt[Array, "*n"]) -> Int[Array, "*n"]:
    """The kind of an object, int32; 0 for an empty slot."""
    return ((word >> KIND_BIT) & jnp.uint32(7)).astype(jnp.int32)


def health_of(word: UInt[Array, "*n"]) -> Int[Array, "*n"]:
    """Hit points, int32."""
    return ((word >> HEALTH_BIT) & jnp.uint32(7)).astype(jnp.int32)


def counter_of(word: UInt[Array, "*n"]) -> Int[Array, "*n"]:
    """The cooldown of a zombie, the reload of a skeleton, the direction of an arrow, the age of a plant; int32."""
    return (word >> COUNTER_BIT).astype(jnp.int32)


def word(cell: Any, kind: Any, health: Any, counter: Any = 0) -> UInt32[Array, "*n"]:
    """Objects as words of 32 bits."""
    parts = (cell, 0), (kind, KIND_BIT), (health, HEALTH_BIT), (counter, COUNTER_BIT)
    cell, kind, health, counter = (jnp.asarray(x).astype(jnp.uint32) << jnp.uint32(bit) for x, bit in parts)
    return cell | kind | health | counter


def objects(state: State) -> list[dict[str, Any]]:
    """The objects of one world in the order of their creation, on the host: `kind`, `position` (x, y), `health`, and
    `counter`, see `counter_of`."""
    result = []
    for w in np.asarray(state.slots).tolist():
        kind = w >> KIND_BIT & 7
        if kind:
            result.append(
                {
                    "kind": c.KINDS[kind - 1],
                    "position": divmod(w & c.CELLS - 1, c.AREA),
                    "health": w >> HEALTH_BIT & 7,
                    "counter": w >> COUNTER_BIT,
                }
            )
    return result
