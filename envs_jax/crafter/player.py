"""The player's turn: what an action does, needs, health, waking (crafter's `Player.update`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import NOTHING
from envs_jax.crafter.state import Params, State, cell_of, counter_of, health_of, kind_of, word, xy


def _by_material(default: int, **values: int) -> np.ndarray:
    """int32 `[13]`, a number for every material."""
    table = np.full(len(c.MATERIALS) + 1, default, np.int32)
    for name, value in values.items():
        table[c.MATERIALS.index(name) + 1] = value
    return table


def _item(name: str) -> int:
    return c.ITEMS.index(name)


_COLLECTED = {"tree": "wood", "water": "drink", "grass": "sapling"} | {
    x: x for x in ("stone", "coal", "iron", "diamond")
}
RECEIVES = _by_material(-1, **{material: _item(item) for material, item in _COLLECTED.items()})
"""The item that collecting a material gives."""
NEEDS = _by_material(
    -1,
    stone=_item("wood_pickaxe"),
    coal=_item("wood_pickaxe"),
    iron=_item("stone_pickaxe"),
    diamond=_item("iron_pickaxe"),
)
"""The item without which a material cannot be collected."""
LEAVES = _by_material(0, tree=c.GRASS, water=c.WATER, grass=c.GRASS) + _by_material(
    0, stone=c.PATH, coal=c.PATH, iron=c.PATH, diamond=c.PATH
)
"""What collecting a material leaves."""
COLLECTS = _by_material(
    -1, **{material: c.ACHIEVEMENTS.index(f"collect_{item}") for material, item in _COLLECTED.items()}
)
"""The achievement of collecting a material."""
SAPLING_CHANCE = 0.1
"""Probability that collecting grass gives a sapling."""

PLACE_TABLE, PLACE_PLANT = c.ACTIONS.index("place_table"), c.ACTIONS.index("place_plant")
_COSTS: dict[str, dict[str, int]] = {
    "place_stone": {"stone": 1},
    "place_table": {},  # a parameter
    "place_furnace": {"stone": 4},
    "place_plant": {"sapling": 1},
    **{f"make_wood_{tool}": {"wood": 1} for tool in ("pickaxe", "sword")},
    **{f"make_stone_{tool}": {"wood": 1, "stone": 1} for tool in ("pickaxe", "sword")},
    **{f"make_iron_{tool}": {"wood": 1, "coal": 1, "iron": 1} for tool in ("pickaxe", "sword")},
}
COSTS = np.array(
    [[_COSTS.get(name, {}).get(item, 0) for item in c.ITEMS] for name in (*c.ACTIONS, "nothing")], np.int32
)
"""int32 `[18, 16]`, what a command uses up; the wood of a table is a parameter."""
GIVES = np.array(
    [[name == f"make_{item}" for item in c.ITEMS] for name in (*c.ACTIONS, "nothing")],
    np.int32,
)
"""int32 `[18, 16]`, the tool that a command makes."""
CREDITS = np.array([c.ACHIEVEMENTS.index(name) if name in _COSTS else -1 for name in (*c.ACTIONS, "nothing")], np.int32)
"""int32 `[18]`, the achievement of placing or making something."""
PLACES = np.array([0] * c.PLACE + [c.STONE, c.TABLE, c.FURNACE, 0] + [0] * 7, np.int32)
"""int32 `[18]`, the material that a command places."""
_SOLID = 1 << c.GRASS | 1 << c.SAND | 1 << c.PATH
WHERE = np.array(
    [0] * c.PLACE + [_SOLID | 1 << c.WATER | 1 << c.LAVA, _SOLID, _SOLID, 1 << c.GRASS] + [0] * 7, np.uint32
)
"""uint32 `[18]`, the materials that a command places something on, as bits."""
NEEDS_FURNACE = np.array(["make_iron" in name for name in (*c.ACTIONS, "nothing")])

_OWN = np.array([_item(f"{of}_sword") for of in ("wood", "stone", "iron")], np.int32)
SWORDS = np.array([2, 3, 5], np.int32)
"""Damage with a sword of wood, stone, iron."""


class Turn(NamedTuple):
    """What came of the player's turn."""

    state: State
    command: Int[Array, ""]
    """The command that was carried out: `sleep` for who is asleep."""
    success: Bool[Array, ""]
    """Whether the action had its effect (ELLM's `eval_success`); false for another action than `sleep` of who is
    asleep."""
    target: Int[Array, ""]
    """The cell that the action aimed at, or moved to; the nearest one inside the world."""
    target_material: Int[Array, ""]
    """The material that the action aimed at; 0 outside the world."""
    target_kind: Int[Array, ""]
    """The kind of the object that the action aimed at; 0 for none."""


