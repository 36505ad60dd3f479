"""The creatures' turns: zombies, skeletons, cows, arrows and plants near the player, one after another.

Crafter lets its objects act in the order of their creation, and what one does changes what the next one can do: it
enters a cell, opens one, shoots. But what an object wants to do depends on itself, the player and the map only. So the
wishes of all near objects are computed together, and a short loop over the objects, for all rows of a batch at once,
decides which wishes come true: it compares each wanted cell with the positions of the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs_jax import tracing
from envs_jax.crafter import constants as c
from envs_jax.crafter.chunks import chunk_bits, chunk_of
from envs_jax.crafter.state import cell_of, counter_of, distance, health_of, kind_of, word, xy
from envs_jax.crafter.wishes import NEAR_SLOTS, NOWHERE, compacted, unpacked, wishes_of


ARROWS = 8
"""Arrows that can be shot in one step."""
OPEN = sum(1 << m for m in c.WALKABLE)
"""Materials that every object may enter, as bits."""
OPENED = 4
"""Tables and furnaces that arrows can destroy in one step."""


class Creatures(NamedTuple):
    """The result of the creatures' turns, for `B` rows."""

    slots: UInt32[Array, "B S"]
    used: Int[Array, " B"]
    touched: UInt32[Array, "B 2"]
    opened: Int[Array, "B O"]
    """Cells whose table or furnace an arrow destroyed, which become paths; -1 for none."""
    damage: Int[Array, " B"]
    """Hit points that the player lost."""
    lost: Int[Array, " B"]
    """Objects for which there was no place."""


class _Loop(NamedTuple):
    """The carry of the loop over the near objects."""

    cells: jax.Array
    """int16 `[K, B]`, where every near object is by now; -1: nowhere."""
    hits: jax.Array
    """int8 `[K, B]`, hit points that arrows and mobs took off each object."""
    shot: jax.Array
    """bool `[K, B]`, skeletons that shot."""
    new: jax.Array
    """int16 `[ARROWS, B]`, the cells of arrows shot in this step; -1 for none."""
    directions: jax.Array
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
    """Return whether any of `rows` `[n, B]` equals `value` `[B]`; written out, since XLA reduces booleans slowly."""
    return functools.reduce(jnp.bitwise_or, [rows[i] == value for i in range(rows.shape[0])])


def _enterable(material: jax.Array, flies: Any) -> jax.Array:
    """Return whether a material lets an object in; an arrow flies over water and lava too."""
    masks = np.uint32(OPEN | 1 << c.WATER | 1 << c.LAVA), np.uint32(OPEN)
    return (jnp.where(flies, *masks) >> material.astype(jnp.uint32)) & 1 > 0


class _NearObjects(NamedTuple):
    """The inputs of the loop: the near objects before the step, and their wishes; `[K, B]`."""

    kind: jax.Array
    """int8."""
    health: jax.Array
    """int8."""
    acts: jax.Array
    """bool, whether the object acts; others stand in the way."""
    wishes: jax.Array
    """uint32, packed."""
    materials: jax.Array
    """uint8 `[2, K, B]`, the materials of the two cells of each wish."""
    player: jax.Array
    """int16 `[B]`, the player's cell."""

    @property
    def mob(self) -> jax.Array:
        return (self.kind >= c.ZOMBIE) & (self.kind <= c.COW)

    @property
    def flies(self) -> jax.Array:
        return (self.kind == c.ARROW) & self.acts

    @property
    def grows(self) -> jax.Array:
        return (self.kind == c.PLANT) & self.acts


def _turn(k: jax.Array, objects: _NearObjects, loop: _Loop) -> _Loop:
    """Mob, arrow or plant number `k` of every row acts."""
    current, acting, wish = loop.cells[k], objects.acts[k], unpacked(objects.wishes[k])
    first, second = wish.first, wish.second
    # a dead mob is removed from its cell and then does what it wanted, except for moving
    dead = acting & objects.mob[k] & (objects.health[k] <= loop.hits[k])
    cells = loop.cells.at[k].set(jnp.where(dead, jnp.int16(NOWHERE), current))

    def is_occupied(cell):
        return _any_equal(cells, cell) | _any_equal(loop.new, cell) | (cell == objects.player)

    first_occupied = is_occupied(first)
    first_open = _enterable(objects.materials[0, k], objects.flies[k]) | _any_equal(loop.opened, first)
    first_free = first_open & ~first_occupied & (first >= 0) & acting
    second_open = _enterable(objects.materials[1, k], wish.shoots) | _any_equal(loop.opened, second)
    second_free = second_open & ~is_occupied(second) & (second >= 0) & acting & ~first_free
    goes_second, shot = second_free & ~wish.shoots, second_free & wish.shoots
    now = jnp.where(dead, NOWHERE, jnp.where(first_free, first, jnp.where(goes_second, second, current)))
    loop = loop._replace(cells=cells.at[k].set(now.astype(jnp.int16)), shot=loop.shot.at[k].set(shot))
    blocked, hit = ~first_open | (first < 0), first_occupied & (first >= 0)
    loop = _only_if(jnp.any(objects.flies[k]), lambda x: _fly(k, objects, x, first, blocked, hit), loop, _FLY)
    loop = _only_if(jnp.any(objects.grows[k]), lambda x: _grow(k, objects, x), loop, _GROW)
    return _only_if(jnp.any(shot), lambda x: _shoot(x, second, wish.direction, shot), loop, _SHOOT)


