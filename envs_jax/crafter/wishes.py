"""The objects near the player, and what each of them wants to do, from its own dice (crafter's `objects.py`).

XLA repeats a computation in each of its uses, so a wish is one word, and the wishes are computed in a loop of their
own.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from envs_jax import tracing
from envs_jax.crafter import constants as c
from envs_jax.crafter.state import cell_of, counter_of, kind_of, xy


NEAR_SLOTS = 32
"""Objects near the player that can act, or stand in the way, in one step; the package had 23 in 40,000 steps."""
WORDS = 2
"""Random words of 32 bits per near object."""
NOWHERE = -1
"""The cell of an object that was removed."""


class Wish(NamedTuple):
    """The move of a near object if it is possible. Cells are -1 where it wants nothing."""

    first: jax.Array
    """int16, the cell to enter: a step, a skeleton's retreat, an arrow's flight."""
    second: jax.Array
    """int16, a skeleton's second choice if the retreat fails: the cell to shoot into, or to enter."""
    shoots: jax.Array
    """bool, whether the second choice is a shot."""
    direction: jax.Array
    """int8, the direction of the shot."""


_FIELDS = {"first": (0, 13), "second": (13, 13), "shoots": (26, 1), "direction": (27, 2)}
"""First bit and width of each part of a wish in its word; cells are stored plus 1."""


def _packed(wish: Wish) -> jax.Array:
    """A wish as one word, uint32: XLA would repeat the whole computation for every array that it yields."""
    wish = wish._replace(first=wish.first + 1, second=wish.second + 1)
    parts = [getattr(wish, name).astype(jnp.uint32) << np.uint32(low) for name, (low, _) in _FIELDS.items()]
    return functools.reduce(jnp.bitwise_or, parts)


def unpacked(packed: jax.Array) -> Wish:
    part = {name: (packed >> np.uint32(low)) & np.uint32((1 << width) - 1) for name, (low, width) in _FIELDS.items()}
    first, second = (part[name].astype(jnp.int16) - 1 for name in ("first", "second"))
    return Wish(first, second, part["shoots"] > 0, part["direction"].astype(jnp.int8))


