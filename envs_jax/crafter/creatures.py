"""The creatures' turns: zombies, skeletons, cows, arrows and plants near the player, one after another.

Crafter lets its objects act in the order of their creation, and what one does changes what the next one can do: it
enters a cell, opens one, shoots. But what an object wants to do depends on itself, the player and the map only. So the
wishes of all near objects are computed together, and a short loop over the objects, for all rows of a batch at once,
decides which wishes come true: it compares each wanted cell with the positions of the others (crafter_speed reference,
3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs_jax.crafter import constants as c
from envs_jax.crafter.player import chunk_bits, chunk_of
from envs_jax.crafter.state import cell_of, counter_of, distance, health_of, kind_of, word, xy


NEAR_SLOTS = 32
"""Objects near the player that can act, or stand in the way, in one step; the package had 23 in 40,000 steps."""
ARROWS = 8
"""Arrows that can be shot in one step."""
WORDS = 2
"""Random words of 32 bits per near object."""
OPENED = 4
"""Tables and furnaces that arrows can destroy in one step."""
NOWHERE = -1
"""The cell of an object that was removed."""


class Creatures(NamedTuple):
    """What came of the creatures' turns, for `B` rows."""

    slots: UInt32[Array, "B S"]
    used: Int[Array, " B"]
    touched: UInt32[Array, "B 2"]
    opened: Int[Array, "B O"]
    """Cells whose table or furnace an arrow destroyed, which become paths; -1 for none."""
    damage: Int[Array, " B"]
    """Hit points that the player lost."""
    lost: Int[Array, " B"]
    """Objects for which there was no place."""


class _Wish(NamedTuple):
    """What a near object will do if it can. Cells are -1 where nothing is wanted."""

    first: jax.Array
    """int16, the cell to enter: a step, a skeleton's retreat, an arrow's flight."""
    second: jax.Array
    """int16, a skeleton's second choice if the retreat fails: the cell to shoot into, or to enter."""
    shoots: jax.Array
    """bool, whether the second choice is a shot."""
    way: jax.Array
    """int8, the direction of the shot."""


_FIELDS = {"first": (0, 13), "second": (13, 13), "shoots": (26, 1), "way": (27, 2)}
"""First bit and width of each part of a wish in its word; cells are stored plus 1."""


def _packed(wish: _Wish) -> jax.Array:
    """A wish as one word, uint32: XLA would repeat the whole computation for every array that it yields."""
    wish = wish._replace(first=wish.first + 1, second=wish.second + 1)
    parts = [getattr(wish, name).astype(jnp.uint32) << np.uint32(low) for name, (low, _) in _FIELDS.items()]
    return functools.reduce(jnp.bitwise_or, parts)


def _unpacked(packed: jax.Array) -> _Wish:
    part = {name: (packed >> np.uint32(low)) & np.uint32((1 << width) - 1) for name, (low, width) in _FIELDS.items()}
    first, second = (part[name].astype(jnp.int16) - 1 for name in ("first", "second"))
    return _Wish(first, second, part["shoots"] > 0, part["way"].astype(jnp.int8))


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


_OPEN = sum(1 << m for m in c.WALKABLE)