def _fly(
    k: jax.Array, objects: _NearObjects, loop: _Loop, first: jax.Array, blocked: jax.Array, hit: jax.Array
) -> _Loop:
    """Arrows hurt what is in their way, break tables and furnaces, and stop at everything else that is solid.

    **Arguments:** `first`, the next cell of the arrows; `blocked`, whether they cannot fly there; `hit`, whether
    something is there."""
    hurts = objects.flies[k] & hit
    stops = objects.flies[k] & ~hit & blocked
    breaks = stops & (first >= 0) & ((objects.materials[0, k] == c.TABLE) | (objects.materials[0, k] == c.FURNACE))
    index = jnp.sum(loop.opened >= 0, axis=0, dtype=jnp.int32)
    return loop._replace(
        cells=loop.cells.at[k].set(jnp.where(hurts | stops, jnp.int16(NOWHERE), loop.cells[k])),
        hits=loop.hits + 2 * ((loop.cells == first) & hurts).astype(jnp.int8),
        struck=loop.struck + 2 * (hurts & (first == objects.player)),
        opened=jnp.where((np.arange(OPENED)[:, None] == index) & breaks, first, loop.opened),
        lost=loop.lost + (breaks & (index >= OPENED)),
    )


def _grow(k: jax.Array, objects: _NearObjects, loop: _Loop) -> _Loop:
    """Plants lose a hit point if a mob is beside them, and are removed without any left."""
    cell = loop.cells[k]
    x, y = xy(cell)
    neighbours = [jnp.where(x > 0, cell - c.AREA, -2), jnp.where(x < c.AREA - 1, cell + c.AREA, -2)]
    neighbours += [jnp.where(y > 0, cell - 1, -2), jnp.where(y < c.AREA - 1, cell + 1, -2)]
    mobs = jnp.where(objects.mob, loop.cells, NOWHERE)
    eaten = functools.reduce(jnp.bitwise_or, [_any_equal(mobs, x.astype(jnp.int16)) for x in neighbours])
    hits = loop.hits[k] + (eaten & objects.grows[k])
    dies = objects.grows[k] & (objects.health[k] <= hits)
    cells = loop.cells.at[k].set(jnp.where(dies, jnp.int16(NOWHERE), cell))
    return loop._replace(cells=cells, hits=loop.hits.at[k].set(hits.astype(jnp.int8)))


def _shoot(loop: _Loop, cell: jax.Array, direction: jax.Array, shot: jax.Array) -> _Loop:
    """New arrows in the cells where skeletons shot."""
    fits = shot & (loop.arrows < ARROWS)
    new = (np.arange(ARROWS)[:, None] == loop.arrows) & fits
    return loop._replace(
        new=jnp.where(new, cell, loop.new),
        directions=jnp.where(new, direction, loop.directions),
        arrows=loop.arrows + fits,
        lost=loop.lost + (shot & ~fits),
    )


def _resolve(
    objects: jax.Array, acts: jax.Array, wishes: jax.Array, material: jax.Array, player: jax.Array, longest: jax.Array
) -> _Loop:
    """Let near objects act one after another: index by index, all rows at once.

    **Arguments:** `objects`, words `[K, B]`; `acts`, bool `[K, B]`; `wishes`, packed; `material` `[B, 4096]`; `player`,
    int32 `[B]`; `longest`, the most near objects of a row."""
    rows = objects.shape[1]
    wish = unpacked(wishes)
    cells = jnp.maximum(jnp.stack([wish.first, wish.second]), 0).astype(jnp.int32)
    materials = material[jnp.arange(rows), cells]
    kind, health = kind_of(objects).astype(jnp.int8), health_of(objects).astype(jnp.int8)
    before = _NearObjects(kind, health, acts, wishes, materials, player.astype(jnp.int16))
    zeros = jnp.zeros(rows, jnp.int32)
    loop = _Loop(
        cells=jnp.where(kind > 0, cell_of(objects), NOWHERE).astype(jnp.int16),
        hits=jnp.zeros((NEAR_SLOTS, rows), jnp.int8),
        shot=jnp.zeros((NEAR_SLOTS, rows), bool),
        new=jnp.full((ARROWS, rows), NOWHERE, jnp.int16),
        directions=jnp.zeros((ARROWS, rows), jnp.int8),
        arrows=zeros,
        struck=zeros,
        opened=jnp.full((OPENED, rows), -2, jnp.int16),
        lost=zeros,
    )
    return tracing.fori_loop(0, longest, lambda k, loop: _turn(k, before, loop), loop)


