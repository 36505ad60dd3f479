"""The player's turn: what an action does, needs, health, waking (crafter's `Player.update`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax.crafter import constants as c, recipes
from envs_jax.crafter.actions import NOTHING
from envs_jax.crafter.chunks import cell_index, chunk_bits, chunk_of, recounted
from envs_jax.crafter.state import Params, State, cell_of, counter_of, health_of, kind_of, word


_ENTERABLE = sum(1 << m for m in (*c.WALKABLE, c.LAVA))
"""Materials that the player may enter, as bits; lava is the last thing that it enters."""


class Turn(NamedTuple):
    """The result of the player's turn."""

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


class _Aim(NamedTuple):
    """The cell that an action aims at."""

    target: Int[Array, "2"]
    """Its (x, y), perhaps outside the world."""
    cell: Int[Array, ""]
    """Its number; the nearest one inside the world."""
    material: Int[Array, ""]
    slot: Int[Array, ""]
    """The slot of the object there; -1 for none."""
    word: UInt32[Array, ""]
    """The word of the object there."""
    kind: Int[Array, ""]


def _aim(state: State, facing: Int[Array, ""]) -> _Aim:
    target = state.position + jnp.asarray(c.DIRECTIONS, jnp.int32)[facing]
    inside = jnp.all((target >= 0) & (target < c.AREA))
    cell = cell_index(jnp.clip(target, 0, c.AREA - 1))
    material = jnp.where(inside, state.material[cell].astype(jnp.int32), c.OUTSIDE)
    matches = (cell_of(state.slots) == cell) & (kind_of(state.slots) > 0) & inside
    number = jnp.arange(1, state.slots.shape[0] + 1, dtype=jnp.int32)
    slot = jnp.sum(jnp.where(matches, number, 0), dtype=jnp.int32) - 1  # at most one object is in a cell
    object_word = jnp.where(slot >= 0, state.slots[slot], 0)
    return _Aim(target, cell, material, slot, object_word, kind_of(object_word))


class _Strike(NamedTuple):
    """The effect of a `do` on an object."""

    hit: Bool[Array, ""]
    """Whether a mob was hit."""
    killed: Bool[Array, ""]
    eaten: Bool[Array, ""]
    """Whether a ripe plant was eaten."""
    word: UInt32[Array, ""]
    """The object afterwards."""


def _strike(aim: _Aim, interacts: Bool[Array, ""], kinds: UInt32[Array, ""], inventory: Any, params: Params) -> _Strike:
    attacked = interacts & (aim.kind > 0) & _has_bit(kinds, aim.kind)
    sword = jnp.max(jnp.where(inventory[recipes.SWORD_ITEMS] > 0, recipes.SWORDS, 0))
    health = jnp.maximum(0, health_of(aim.word) - jnp.maximum(params.damage, sword))
    hit = attacked & ((aim.kind == c.ZOMBIE) | (aim.kind == c.SKELETON) | (aim.kind == c.COW))
    eaten = attacked & (aim.kind == c.PLANT) & (counter_of(aim.word) > c.RIPE)
    after = jnp.where(
        eaten,
        word(aim.cell, aim.kind, health_of(aim.word), 0),
        word(aim.cell, aim.kind, health, counter_of(aim.word)),
    )
    return _Strike(hit, hit & (health == 0), eaten, after)


class _Collection(NamedTuple):
    """The effect of a `do` on a material."""

    removed: Bool[Array, ""]
    """Whether the material was worked, and leaves another one."""
    counted: Bool[Array, ""]
    """Whether the item counts as collected."""
    gained: Bool[Array, ""]
    """Whether there are more of the item now."""
    item: Int[Array, ""]
    """-1 for a material that gives nothing."""
    drank: Bool[Array, ""]


def _collect(
    aim: _Aim,
    interacts: Bool[Array, ""],
    materials: UInt32[Array, ""],
    kinds: UInt32[Array, ""],
    chance: Float[Array, ""],
    inventory: Int[Array, "16"],
    params: Params,
) -> _Collection:
    # what stands on a material hides it from the package's `do`, but not from an action for the material alone
    worked = interacts & ((aim.kind == 0) | (kinds == 0)) & _has_bit(materials, aim.material)
    need, item = jnp.asarray(recipes.NEEDS)[aim.material], jnp.asarray(recipes.RECEIVES)[aim.material]
    removed = worked & (item >= 0) & ((need < 0) | (inventory[need] > 0))
    collected = removed & ((aim.material != c.GRASS) | (chance <= recipes.SAPLING_CHANCE))
    gained = collected & (inventory[item] < c.MAX_COUNT)
    counted = jnp.where(params.counts_full, collected, gained)
    return _Collection(removed, counted, gained, item, worked & (aim.material == c.WATER))


class _Built(NamedTuple):
    """The effect of placing or making."""

    placed: Bool[Array, ""]
    crafted: Bool[Array, ""]
    plants: Bool[Array, ""]
    """Whether a plant was placed."""
    cost: Int[Array, "16"]


def _build(state: State, aim: _Aim, command: Int[Array, ""], params: Params) -> _Built:
    wood = np.eye(len(c.ITEMS), dtype=np.int32)[recipes.item("wood")]
    cost = jnp.asarray(recipes.COSTS)[command]
    cost = cost + wood * jnp.where(command == recipes.PLACE_TABLE, params.table_wood, 0)
    affordable = jnp.all(state.inventory >= cost)
    fits = (aim.kind == 0) & _has_bit(jnp.asarray(recipes.PLACEABLE_ON)[command], aim.material)
    placed = (command >= c.PLACE) & (command < c.MAKE) & fits & affordable
    table, furnace = _nearby(state.material, state.position)
    crafted = (command >= c.MAKE) & (command < NOTHING) & affordable & table
    crafted &= furnace | ~jnp.asarray(recipes.NEEDS_FURNACE)[command]
    return _Built(placed, crafted, placed & (command == recipes.PLACE_PLANT), cost)


