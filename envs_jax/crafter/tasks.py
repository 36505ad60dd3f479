"""Single tasks: sequences of events, rewarded once, with the last one (ELLM, 2302.06692; BK-RL, 2407.03964)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax.checks import nearest
from envs_jax.crafter import constants as c
from envs_jax.crafter.state import cell_of, kind_of, xy


EVENTS = (*c.ACHIEVEMENTS, "sleep", "plant_row", "workshop", "sapling_with_pickaxe", "never")
"""Parts of a task: an achievement counted in this step; falling asleep; a plant placed beside another one; a
table beside another one; a sapling collected by who has a wooden pickaxe."""


@dataclass(frozen=True)
class Task:
    """A task: events in their order."""

    name: str
    events: tuple[str, ...]
    step_reward: float = 0.0
    """Reward of every step."""


_CUSTOM = (
    Task("plant row", ("plant_row",)),
    Task("make workshop", ("workshop",)),
    Task("chop grass with wood pickaxe", ("sapling_with_pickaxe",)),
    Task("survival", ("never",), 0.05),
    Task("vegetarianism", ("collect_drink", "collect_sapling")),
    Task("deforestation", ("collect_wood",) * 5),
    Task("work and sleep", ("collect_wood", "sleep", "place_table")),
    Task("gardening", ("collect_sapling", "collect_wood", "place_plant")),
    Task("wilderness survival", ("sleep", "collect_sapling", "defeat_zombie")),
)
_PHRASES = {
    **{f"mine {x}": f"collect_{x}" for x in ("stone", "coal", "iron", "diamond")},
    "chop tree": "collect_wood",
    "chop grass": "collect_sapling",
    "drink water": "collect_drink",
    "eat cow": "eat_cow",
    "attack cow": "eat_cow",
    "eat plant": "eat_plant",
    "attack zombie": "defeat_zombie",
    "attack skeleton": "defeat_skeleton",
    "sleep": "sleep",
    "place crafting table": "place_table",
    "make crafting table": "place_table",
    **{f"place {x}": f"place_{x}" for x in ("stone", "furnace", "plant")},
    **{f"make {x} {tool}": f"make_{x}_{tool}" for x in ("wood", "stone", "iron") for tool in ("pickaxe", "sword")},
}
"""ELLM's goals, and the events that reach them."""
TASKS = (
    *(Task(name, (name,)) for name in c.ACHIEVEMENTS),
    *(Task(phrase, (event,)) for phrase, event in _PHRASES.items()),
    *_CUSTOM,
)
"""Every task: the achievements, ELLM's goals, and its longer tasks, in which events must happen in their order."""

_LONGEST = max(len(task.events) for task in TASKS)
_SEQUENCES = np.array(
    [[EVENTS.index(e) for e in task.events] + [len(EVENTS) - 1] * (_LONGEST - len(task.events)) for task in TASKS],
    np.int32,
)
_LENGTHS = np.array([len(task.events) for task in TASKS], np.int32)
_STEP_REWARDS = np.array([task.step_reward for task in TASKS], np.float32)


def task_index(name: str) -> int:
    """The number of a task. **Raises** `KeyError` naming the nearest tasks."""
    names = [task.name for task in TASKS]
    if name not in names:
        raise KeyError(f"Crafter has no task {name!r}{nearest(name, names)} (`envs_jax.crafter.TASKS` lists all)")
    return names.index(name)


def events_of(
    counted: Bool[Array, "22"],
    slept: Bool[Array, ""],
    inventory: Int[Array, "16"],
    target: Int[Array, ""],
    material: UInt8[Array, "4096"],
    slots: UInt32[Array, " S"],
) -> Bool[Array, " E"]:
    """Flags of the `EVENTS` that happened.

    **Arguments:** `counted`, the achievements whose count grew; `slept`, whether the player fell asleep or slept on;
    `target`, the cell that the action aimed at; `material`, `slots`, after the player's turn.
    """
    x, y = xy(target)
    # the published test skips only the offsets with equal parts, so two diagonal neighbours count too
    offsets = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx != dy]
    cells = jnp.stack([(x + dx) * c.AREA + y + dy for dx, dy in offsets])
    inside = jnp.stack([(x + dx >= 0) & (x + dx < c.AREA) & (y + dy >= 0) & (y + dy < c.AREA) for dx, dy in offsets])
    plants = kind_of(slots) == c.PLANT
    beside_plant = jnp.any(jnp.any(cell_of(slots)[:, None] == cells, axis=1, where=inside) & plants)
    beside_table = jnp.any((material[jnp.clip(cells, 0, c.CELLS - 1)] == c.TABLE) & inside)
    placed = {name: counted[c.ACHIEVEMENTS.index(name)] for name in ("place_plant", "place_table", "collect_sapling")}
    custom = (
        slept,
        placed["place_plant"] & beside_plant,
        placed["place_table"] & beside_table,
        placed["collect_sapling"] & (inventory[c.ITEMS.index("wood_pickaxe")] > 0),
        jnp.bool(False),
    )
    return jnp.concatenate([counted, jnp.stack(custom)])


def advance(
    task: Int[Array, ""], progress: Int[Array, ""], events: Bool[Array, " E"]
) -> tuple[Int[Array, ""], Bool[Array, ""], Float[Array, ""]]:
    """The progress after a step, whether the task was finished by it, and the task's reward.

    **Arguments:** `task`, an index into `TASKS`, or -1 for none, which makes no progress; `progress`, events that have
    happened; `events`, of this step."""
    length = jnp.where(task >= 0, jnp.asarray(_LENGTHS)[task], 0)
    event = jnp.asarray(_SEQUENCES)[task, jnp.minimum(progress, _LONGEST - 1)]
    further = progress + (events[event] & (progress < length))
    done = (further == length) & (progress < length)
    step_reward = jnp.where(task >= 0, jnp.asarray(_STEP_REWARDS)[task], 0.0)
    return further, done, done.astype(jnp.float32) + step_reward