def _step(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step (x, y) to the left, right, up or down, from the number of a direction."""
    sign = 2 * (direction & 1).astype(jnp.int32) - 1
    across = direction < 2
    return jnp.where(across, sign, 0), jnp.where(across, 0, sign)


def _direction(x: jax.Array, y: jax.Array) -> jax.Array:
    """The number of a step: left, right, up, down."""
    return jnp.where(x < 0, 0, jnp.where(x > 0, 1, jnp.where(y < 0, 2, 3)))


def _wish(near: jax.Array, bits: jax.Array, player: jax.Array) -> _Wish:
    """The wish of one near object of each row, from its own dice.

    **Arguments:** `near`, words `[B]`; `bits`, uint32 `[2, B]`; `player`, int32 `[B]`.
    """
    kind, cell, counter = kind_of(near), cell_of(near), counter_of(near)
    (x, y), (player_x, player_y) = xy(cell), xy(player)
    dx, dy = player_x - x, player_y - y
    away = jnp.abs(dx) + jnp.abs(dy)
    chance, axis, other = _uniform(bits[0], 10, 22), _uniform(bits[1], 0, 16), _uniform(bits[1], 16, 16)
    dice = bits[0] & np.uint32(3)
    random_x, random_y = _step(dice)

    zombie, skeleton, cow, arrow = (kind == k for k in (c.ZOMBIE, c.SKELETON, c.COW, c.ARROW))
    # zombies come closer, mostly along the longer axis
    chases = zombie & (away <= 8) & (chance < 0.9)
    chase_x, chase_y = _toward(dx, dy, axis < 0.8)
    # skeletons step back from a player nearby, else shoot, come closer or wander: one number decides which
    retreats = skeleton & (away <= 3)
    back_x, back_y = _toward(-dx, -dy, axis < 0.6)
    shoot = jnp.where(away <= 5, 0.5, 0.0)
    come = jnp.where(away <= 8, 0.3, 0.0) * (1 - shoot) + shoot
    wander = 0.2 * (1 - come) + come
    shoots = skeleton & (chance < shoot)
    comes = skeleton & ~shoots & (chance < come)
    wanders = skeleton & (chance >= come) & (chance < wander)
    aim_x, aim_y = _toward(dx, dy, jnp.bool(True))
    come_x, come_y = _toward(dx, dy, other < 0.6)
    fly_x, fly_y = _step(counter.astype(jnp.uint32) & 3)

    first_x = jnp.where(chases, chase_x, jnp.where(retreats, back_x, jnp.where(arrow, fly_x, random_x)))
    first_y = jnp.where(chases, chase_y, jnp.where(retreats, back_y, jnp.where(arrow, fly_y, random_y)))
    has_first = zombie | (cow & (chance < 0.5)) | retreats | arrow
    second_x = jnp.where(shoots, aim_x, jnp.where(comes, come_x, random_x))
    second_y = jnp.where(shoots, aim_y, jnp.where(comes, come_y, random_y))
    loaded = counter <= 1  # it is counted down before the shot
    has_second = (shoots & loaded) | comes | wanders

    def cell_at(wanted, to_x, to_y):
        inside = (to_x >= 0) & (to_x < c.AREA) & (to_y >= 0) & (to_y < c.AREA)
        return jnp.where(wanted & inside, to_x * c.AREA + to_y, NOWHERE)

    first, second = cell_at(has_first, x + first_x, y + first_y), cell_at(has_second, x + second_x, y + second_y)
    return _Wish(first, second, shoots, _direction(aim_x, aim_y))


def _wishes(near: jax.Array, bits: jax.Array, player: jax.Array, longest: jax.Array) -> UInt32[Array, "K B"]:
    """Every near object's wish, packed; in a loop, so that they are computed before they are used, and only once."""

    def one(k, wishes):
        return wishes.at[k].set(_packed(_wish(near[k], bits[:, k], player)))

    return jax.lax.fori_loop(0, longest, one, jnp.zeros(near.shape, jnp.uint32))


class _Loop(NamedTuple):
    """What the loop over the near objects carries."""

    cells: jax.Array
    """int16 `[K, B]`, where every near object is by now; -1: nowhere."""
    hits: jax.Array
    """int8 `[K, B]`, hit points that arrows and mobs took off each object."""
    shot: jax.Array
    """bool `[K, B]`, skeletons that shot."""
    new: jax.Array
    """int16 `[ARROWS, B]`, the cells of arrows shot in this step; -1 for none."""
    ways: jax.Array
    """int8 `[ARROWS, B]`, their directions."""
    arrows: jax.Array
    """int32 `[B]`, their number."""
    struck: jax.Array
    """int32 `[B]`, hit points that arrows took off the player."""
    opened: jax.Array
    """int16 `[OPENED, B]`, cells of tables and furnaces that arrows destroyed; -2 for none."""
    lost: jax.Array
    """int32 `[B]`, events for which there was no place."""


def _any_equal(rows: jax.Array, value: jax.Array) -> jax.Array:
    """Whether any of `rows` `[n, B]` equals `value` `[B]`; written out, since XLA reduces booleans slowly."""
    return functools.reduce(jnp.bitwise_or, [rows[i] == value for i in range(rows.shape[0])])


def _enterable(material: jax.Array, flies: Any) -> jax.Array:
    """Whether a material lets an object in; an arrow flies over water and lava too."""
    masks = np.uint32(_OPEN | 1 << c.WATER | 1 << c.LAVA), np.uint32(_OPEN)
    return (jnp.where(flies, *masks) >> material.astype(jnp.uint32)) & 1 > 0


def _resolve(
    near: jax.Array, acts: jax.Array, wishes: jax.Array, material: jax.Array, player: jax.Array, longest: jax.Array
) -> _Loop:
    """Let near objects act one after another: index by index, all rows at once."""
    rows = near.shape[1]
    kind, health = kind_of(near).astype(jnp.int8), health_of(near).astype(jnp.int8)
    player = player.astype(jnp.int16)
    mob = (kind >= c.ZOMBIE) & (kind <= c.COW)
    flies, grows = (kind == c.ARROW) & acts, (kind == c.PLANT) & acts
    wanted = _unpacked(wishes)
    cells = jnp.maximum(jnp.stack([wanted.first, wanted.second]), 0).astype(jnp.int32)
    there = material[jnp.arange(rows), cells]  # uint8 [2, K, B]
    shoots = wanted.shoots & acts & (wanted.second >= 0)
    any_flies, any_grows, any_shoots = (jnp.any(x, axis=1) for x in (flies, grows, shoots))

    def turn(k, loop: _Loop) -> _Loop:
        here, acting, wish = loop.cells[k], acts[k], _unpacked(wishes[k])
        first, second = wish.first, wish.second
        # a dead mob is removed from its cell and then does what it wanted, except for moving
        dead = acting & mob[k] & (health[k] <= loop.hits[k])
        cells = loop.cells.at[k].set(jnp.where(dead, jnp.int16(NOWHERE), here))

        def taken(cell):
            return _any_equal(cells, cell) | _any_equal(loop.new, cell) | (cell == player)

        taken_first = taken(first)
        first_open = _enterable(there[0, k], flies[k]) | _any_equal(loop.opened, first)
        first_free = first_open & ~taken_first & (first >= 0) & acting
        second_open = _enterable(there[1, k], wish.shoots) | _any_equal(loop.opened, second)
        second_free = second_open & ~taken(second) & (second >= 0) & acting & ~first_free
        goes_second, shot = second_free & ~wish.shoots, second_free & wish.shoots
        now = jnp.where(dead, NOWHERE, jnp.where(first_free, first, jnp.where(goes_second, second, here)))
        loop = loop._replace(cells=cells.at[k].set(now.astype(jnp.int16)), shot=loop.shot.at[k].set(shot))
        loop = _only_if(any_flies[k], lambda x: fly(k, x, first, first_open, taken_first & (first >= 0)), loop, _FLY)
        loop = _only_if(any_grows[k], lambda x: grow(k, x), loop, _GROW)
        return _only_if(any_shoots[k], lambda x: shoot(x, second, wish.way, shot), loop, _SHOOT)

    def fly(k, loop: _Loop, first, opens, taken) -> _Loop:
        """Arrows hurt what is in their way, break tables and furnaces, and stop at everything else that is solid."""
        hurts = flies[k] & taken
        blocked = flies[k] & ~taken & ~(opens & (first >= 0))
        breaks = blocked & (first >= 0) & ((there[0, k] == c.TABLE) | (there[0, k] == c.FURNACE))
        place = jnp.sum(loop.opened >= 0, axis=0, dtype=jnp.int32)
        return loop._replace(
            cells=loop.cells.at[k].set(jnp.where(hurts | blocked, jnp.int16(NOWHERE), loop.cells[k])),
            hits=loop.hits + 2 * ((loop.cells == first) & hurts).astype(jnp.int8),
            struck=loop.struck + 2 * (hurts & (first == player)),
            opened=jnp.where((jnp.arange(OPENED)[:, None] == place) & breaks, first, loop.opened),
            lost=loop.lost + (breaks & (place >= OPENED)),
        )

    def grow(k, loop: _Loop) -> _Loop:
        """Plants lose a hit point if a mob is beside them, and are removed without any left."""
        here = loop.cells[k]
        x, y = xy(here)
        beside = (jnp.where(x > 0, here - c.AREA, -2), jnp.where(x < c.AREA - 1, here + c.AREA, -2))
        beside += (jnp.where(y > 0, here - 1, -2), jnp.where(y < c.AREA - 1, here + 1, -2))
        mobs = jnp.where(mob, loop.cells, NOWHERE)
        eaten = functools.reduce(jnp.bitwise_or, [_any_equal(mobs, cell.astype(jnp.int16)) for cell in beside])
        hits = loop.hits[k] + (eaten & grows[k])
        dies = grows[k] & (health[k] <= hits)
        cells = loop.cells.at[k].set(jnp.where(dies, jnp.int16(NOWHERE), here))
        return loop._replace(cells=cells, hits=loop.hits.at[k].set(hits.astype(jnp.int8)))

    def shoot(loop: _Loop, cell, way, shot) -> _Loop:
        fits = shot & (loop.arrows < ARROWS)
        new = (jnp.arange(ARROWS)[:, None] == loop.arrows) & fits
        return loop._replace(
            new=jnp.where(new, cell, loop.new),
            ways=jnp.where(new, way, loop.ways),
            arrows=loop.arrows + fits,
            lost=loop.lost + (shot & ~fits),
        )

    zeros = jnp.zeros(rows, jnp.int32)
    loop = _Loop(
        cells=jnp.where(kind > 0, cell_of(near), NOWHERE).astype(jnp.int16),
        hits=jnp.zeros((NEAR_SLOTS, rows), jnp.int8),
        shot=jnp.zeros((NEAR_SLOTS, rows), bool),
        new=jnp.full((ARROWS, rows), NOWHERE, jnp.int16),
        ways=jnp.zeros((ARROWS, rows), jnp.int8),
        arrows=zeros,
        struck=zeros,
        opened=jnp.full((OPENED, rows), -2, jnp.int16),
        lost=zeros,
    )
    return jax.lax.fori_loop(0, longest, turn, loop)


_FLY, _GROW, _SHOOT = (
    ("cells", "hits", "struck", "opened", "lost"),
    ("cells", "hits"),
    ("new", "ways", "arrows", "lost"),
)
"""What each kind of turn changes: a branch copies what it returns."""


def _only_if(happens: jax.Array, function: Callable[[_Loop], _Loop], loop: _Loop, changed: Sequence[str]) -> _Loop:
    """`function(loop)` if something of the kind happens in any row."""

    def parts(loop: _Loop) -> tuple[jax.Array, ...]:
        return tuple(getattr(loop, name) for name in changed)

    new = jax.lax.cond(happens, lambda: parts(function(loop)), lambda: parts(loop))
    return loop._replace(**dict(zip(changed, new)))


class _After(NamedTuple):
    """What follows from where everything is after the loop."""

    words: jax.Array
    """uint32 `[K, B]`, the near objects after the step."""
    attacks: jax.Array
    """int32 `[B]`, zombies that attacked the player."""
    low: jax.Array
    """uint32 `[B]`, the chunks of the near objects, see `State.touched`."""
    high: jax.Array


def _after(near: jax.Array, acts: jax.Array, loop: _Loop, player: jax.Array, longest: jax.Array) -> _After:
    """Attacks, counters, and the objects as words."""

    def one(k, after: _After) -> _After:
        kind, counter, now = kind_of(near[k]), counter_of(near[k]), loop.cells[k].astype(jnp.int32)
        at = jnp.where(now < 0, cell_of(near[k]), now)  # a dying zombie still attacks
        meets = acts[k] & (kind == c.ZOMBIE) & (distance(at, player) <= 1)
        attacks = meets & (counter == 0)
        counter = jnp.where(meets, jnp.where(attacks, 5, counter - 1), counter)
        reloaded = jnp.where(loop.shot[k], 4, jnp.maximum(counter - 1, 0))
        counter = jnp.where(acts[k] & (kind == c.SKELETON), reloaded, counter)
        counter = jnp.where(acts[k] & (kind == c.PLANT), jnp.minimum(counter + 1, (1 << 14) - 1), counter)
        health = jnp.maximum(health_of(near[k]) - loop.hits[k], 0)
        changed = jnp.where(now < 0, 0, word(at, kind, health, counter)).astype(jnp.uint32)
        low, high = chunk_bits(chunk_of(jnp.maximum(now, 0)), now >= 0)
        return _After(after.words.at[k].set(changed), after.attacks + attacks, after.low | low, after.high | high)

    rows = near.shape[1]
    bits = jnp.zeros(rows, jnp.uint32)
    empty = _After(jnp.zeros(near.shape, jnp.uint32), jnp.zeros(rows, jnp.int32), bits, bits)
    return jax.lax.fori_loop(0, longest, one, empty)


def take_turns(
    bits: UInt32[Array, "B 2 K"],
    material: UInt8[Array, "B 4096"],
    slots: UInt32[Array, "B S"],
    used: Int[Array, " B"],
    planted: Bool[Array, " B"],
    player: Int[Array, " B"],
    asleep: Bool[Array, " B"],
    touched: UInt32[Array, "B 2"],
) -> Creatures:
    """Let the objects of each row act.

    **Arguments:** `bits`, random; `planted`, whether the last object is a plant that the player has just placed, which
    does not act yet; `player`, its cell; `asleep`, whether it sleeps (zombies then do more damage).
    """
    rows = slots.shape[0]
    words = slots.T
    # those at the distance itself do not act, but may stand in the way
    wanted = (kind_of(words) > 0) & (distance(cell_of(words), player) <= c.NEAR)
    near, ranks = _compacted(words, wanted)
    count = jnp.sum(wanted, axis=0, dtype=jnp.int32)
    last = jnp.arange(NEAR_SLOTS)[:, None] == count - 1
    acts = (kind_of(near) > 0) & (distance(cell_of(near), player) < c.NEAR) & ~(planted & last)
    longest = jnp.minimum(jnp.max(count), NEAR_SLOTS)
    wishes = _wishes(near, bits.transpose(1, 2, 0), player, longest)
    loop = _resolve(near, acts, wishes, material, player, longest)
    after = _after(near, acts, loop, player, longest)

    back = after.words[jnp.minimum(ranks, NEAR_SLOTS - 1), jnp.arange(rows)]
    words = jnp.where(ranks < NEAR_SLOTS, back, words)
    result = Creatures(
        slots=words.T,
        used=used,
        touched=touched | jnp.stack([after.low, after.high], axis=1),
        opened=jnp.maximum(loop.opened, NOWHERE).astype(jnp.int32).T,
        damage=loop.struck + after.attacks * jnp.where(asleep, 7, 2),
        lost=loop.lost + jnp.maximum(count - NEAR_SLOTS, 0),
    )
    return jax.lax.cond(jnp.any(loop.arrows > 0), lambda: _with_arrows(result, loop), lambda: result)


def _with_arrows(after: Creatures, loop: _Loop) -> Creatures:
    """New arrows as objects, in the order in which they were shot."""
    rows, most = after.slots.shape
    number = jnp.arange(ARROWS)[:, None]
    new = number < loop.arrows
    cell = jnp.maximum(loop.new, 0).astype(jnp.int32)
    place = jnp.where(new, after.used + number, most)
    arrows = word(cell, c.ARROW, c.HEALTH_OF[c.ARROW], loop.ways)
    slots = after.slots.at[jnp.arange(rows), place].set(arrows, mode="drop")
    chunks = chunk_bits(chunk_of(cell), new)
    touched = [functools.reduce(jnp.bitwise_or, list(bits)) for bits in chunks]
    used = after.used + loop.arrows
    return after._replace(
        slots=slots,
        used=jnp.minimum(used, most),
        touched=after.touched | jnp.stack(touched, axis=1),
        lost=after.lost + jnp.maximum(used - most, 0),
    )