_FLY, _GROW, _SHOOT = (
    ("cells", "hits", "struck", "opened", "lost"),
    ("cells", "hits"),
    ("new", "directions", "arrows", "lost"),
)
"""The fields that each kind of turn changes: a branch copies what it returns."""


def _only_if(happens: jax.Array, function: Callable[[_Loop], _Loop], loop: _Loop, changed: Sequence[str]) -> _Loop:
    """`function(loop)` if something of the kind happens in any row."""

    def parts(loop: _Loop) -> tuple[jax.Array, ...]:
        return tuple(getattr(loop, name) for name in changed)

    new = tracing.cond(happens, lambda: parts(function(loop)), lambda: parts(loop))
    return loop._replace(**dict(zip(changed, new)))


class _After(NamedTuple):
    """The results that follow from the positions after the loop."""

    words: jax.Array
    """uint32 `[K, B]`, the near objects after the step."""
    attacks: jax.Array
    """int32 `[B]`, zombies that attacked the player."""
    low: jax.Array
    """uint32 `[B]`, the chunks of the near objects, see `State.touched`."""
    high: jax.Array


def _after(objects: jax.Array, acts: jax.Array, loop: _Loop, player: jax.Array, longest: jax.Array) -> _After:
    """Attacks, counters, and the objects as words."""

    def update_object(k, after: _After) -> _After:
        kind, counter, now = kind_of(objects[k]), counter_of(objects[k]), loop.cells[k].astype(jnp.int32)
        cell = jnp.where(now < 0, cell_of(objects[k]), now)  # a dying zombie still attacks
        meets = acts[k] & (kind == c.ZOMBIE) & (distance(cell, player) <= 1)
        attacks = meets & (counter == 0)
        counter = jnp.where(meets, jnp.where(attacks, 5, counter - 1), counter)
        reloaded = jnp.where(loop.shot[k], 4, jnp.maximum(counter - 1, 0))
        counter = jnp.where(acts[k] & (kind == c.SKELETON), reloaded, counter)
        counter = jnp.where(acts[k] & (kind == c.PLANT), jnp.minimum(counter + 1, (1 << 14) - 1), counter)
        health = jnp.maximum(health_of(objects[k]) - loop.hits[k], 0)
        changed = jnp.where(now < 0, 0, word(cell, kind, health, counter)).astype(jnp.uint32)
        low, high = chunk_bits(chunk_of(jnp.maximum(now, 0)), now >= 0)
        return _After(after.words.at[k].set(changed), after.attacks + attacks, after.low | low, after.high | high)

    rows = objects.shape[1]
    bits = jnp.zeros(rows, jnp.uint32)
    empty = _After(jnp.zeros(objects.shape, jnp.uint32), jnp.zeros(rows, jnp.int32), bits, bits)
    return tracing.fori_loop(0, longest, update_object, empty)


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
    selected = (kind_of(words) > 0) & (distance(cell_of(words), player) <= c.ACTIVE_DISTANCE)
    objects, ranks = compacted(words, selected)
    count = jnp.sum(selected, axis=0, dtype=jnp.int32)
    last = jnp.arange(NEAR_SLOTS)[:, None] == count - 1
    acts = (kind_of(objects) > 0) & (distance(cell_of(objects), player) < c.ACTIVE_DISTANCE) & ~(planted & last)
    longest = jnp.minimum(jnp.max(count), NEAR_SLOTS)
    wishes = wishes_of(objects, bits.transpose(1, 2, 0), player, longest)
    loop = _resolve(objects, acts, wishes, material, player, longest)
    after = _after(objects, acts, loop, player, longest)

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
    return tracing.cond(jnp.any(loop.arrows > 0), lambda: _with_arrows(result, loop), lambda: result)


def _with_arrows(after: Creatures, loop: _Loop) -> Creatures:
    """New arrows as objects, in the order in which they were shot."""
    rows, capacity = after.slots.shape
    number = jnp.arange(ARROWS)[:, None]
    new = number < loop.arrows
    cell = jnp.maximum(loop.new, 0).astype(jnp.int32)
    slot = jnp.where(new, after.used + number, capacity)
    arrows = word(cell, c.ARROW, c.HEALTH_OF[c.ARROW], loop.directions)
    slots = after.slots.at[jnp.arange(rows), slot].set(arrows, mode="drop")
    chunks = chunk_bits(chunk_of(cell), new)
    touched = [functools.reduce(jnp.bitwise_or, list(bits)) for bits in chunks]
    used = after.used + loop.arrows
    return after._replace(
        slots=slots,
        used=jnp.minimum(used, capacity),
        touched=after.touched | jnp.stack(touched, axis=1),
        lost=after.lost + jnp.maximum(used - capacity, 0),
    )