def _counted(
    achievements: Int[Array, "22"], credit: Int[Array, ""], strike: _Strike, kind: Int[Array, ""], woke: Bool[Array, ""]
) -> Int[Array, "22"]:
    """The achievements after a turn; `credit`, what was collected, placed or made, -1 for none."""
    for happened, name in (
        (strike.killed & (kind == c.ZOMBIE), "defeat_zombie"),
        (strike.killed & (kind == c.SKELETON), "defeat_skeleton"),
        (strike.killed & (kind == c.COW), "eat_cow"),
        (strike.eaten, "eat_plant"),
    ):
        credit = jnp.where(happened, c.ACHIEVEMENTS.index(name), credit)
    number = np.arange(len(c.ACHIEVEMENTS), dtype=np.int32)
    return achievements + (number == credit) + ((number == c.ACHIEVEMENTS.index("wake_up")) & woke)


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
    inventory = state.inventory
    asleep = state.sleeping & (inventory[c.ENERGY] < c.MAX_COUNT)
    woke = state.sleeping & ~asleep
    chosen, command = command, jnp.where(asleep, c.SLEEP, command)
    tired = (command == c.SLEEP) & (inventory[c.ENERGY] < c.MAX_COUNT)
    moves, interacts = (command >= c.LEFT) & (command <= c.DOWN), command == c.DO
    facing = jnp.where(moves, command - c.LEFT, state.facing)
    aim = _aim(state, facing)
    moved = moves & (aim.kind == 0) & _has_bit(_ENTERABLE, aim.material)
    position = jnp.where(moved, aim.target, state.position)
    burnt = moves & (state.material[cell_index(position)] == c.LAVA)
    strike = _strike(aim, interacts, kinds, inventory, params)
    collection = _collect(aim, interacts, materials, kinds, chance, inventory, params)
    built = _build(state, aim, command, params)
    killed_cow = strike.killed & (aim.kind == c.COW)

    capacity = state.slots.shape[0]
    sprout = word(aim.cell, c.PLANT, c.HEALTH_OF[c.PLANT], 0)
    struck = strike.hit | strike.eaten
    places = jnp.stack([jnp.where(struck, aim.slot, capacity), jnp.where(built.plants, state.used, capacity)])
    slots = state.slots.at[places].set(jnp.stack([strike.word, sprout]), mode="drop")
    leaves, lays = jnp.asarray(recipes.LEAVES)[aim.material], jnp.asarray(recipes.PLACES)[command]
    becomes = jnp.where(collection.removed, leaves, lays)
    changes = (collection.removed | (built.placed & ~built.plants)) & (becomes != aim.material)
    written = jnp.where(changes, aim.cell, c.CELLS)
    low, high = chunk_bits(chunk_of(jnp.stack([cell_index(position), aim.cell])), jnp.stack([moved, built.plants]))

    builds = built.placed | built.crafted
    item = np.arange(len(c.ITEMS), dtype=np.int32)
    gained = jnp.where(built.crafted, jnp.asarray(recipes.GIVES)[command], 0) + (
        (item == collection.item) & collection.counted
    )
    food = jnp.where(strike.eaten, 4, 0) + jnp.where(killed_cow, 6, 0)
    inventory = inventory - jnp.where(builds, built.cost, 0) + gained + jnp.where(item == c.FOOD, food, 0)
    credit = jnp.where(collection.counted, jnp.asarray(recipes.COLLECTS)[aim.material], -1)
    credit = jnp.where(builds, jnp.asarray(recipes.CREDITS)[command], credit)
    state = state.replace(
        material=state.material.at[written].set(becomes.astype(jnp.uint8), mode="drop"),
        slots=slots,
        used=state.used + (built.plants & (state.used < capacity)),
        lost=state.lost + (built.plants & (state.used >= capacity)),
        position=position,
        facing=facing,
        inventory=jnp.where((item == c.HEALTH) & burnt, 0, inventory),
        achievements=_counted(state.achievements, credit, strike, aim.kind, woke),
        hunger=jnp.where(killed_cow, 0, state.hunger),
        thirst=jnp.where(collection.drank, 0, state.thirst),
        sleeping=asleep | tired,
        touched=state.touched | jnp.stack([low[0] | low[1], high[0] | high[1]]),
        room=recounted(state.room, aim.cell[None], aim.material, becomes, changes[None]),
    )
    success = (command == c.NOOP) | moved | (tired & (chosen == c.SLEEP)) | struck | collection.gained | builds
    return Turn(_live(state), command, success, aim.cell, aim.material, aim.kind)


def _nearby(material: UInt8[Array, "4096"], position: Int[Array, "2"]) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Return whether a table and a furnace are among the 3 x 3 cells around the player.

    In the first column and the first row nothing is: the package cuts its map at index -1 there, which is empty."""
    x, y = (position[axis] + np.array([-1, 0, 1]) for axis in range(2))
    inside = (x < c.AREA)[:, None] & (y < c.AREA)[None]
    around = material[jnp.clip(x, 0, c.AREA - 1)[:, None] * c.AREA + jnp.clip(y, 0, c.AREA - 1)[None]]
    inside &= jnp.all(position > 0)
    return jnp.any(inside & (around == c.TABLE)), jnp.any(inside & (around == c.FURNACE))


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
    inventory = jnp.clip(inventory, 0, c.MAX_COUNT)
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


def _has_bit(mask, number) -> Bool[Array, ""]:
    return (jnp.uint32(mask) >> number.astype(jnp.uint32)) & 1 > 0