def compacted(slots: jax.Array, selected: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The wanted ones of `slots` `[S, B]` in order, `[K, B]`; the rank of every slot, `[S, B]`, `K` if not wanted."""

    def rank(count, row):
        return count + row, jnp.where(row, count, NEAR_SLOTS)

    count, ranks = tracing.scan(rank, jnp.zeros(slots.shape[1], jnp.int32), selected)
    objects = jnp.zeros((NEAR_SLOTS, slots.shape[1]), slots.dtype)
    columns = jnp.broadcast_to(jnp.arange(slots.shape[1]), slots.shape)
    objects = objects.at[ranks, columns].set(slots, mode="drop", unique_indices=True)
    return objects, ranks


def _toward(dx: jax.Array, dy: jax.Array, long_axis: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step along the longer or the shorter axis of an offset, which may be no step at all."""
    along_x = jnp.where(long_axis, jnp.abs(dx) > jnp.abs(dy), jnp.abs(dx) <= jnp.abs(dy))
    return jnp.where(along_x, jnp.sign(dx), 0), jnp.where(along_x, 0, jnp.sign(dy))


def _uniform(bits: jax.Array, low: int, width: int) -> jax.Array:
    """Uniform numbers in [0, 1) from some of the bits of random words."""
    part = (bits >> np.uint32(low)) & np.uint32((1 << width) - 1)
    return part.astype(jnp.float32) * np.float32(2.0**-width)


def _step(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step (x, y) to the left, right, up or down, from the number of a direction."""
    sign = 2 * (direction & 1).astype(jnp.int32) - 1
    horizontal = direction < 2
    return jnp.where(horizontal, sign, 0), jnp.where(horizontal, 0, sign)


def _direction(x: jax.Array, y: jax.Array) -> jax.Array:
    """The number of a step: left, right, up, down."""
    return jnp.where(x < 0, 0, jnp.where(x > 0, 1, jnp.where(y < 0, 2, 3)))


def _wish(objects: jax.Array, bits: jax.Array, player: jax.Array) -> Wish:
    """The wish of one near object of each row, from its own dice.

    **Arguments:** `objects`, words `[B]`; `bits`, uint32 `[2, B]`; `player`, int32 `[B]`.
    """
    kind, cell, counter = kind_of(objects), cell_of(objects), counter_of(objects)
    (x, y), (player_x, player_y) = xy(cell), xy(player)
    dx, dy = player_x - x, player_y - y
    away = jnp.abs(dx) + jnp.abs(dy)
    chance, axis, come_axis = _uniform(bits[0], 10, 22), _uniform(bits[1], 0, 16), _uniform(bits[1], 16, 16)
    dice = bits[0] & np.uint32(3)
    random_x, random_y = _step(dice)

    zombie, skeleton, cow, arrow = (kind == k for k in (c.ZOMBIE, c.SKELETON, c.COW, c.ARROW))
    # zombies come closer, mostly along the longer axis
    chases = zombie & (away <= 8) & (chance < 0.9)
    chase_x, chase_y = _toward(dx, dy, axis < 0.8)
    # skeletons step back from a player nearby, else shoot, come closer or wander: one number decides which
    retreats = skeleton & (away <= 3)
    back_x, back_y = _toward(-dx, -dy, axis < 0.6)
    shoot_limit = jnp.where(away <= 5, 0.5, 0.0).astype(jnp.float32)
    come_limit = jnp.where(away <= 8, 0.3, 0.0).astype(jnp.float32) * (1 - shoot_limit) + shoot_limit
    wander_limit = 0.2 * (1 - come_limit) + come_limit
    shoots = skeleton & (chance < shoot_limit)
    comes = skeleton & ~shoots & (chance < come_limit)
    wanders = skeleton & (chance >= come_limit) & (chance < wander_limit)
    aim_x, aim_y = _toward(dx, dy, jnp.bool(True))
    come_x, come_y = _toward(dx, dy, come_axis < 0.6)
    fly_x, fly_y = _step(counter.astype(jnp.uint32) & 3)

    first_x = jnp.where(chases, chase_x, jnp.where(retreats, back_x, jnp.where(arrow, fly_x, random_x)))
    first_y = jnp.where(chases, chase_y, jnp.where(retreats, back_y, jnp.where(arrow, fly_y, random_y)))
    has_first = zombie | (cow & (chance < 0.5)) | retreats | arrow
    second_x = jnp.where(shoots, aim_x, jnp.where(comes, come_x, random_x))
    second_y = jnp.where(shoots, aim_y, jnp.where(comes, come_y, random_y))
    loaded = counter <= 1  # it is counted down before the shot
    has_second = (shoots & loaded) | comes | wanders

    def cell_at(enters, to_x, to_y):
        inside = (to_x >= 0) & (to_x < c.AREA) & (to_y >= 0) & (to_y < c.AREA)
        return jnp.where(enters & inside, to_x * c.AREA + to_y, NOWHERE)

    first, second = cell_at(has_first, x + first_x, y + first_y), cell_at(has_second, x + second_x, y + second_y)
    return Wish(first, second, shoots, _direction(aim_x, aim_y))


def wishes_of(objects: jax.Array, bits: jax.Array, player: jax.Array, longest: jax.Array) -> UInt32[Array, "K B"]:
    """Every near object's wish, packed; in a loop, so that they are computed before they are used, and only once."""

    def add_wish(k, wishes):
        return wishes.at[k].set(_packed(_wish(objects[k], bits[:, k], player)))

    return tracing.fori_loop(0, longest, add_wish, jnp.zeros(objects.shape, jnp.uint32))