def at(cell: Int[Array, "2"]) -> Int[Array, ""]:
    """The number of a cell (x, y) inside the world."""
    return cell[0] * c.AREA + cell[1]


def chunk_of(cell: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """The chunk of a cell by number."""
    x, y = xy(cell)
    return (x * 43 >> 9) * c.CHUNKS + (y * 43 >> 9)  # x // 12 for x < 64, without a division


def chunk_bits(chunk: Int[Array, "*n"], where: Bool[Array, "*n"]) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """A chunk as bits of the two words of `State.touched`; no bit where `where` is false."""
    bit = jnp.uint32(1) << (chunk % 32).astype(jnp.uint32)
    low = where & (chunk < 32)
    return jnp.where(low, bit, 0).astype(jnp.uint32), jnp.where(where & ~low, bit, 0).astype(jnp.uint32)


def take_turn(
    state: State,
    command: Int[Array, ""],
    materials: UInt32[Array, ""],
    kinds: UInt32[Array, ""],
    chance: Float[Array, ""],
    params: Params,
) -> Turn:
    """The player acts, grows hungry, thirsty and tired, heals or suffers, and wakes up if hurt.

    **Arguments:** `command`, of `constants.ACTIONS` or `NOTHING`; `materials`, `kinds`, what a `do` may be done to, as
    bits; `chance`, uniform in [0, 1), whether grass gives a sapling.
    """
    inventory, achievements = state.inventory, state.achievements
    asleep = state.sleeping & (inventory[c.ENERGY] < c.MOST)
    woke = state.sleeping & ~asleep
    chosen, command = command, jnp.where(asleep, c.SLEEP, command)
    moves = (command >= c.LEFT) & (command <= c.DOWN)
    directions = jnp.asarray(c.DIRECTIONS, jnp.int32)
    facing = jnp.where(moves, command - c.LEFT, state.facing)
    target = state.position + directions[facing]
    inside = jnp.all((target >= 0) & (target < c.AREA))
    cell = at(jnp.clip(target, 0, c.AREA - 1))
    material = jnp.where(inside, state.material[cell].astype(jnp.int32), c.OUTSIDE)
    targeted = (cell_of(state.slots) == cell) & (kind_of(state.slots) > 0) & inside
    slot = jnp.sum(jnp.where(targeted, jnp.arange(1, state.slots.shape[0] + 1), 0)) - 1  # at most one object per cell
    here = jnp.where(slot >= 0, state.slots[slot], 0)
    kind = kind_of(here)
    empty = kind == 0

    # move
    enterable = _has(sum(1 << m for m in (*c.WALKABLE, c.LAVA)), material)
    moved = moves & empty & enterable
    position = jnp.where(moved, target, state.position)
    burnt = moves & (state.material[at(position)] == c.LAVA)

    # do something to an object
    does = command == c.DO
    attacked = does & ~empty & _has(kinds, kind)
    swords = jnp.max(jnp.where(inventory[_OWN] > 0, SWORDS, 0))
    health = jnp.maximum(0, health_of(here) - jnp.maximum(params.damage, swords))
    mob = (kind == c.ZOMBIE) | (kind == c.SKELETON) | (kind == c.COW)
    hit = attacked & mob
    killed = hit & (health == 0)
    eaten = attacked & (kind == c.PLANT) & (counter_of(here) > c.RIPE)
    struck = jnp.where(eaten, word(cell, kind, health_of(here), 0), word(cell, kind, health, counter_of(here)))
    killed_cow = killed & (kind == c.COW)

    # do something to a material
    # what stands on a material hides it from the package's `do`, but not from an action for the material alone
    worked = does & (empty | (kinds == 0)) & _has(materials, material)
    need, got = jnp.asarray(NEEDS)[material], jnp.asarray(RECEIVES)[material]
    collectable = worked & (got >= 0) & ((need < 0) | (inventory[need] > 0))
    collected = collectable & ((material != c.GRASS) | (chance <= SAPLING_CHANCE))
    kept = collected & (inventory[got] < c.MOST)  # what is held nine times cannot grow
    collected = jnp.where(params.counts_full, collected, kept)
    drank = worked & (material == c.WATER)

    # place or make something
    cost = jnp.asarray(COSTS)[command]
    cost = cost.at[_item("wood")].add(jnp.where(command == PLACE_TABLE, params.table_wood, 0))
    affordable = jnp.all(inventory >= cost)
    placed = (
        (command >= c.PLACE) & (command < c.MAKE) & empty & _has(jnp.asarray(WHERE)[command], material) & affordable
    )
    table, furnace = _nearby(state.material, position)
    made = (command >= c.MAKE) & (command < NOTHING) & affordable & table
    made &= furnace | ~jnp.asarray(NEEDS_FURNACE)[command]
    plants = placed & (command == PLACE_PLANT)
    sprout = word(cell, c.PLANT, c.HEALTH_OF[c.PLANT], 0)
    most = state.slots.shape[0]
    places = jnp.stack([jnp.where(hit | eaten, slot, most), jnp.where(plants, state.used, most)])
    slots = state.slots.at[places].set(jnp.stack([struck, sprout]), mode="drop")

    becomes = jnp.where(collectable, jnp.asarray(LEAVES)[material], jnp.asarray(PLACES)[command])
    changes = (collectable | (placed & ~plants)) & (becomes != material)
    written = state.material.at[jnp.where(changes, cell, c.CELLS)].set(becomes.astype(jnp.uint8), mode="drop")

    # counts
    spent = jnp.where(placed | made, cost, 0)
    gained = jnp.where(made, jnp.asarray(GIVES)[command], 0)
    gained += (jnp.arange(len(c.ITEMS)) == got) & collected
    food = jnp.where(eaten, 4, 0) + jnp.where(killed_cow, 6, 0)
    inventory = inventory - spent + gained + _unit(c.FOOD, len(c.ITEMS)) * food
    inventory = jnp.where((jnp.arange(len(c.ITEMS)) == c.HEALTH) & burnt, 0, inventory)
    credits = jnp.where(collected, jnp.asarray(COLLECTS)[material], -1)
    credits = jnp.where(placed | made, jnp.asarray(CREDITS)[command], credits)
    for happened, name in (
        (killed & (kind == c.ZOMBIE), "defeat_zombie"),
        (killed & (kind == c.SKELETON), "defeat_skeleton"),
        (killed_cow, "eat_cow"),
        (eaten, "eat_plant"),
    ):
        credits = jnp.where(happened, c.ACHIEVEMENTS.index(name), credits)
    numbers = jnp.arange(len(c.ACHIEVEMENTS))
    achievements = achievements + (numbers == credits)
    achievements = achievements + ((numbers == c.ACHIEVEMENTS.index("wake_up")) & woke)
    tired = (command == c.SLEEP) & (state.inventory[c.ENERGY] < c.MOST)
    sleeping = asleep | tired

    low, high = chunk_bits(chunk_of(jnp.stack([at(position), cell])), jnp.stack([moved, plants]))
    touched = state.touched | jnp.stack([low[0] | low[1], high[0] | high[1]])

    state = state.replace(
        material=written,
        slots=slots,
        used=state.used + (plants & (state.used < most)),
        lost=state.lost + (plants & (state.used >= most)),
        position=position,
        facing=facing,
        inventory=inventory,
        achievements=achievements,
        hunger=jnp.where(killed_cow, 0, state.hunger),
        thirst=jnp.where(drank, 0, state.thirst),
        sleeping=sleeping,
        touched=touched,
        room=recounted(state.room, cell[None], material, becomes, changes[None]),
    )
    success = (command == c.NOOP) | moved | (tired & (chosen == c.SLEEP)) | hit | eaten | kept | placed | made
    return Turn(_live(state), command, success, cell, material, kind)


def _nearby(material: UInt8[Array, "4096"], position: Int[Array, "2"]) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether a table and a furnace are among the 3 x 3 cells around the player.

    In the first column and the first row nothing is: the package cuts its map at index -1 there, which is empty."""
    x, y = (position[axis] + np.array([-1, 0, 1]) for axis in range(2))
    inside = (x < c.AREA)[:, None] & (y < c.AREA)[None]
    around = material[jnp.clip(x, 0, c.AREA - 1)[:, None] * c.AREA + jnp.clip(y, 0, c.AREA - 1)[None]]
    inside &= jnp.all(position > 0)
    return jnp.any(inside & (around == c.TABLE)), jnp.any(inside & (around == c.FURNACE))


def recounted(
    room: UInt8[Array, "72"], cells: Int[Array, " n"], before: Any, after: Any, changes: Bool[Array, " n"]
) -> UInt8[Array, "72"]:
    """The cells of grass and path per chunk after some cells changed from one material to another, int or `[n]`."""
    chunk, half = chunk_of(jnp.maximum(cells, 0)), c.CHUNKS * c.CHUNKS
    for k, material in enumerate((c.GRASS, c.PATH)):
        change = (jnp.asarray(after) == material).astype(jnp.int32) - (jnp.asarray(before) == material)
        change = jnp.where(changes, change, 0).astype(jnp.uint8)  # modulo 256
        room = room.at[k * half + chunk].add(change)
    return room


def _live(state: State) -> State:
    """Needs, healing and harm, the limits of every count, and waking up if hurt; in the package's order."""
    inventory, asleep = state.inventory, state.sleeping
    hunger, thirst = (x + jnp.where(asleep, 1, 2) for x in (state.hunger, state.thirst))
    fatigue = jnp.where(asleep, jnp.minimum(state.fatigue - 1, 0), state.fatigue + 1)
    hungry, thirsty, rested, tired = hunger > 50, thirst > 40, fatigue < -10, fatigue > 30
    food = inventory[c.FOOD] - hungry
    drink = inventory[c.DRINK] - thirsty
    energy = inventory[c.ENERGY] + rested - tired
    well = (food > 0) & (drink > 0) & ((energy > 0) | asleep)
    recover = state.recover + jnp.where(well, jnp.where(asleep, 4, 2), jnp.where(asleep, -1, -2))
    healed, harmed = recover > 50, recover < -30
    health = inventory[c.HEALTH] + healed
    health = jnp.where(harmed, jnp.maximum(0, health - 1), health)
    inventory = jnp.concatenate([jnp.stack([health, food, drink, energy]), inventory[c.VITALS :]])
    inventory = jnp.clip(inventory, 0, c.MOST)
    hurt = inventory[c.HEALTH] < state.last_health
    return state.replace(
        inventory=inventory,
        hunger=jnp.where(hungry, 0, hunger),
        thirst=jnp.where(thirsty, 0, thirst),
        fatigue=jnp.where(rested | tired, 0, fatigue),
        recover=jnp.where(healed | harmed, 0, recover),
        sleeping=asleep & ~hurt,
        last_health=inventory[c.HEALTH],
    )


def _has(mask, number) -> Bool[Array, ""]:
    return (jnp.uint32(mask) >> number.astype(jnp.uint32)) & 1 > 0


def _unit(i: int, n: int) -> np.ndarray:
    return np.eye(n, dtype=np.int32)[i]
