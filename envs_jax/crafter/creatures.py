"""The creatures' turns: zombies, skeletons, cows, arrows and plants near the player, one after another.

Crafter lets its objects act in the order of their creation, and what one does changes what the next one can do: it
enters a cell, opens one, shoots. But what an object wants to do depends on itself, the player and the map only. So the
wishes of all near objects are computed together, and a short loop over the objects, for all rows of a batch at once,
decides which wishes come true: it compares each wanted cell with the positions of the others (crafter_speed reference,
3).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs_jax.crafter import constants as c
from envs_jax.crafter.player import chunk_bits, chunk_of, recounted
from envs_jax.crafter.state import cell_of, counter_of, health_of, kind_of, word


NEAR_SLOTS = 32
"""Objects near the player that can act, or stand in the way, in one step; the package had 23 in 40,000 steps."""
ARROWS = 8
"""Arrows that can be shot in one step."""
WORDS = 2
"""Random words of 32 bits per near object."""
OPENED = 2
"""Tables and furnaces that arrows can destroy in one step."""
NOWHERE = -1
"""The cell of an object that was removed."""


class Creatures(NamedTuple):
    """What the creatures' turns read and change, for `B` rows."""

    material: UInt8[Array, "B 4096"]
    slots: UInt32[Array, "B S"]
    used: Int[Array, " B"]
    touched: UInt32[Array, "B 2"]
    room: UInt8[Array, "B 72"]
    damage: Int[Array, " B"]
    """Hit points that the player lost."""
    lost: Int[Array, " B"]
    """Objects for which there was no place."""


class _Wishes(NamedTuple):
    """What each near object will do if it can; `[K, B]`. Cells are -1 where nothing is wanted."""

    first: jax.Array
    """int16, the cell to enter: a step, a skeleton's retreat, an arrow's flight."""
    first_free: jax.Array
    """bool, whether the first cell's material lets the object in."""
    second: jax.Array
    """int16, a skeleton's second choice if the retreat fails: the cell to shoot into, or to enter."""
    second_free: jax.Array
    shoots: jax.Array
    """bool, whether the second choice is a shot."""
    way: jax.Array
    """int8, the direction of the shot."""


def _compacted(slots: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The wanted ones of `slots` `[S, B]` in order, `[K, B]`; the rank of every slot, `[S, B]`, `K` if not wanted."""

    def rank(count, row):
        return count + row, jnp.where(row, count, NEAR_SLOTS)

    count, ranks = jax.lax.scan(rank, jnp.zeros(slots.shape[1], jnp.int32), wanted)
    near = jnp.zeros((NEAR_SLOTS, slots.shape[1]), slots.dtype)
    columns = jnp.broadcast_to(jnp.arange(slots.shape[1]), slots.shape)
    near = near.at[ranks, columns].set(slots, mode="drop", unique_indices=True)
    return near, ranks


def _toward(dx: jax.Array, dy: jax.Array, long_axis: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step along the longer or the shorter axis of an offset, which may be no step at all."""
    along_x = jnp.where(long_axis, jnp.abs(dx) > jnp.abs(dy), jnp.abs(dx) <= jnp.abs(dy))
    return jnp.where(along_x, jnp.sign(dx), 0), jnp.where(along_x, 0, jnp.sign(dy))


def _uniform(bits: jax.Array, low: int, width: int) -> jax.Array:
    """Uniform numbers in [0, 1) from some of the bits of random words."""
    part = (bits >> np.uint32(low)) & np.uint32((1 << width) - 1)
    return part.astype(jnp.float32) * np.float32(2.0**-width)


_STEP_X, _STEP_Y = (np.array(steps, np.int32) for steps in zip(*c.DIRECTIONS))


def _direction(x: jax.Array, y: jax.Array) -> jax.Array:
    """The number of a step: left, right, up, down."""
    return jnp.where(x < 0, 0, jnp.where(x > 0, 1, jnp.where(y < 0, 2, 3)))


def _wishes(near: jax.Array, material: jax.Array, player: jax.Array, bits: jax.Array) -> _Wishes:
    """Every near object's wish, from its own dice.

    **Arguments:** `near`, words `[K, B]`; `material` `[B, 4096]`; `player`, int32 `[B]`; `bits`, uint32 `[2, K, B]`.
    """
    kind, cell, counter = kind_of(near), cell_of(near), counter_of(near)
    x, y = cell // c.AREA, cell % c.AREA
    dx, dy = player // c.AREA - x, player % c.AREA - y
    distance = jnp.abs(dx) + jnp.abs(dy)
    chance, axis, other = _uniform(bits[0], 10, 22), _uniform(bits[1], 0, 16), _uniform(bits[1], 16, 16)
    dice = (bits[0] & np.uint32(3)).astype(jnp.int32)
    random_x, random_y = jnp.asarray(_STEP_X)[dice], jnp.asarray(_STEP_Y)[dice]

    zombie, skeleton, cow, arrow = (kind == k for k in (c.ZOMBIE, c.SKELETON, c.COW, c.ARROW))
    # zombies come closer, mostly along the longer axis
    chases = zombie & (distance <= 8) & (chance < 0.9)
    chase_x, chase_y = _toward(dx, dy, axis < 0.8)
    # skeletons step back from a player nearby, else shoot, come closer or wander: one number decides which
    retreats = skeleton & (distance <= 3)
    back_x, back_y = _toward(-dx, -dy, axis < 0.6)
    shoot = jnp.where(distance <= 5, 0.5, 0.0)
    come = jnp.where(distance <= 8, 0.3, 0.0) * (1 - shoot) + shoot
    wander = 0.2 * (1 - come) + come
    shoots = skeleton & (chance < shoot)
    comes = skeleton & ~shoots & (chance < come)
    wanders = skeleton & (chance >= come) & (chance < wander)
    aim_x, aim_y = _toward(dx, dy, jnp.bool(True))
    come_x, come_y = _toward(dx, dy, other < 0.6)
    fly_x, fly_y = jnp.asarray(_STEP_X)[counter & 3], jnp.asarray(_STEP_Y)[counter & 3]

    first_x = jnp.where(chases, chase_x, jnp.where(retreats, back_x, jnp.where(arrow, fly_x, random_x)))
    first_y = jnp.where(chases, chase_y, jnp.where(retreats, back_y, jnp.where(arrow, fly_y, random_y)))
    has_first = zombie | (cow & (chance < 0.5)) | retreats | arrow
    second_x = jnp.where(shoots, aim_x, jnp.where(comes, come_x, random_x))
    second_y = jnp.where(shoots, aim_y, jnp.where(comes, come_y, random_y))
    loaded = counter <= 1  # it is counted down before the shot
    has_second = (shoots & loaded) | comes | wanders

    def free(wanted, to_x, to_y, flies):
        inside = (to_x >= 0) & (to_x < c.AREA) & (to_y >= 0) & (to_y < c.AREA)
        to = jnp.where(wanted & inside, to_x * c.AREA + to_y, NOWHERE)
        rows = jnp.arange(material.shape[0])[None]
        there = material[rows, jnp.maximum(to, 0)].astype(jnp.uint32)
        open_ = sum(1 << m for m in c.WALKABLE)
        allowed = jnp.where(flies, np.uint32(open_ | 1 << c.WATER | 1 << c.LAVA), np.uint32(open_))
        return to.astype(jnp.int16), (to >= 0) & ((allowed >> there) & 1 > 0)

    first, first_free = free(has_first, x + first_x, y + first_y, arrow)
    second, second_free = free(has_second, x + second_x, y + second_y, shoots)
    return _Wishes(first, first_free, second, second_free, shoots, _direction(aim_x, aim_y).astype(jnp.int8))


class _Loop(NamedTuple):
    """What the loop over the near objects carries."""

    cells: jax.Array
    """int16 `[K + ARROWS, B]`, where everything is by now: near objects, then arrows shot in this step; -1: nowhere."""
    hits: jax.Array
    """int8 `[K, B]`, hit points that arrows and mobs took off each object."""
    ways: jax.Array
    """int8 `[ARROWS, B]`, the directions of the new arrows."""
    arrows: jax.Array
    """int32 `[B]`, new arrows."""
    reload: jax.Array
    """bool `[K, B]`, skeletons that shot."""
    struck: jax.Array
    """int32 `[B]`, hit points that arrows took off the player."""
    opened: jax.Array
    """int16 `[OPENED, B]`, cells of tables and furnaces that arrows destroyed."""
    lost: jax.Array


def _resolve(
    near: jax.Array, acts: jax.Array, wishes: _Wishes, material: jax.Array, player: jax.Array, longest: jax.Array
) -> _Loop:
    """Let near objects act one after another: index by index, all rows at once."""
    rows = near.shape[1]
    kind, health = kind_of(near).astype(jnp.int8), health_of(near).astype(jnp.int8)
    start = jnp.where(kind > 0, cell_of(near), NOWHERE).astype(jnp.int16)
    empty = jnp.full((ARROWS, rows), NOWHERE, jnp.int16)
    zeros = jnp.zeros(rows, jnp.int32)
    player = player.astype(jnp.int16)
    flies = (kind == c.ARROW) & acts
    grows = (kind == c.PLANT) & acts
    any_flies, any_grows = jnp.any(flies, axis=1), jnp.any(grows, axis=1)
    mob = (kind >= c.ZOMBIE) & (kind <= c.COW)
    shots = wishes.shoots & acts & (wishes.second >= 0)
    any_shots = jnp.any(shots, axis=1)

    def turn(k, loop: _Loop) -> _Loop:
        here, acting = loop.cells[k], acts[k]
        # a dead mob is removed from its cell and then does what it wanted, except for moving
        dead = acting & mob[k] & (health[k] <= loop.hits[k])
        cells = loop.cells.at[k].set(jnp.where(dead, jnp.int16(NOWHERE), here))
        first, second = wishes.first[k], wishes.second[k]
        opened = jnp.any(loop.opened == first, axis=0), jnp.any(loop.opened == second, axis=0)
        in_first = cells == first
        first_free = (wishes.first_free[k] | opened[0]) & ~jnp.any(in_first, axis=0) & (first != player)
        second_free = (wishes.second_free[k] | opened[1]) & ~jnp.any(cells == second, axis=0) & (second != player)
        first_free, second_free = first_free & (first >= 0) & acting, second_free & (second >= 0) & acting
        goes_second = second_free & ~first_free & ~wishes.shoots[k]
        shot = second_free & ~first_free & wishes.shoots[k]
        now = jnp.where(dead, NOWHERE, jnp.where(first_free, first, jnp.where(goes_second, second, here)))
        loop = loop._replace(cells=cells.at[k].set(now.astype(jnp.int16)))
        loop = jax.lax.cond(any_flies[k], lambda x: fly(k, x, in_first, opened[0]), lambda x: x, loop)
        loop = jax.lax.cond(any_grows[k], lambda x: grow(k, x), lambda x: x, loop)
        return jax.lax.cond(any_shots[k], lambda x: shoot(k, x, shot), lambda x: x, loop)

    def fly(k, loop: _Loop, in_first, opened) -> _Loop:
        """Arrows hurt what is in their way, break tables and furnaces, and stop at everything else that is solid."""
        first = wishes.first[k]
        target = jnp.maximum(first, 0).astype(jnp.int32)
        hurts = flies[k] & (first >= 0)
        hits_player = hurts & (first == player)
        hit = in_first[:NEAR_SLOTS] & hurts
        struck_something = (jnp.any(in_first, axis=0) | (first == player)) & (first >= 0)
        blocked = flies[k] & ~struck_something & ~(wishes.first_free[k] | opened)
        there = material[jnp.arange(rows), target]
        breaks = blocked & (first >= 0) & ((there == c.TABLE) | (there == c.FURNACE))
        vanishes = flies[k] & (struck_something | blocked)
        place = jnp.sum(loop.opened >= 0, axis=0)
        opened_now = jnp.where((jnp.arange(OPENED)[:, None] == place) & breaks, first, loop.opened)
        return loop._replace(
            cells=loop.cells.at[k].set(jnp.where(vanishes, jnp.int16(NOWHERE), loop.cells[k])),
            hits=loop.hits + 2 * hit.astype(jnp.int8),
            struck=loop.struck + 2 * hits_player,
            opened=opened_now.astype(jnp.int16),
            lost=loop.lost + (breaks & (place >= OPENED)),
        )

    def grow(k, loop: _Loop) -> _Loop:
        """Plants lose a hit point if a mob is beside them, and are removed without any left."""
        near_cells = loop.cells[:NEAR_SLOTS].astype(jnp.int32)
        here = loop.cells[k].astype(jnp.int32)
        beside = jnp.abs(near_cells // c.AREA - here // c.AREA) + jnp.abs(near_cells % c.AREA - here % c.AREA) == 1
        eaten = jnp.any(beside & mob & (near_cells >= 0), axis=0) & grows[k]
        hits = loop.hits.at[k].add(eaten.astype(jnp.int8))
        dies = grows[k] & (health[k] <= hits[k])
        return loop._replace(cells=loop.cells.at[k].set(jnp.where(dies, jnp.int16(NOWHERE), loop.cells[k])), hits=hits)

    def shoot(k, loop: _Loop, shot) -> _Loop:
        fits = shot & (loop.arrows < ARROWS)
        new = (jnp.arange(ARROWS)[:, None] == loop.arrows) & fits
        return loop._replace(
            cells=loop.cells.at[NEAR_SLOTS:].set(jnp.where(new, wishes.second[k], loop.cells[NEAR_SLOTS:])),
            ways=jnp.where(new, wishes.way[k], loop.ways),
            arrows=loop.arrows + fits,
            reload=loop.reload.at[k].set(shot),
            lost=loop.lost + (shot & ~fits),
        )

    loop = _Loop(
        jnp.concatenate([start, empty]),
        jnp.zeros((NEAR_SLOTS, rows), jnp.int8),
        jnp.zeros((ARROWS, rows), jnp.int8),
        zeros,
        jnp.zeros((NEAR_SLOTS, rows), bool),
        zeros,
        jnp.full((OPENED, rows), -2, jnp.int16),
        zeros,
    )
    return jax.lax.fori_loop(0, longest, turn, loop)


def take_turns(
    bits: UInt32[Array, "B 2 K"],
    material: UInt8[Array, "B 4096"],
    slots: UInt32[Array, "B S"],
    used: Int[Array, " B"],
    planted: Bool[Array, " B"],
    player: Int[Array, " B"],
    asleep: Bool[Array, " B"],
    touched: UInt32[Array, "B 2"],
    room: UInt8[Array, "B 72"],
) -> Creatures:
    """Let the objects of each row act.

    **Arguments:** `bits`, random; `planted`, whether the last object is a plant that the player has just placed, which
    does not act yet; `player`, its cell; `asleep`, whether it sleeps (zombies then do more damage).
    """
    rows = slots.shape[0]
    words = slots.T
    kind, cell = kind_of(words), cell_of(words)
    distance = jnp.abs(cell // c.AREA - player // c.AREA) + jnp.abs(cell % c.AREA - player % c.AREA)
    # those at the distance itself do not act, but may stand in the way
    wanted = (kind > 0) & (distance <= c.NEAR)
    near, ranks = _compacted(words, wanted)
    count = jnp.sum(wanted, axis=0)
    kind, cell = kind_of(near), cell_of(near)
    distance = jnp.abs(cell // c.AREA - player // c.AREA) + jnp.abs(cell % c.AREA - player % c.AREA)
    last = jnp.arange(NEAR_SLOTS)[:, None] == count - 1
    acts = (kind > 0) & (distance < c.NEAR) & ~(planted & last)
    wishes = _wishes(near, material, player, bits.transpose(1, 2, 0))
    loop = _resolve(near, acts, wishes, material, player, jnp.minimum(jnp.max(count), NEAR_SLOTS))

    # what follows from where everybody is: attacks, counters
    health, counter = health_of(near), counter_of(near)
    cells = loop.cells[:NEAR_SLOTS].astype(jnp.int32)
    gone = (kind > 0) & (cells < 0)
    at = jnp.where(gone, cell, cells)  # a dying zombie still attacks
    beside = jnp.abs(at // c.AREA - player // c.AREA) + jnp.abs(at % c.AREA - player % c.AREA) <= 1
    meets = acts & (kind == c.ZOMBIE) & beside
    attacks = meets & (counter == 0)
    damage = loop.struck + jnp.sum(attacks, axis=0) * jnp.where(asleep, 7, 2)
    counter = jnp.where(meets, jnp.where(attacks, 5, counter - 1), counter)
    reloaded = jnp.where(loop.reload, 4, jnp.maximum(counter - 1, 0))
    counter = jnp.where(acts & (kind == c.SKELETON), reloaded, counter)
    counter = jnp.where(acts & (kind == c.PLANT), jnp.minimum(counter + 1, (1 << 14) - 1), counter)
    health = jnp.maximum(health - loop.hits, 0)
    changed = jnp.where((kind > 0) & ~gone, word(at, kind, health, counter), 0)
    near_rank = jnp.minimum(ranks, NEAR_SLOTS - 1)
    back = changed[near_rank, jnp.arange(rows)[None]]
    words = jnp.where(ranks < NEAR_SLOTS, back, words)

    low, high = chunk_bits(chunk_of(jnp.maximum(cells, 0)), cells >= 0)
    touched = touched | jnp.stack(
        [jax.lax.reduce(bits_, np.uint32(0), jax.lax.bitwise_or, (0,)) for bits_ in (low, high)], axis=1
    )
    lost = loop.lost + jnp.maximum(count - NEAR_SLOTS, 0)
    after = Creatures(material, words.T, used, touched, room, damage, lost)
    after = jax.lax.cond(jnp.any(loop.arrows > 0), lambda x: _with_arrows(x, loop), lambda x: x, after)
    return jax.lax.cond(jnp.any(loop.opened >= 0), lambda x: _with_paths(x, loop), lambda x: x, after)


def _with_arrows(after: Creatures, loop: _Loop) -> Creatures:
    """New arrows as objects, in the order in which they were shot."""
    rows, most = after.slots.shape
    number = jnp.arange(ARROWS)[:, None]
    new = number < loop.arrows
    cell = jnp.maximum(loop.cells[NEAR_SLOTS:], 0).astype(jnp.int32)
    place = jnp.where(new, after.used + number, most)
    arrows = word(cell, c.ARROW, c.HEALTH_OF[c.ARROW], loop.ways)
    slots = after.slots.at[jnp.arange(rows)[None], place].set(arrows, mode="drop")
    low, high = chunk_bits(chunk_of(cell), new)
    bits = [jax.lax.reduce(x, np.uint32(0), jax.lax.bitwise_or, (0,)) for x in (low, high)]
    used = after.used + loop.arrows
    return after._replace(
        slots=slots,
        used=jnp.minimum(used, most),
        touched=after.touched | jnp.stack(bits, axis=1),
        lost=after.lost + jnp.maximum(used - most, 0),
    )


def _with_paths(after: Creatures, loop: _Loop) -> Creatures:
    """Paths where arrows destroyed a table or a furnace."""
    rows = jnp.arange(after.slots.shape[0])
    for cell in loop.opened.astype(jnp.int32):
        opens = cell >= 0
        before = after.material[rows, jnp.maximum(cell, 0)].astype(jnp.int32)
        material = after.material.at[rows, jnp.where(opens, cell, c.CELLS)].set(jnp.uint8(c.PATH), mode="drop")
        room = jax.vmap(recounted)(after.room, jnp.maximum(cell, 0), before, jnp.full_like(cell, c.PATH), opens)
        after = after._replace(material=material, room=room)
    return after
