"""Episodes: which objects lie where at the start, sampled on the device or fixed by a task."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.checks import nearest
from envs_jax.housekeep.apartment import KEYS, RECEPTACLES
from envs_jax.housekeep.constants import ABSENT, SLOTS, WIDTH
from envs_jax.housekeep.preferences import Preferences
from envs_jax.housekeep.tables import Tables, words


PER_RECEPTACLE = 2
"""The largest number of objects on a receptacle at the start."""
TEMPERATURE = 3.0
"""Receptacles are sampled by a softmax over minus their mean ranks, divided by this (2205.10712)."""

TASKS = Path(__file__).parent / "data" / "tasks.json"


@dataclass(frozen=True)
class Start:
    """The start of an episode; arrays as of `State`."""

    category: Any
    spot: Any
    cell: Any
    heading: Any


def eligible(preferences: Preferences, tables: Tables) -> np.ndarray:
    """The categories that random episodes sample, bool `[N]`: those with a place to be misplaced at, and with at least
    `SLOTS` correct spots, so that one of them is always free.

    **Arguments:** `preferences`, with the apartment's receptacles as places."""
    capacity = np.bincount(tables.spots.receptacle, minlength=len(RECEPTACLES))
    correct_spots = (preferences.correct * capacity[:, None]).sum(0)
    return (correct_spots >= SLOTS) & (preferences.misplaced & (capacity[:, None] > 0)).any(0)


def draw(key: jax.Array, objects: jax.Array, misplaced: jax.Array, preferences: Preferences, tables: Tables) -> Start:
    """A random episode: objects are sampled one after another from the categories that are left, and each gets a
    receptacle, by the softmax of the reference, and a free spot of it. A category for whose next object no receptacle
    has room is passed over, and if none has, as for very small tables of preferences, there is one object less.

    **Arguments:** `objects` and `misplaced`, int32 `[2]`, the bounds of their numbers; `preferences`, with the
    apartment's receptacles as places.
    """
    allowed, spots = eligible(preferences, tables), tables.spots
    capacity = np.minimum(np.bincount(spots.receptacle, minlength=len(RECEPTACLES)), PER_RECEPTACLE)
    ranks = np.stack([preferences.tidy.T, preferences.untidy.T])
    ranks = np.where(capacity > 0, ranks, 0)
    logits = np.where(ranks > 0, -ranks / TEMPERATURE, -np.inf).astype(np.float32)  # [correct or misplaced, N, R]
    fits = words(ranks > 0)
    kinds, places = len(allowed), len(RECEPTACLES)
    cells = np.flatnonzero(tables.walkable).astype(np.int32)

    # one draw for everything: each call of jax.random takes a second to compile, as does each sort
    sizes = (3, kinds, SLOTS, SLOTS * places, SLOTS * len(spots))
    lots = jax.random.uniform(key, (sum(sizes),), jnp.float32)
    numbers, tickets, order, by_place, by_spot = jnp.split(lots, np.cumsum(sizes)[:-1])
    count, bad = (
        low + jnp.minimum((lot * (high - low + 1)).astype(jnp.int32), high - low)
        for lot, (low, high) in zip(numbers, (objects, misplaced))
    )
    present = np.arange(SLOTS) < count
    order = jnp.where(present, order, 2)
    wrong = (jnp.sum(order[None] < order[:, None], axis=1) < bad).astype(jnp.int32)

    def place_object(carry, item):
        load, occupied, left = carry
        wrong, present, by_place, by_spot = item
        room = load < capacity
        possible = left & jnp.any(jnp.asarray(fits)[wrong] & _bits(room) != 0, axis=-1)
        kind = jnp.argmax(jnp.where(possible, tickets, -1))
        valid = present & jnp.any(possible)
        gumbel = -jnp.log(-jnp.log(jnp.maximum(by_place, np.finfo(np.float32).tiny)))
        receptacle = jnp.argmax(jnp.where(room, jnp.asarray(logits)[wrong, kind] + gumbel, -jnp.inf))
        free = (jnp.asarray(spots.receptacle) == receptacle) & ~occupied
        spot = jnp.argmax(jnp.where(free, by_spot, -1))
        load = load + (valid & (np.arange(places) == receptacle))
        occupied = occupied | valid & (np.arange(len(spots)) == spot)
        left = left & ~(valid & (np.arange(kinds) == kind))
        placement = jnp.where(valid, kind, -1), jnp.where(valid, spot, ABSENT)
        return (load, occupied, left), tuple(x.astype(jnp.int16) for x in placement)

    blank = jnp.zeros(places, jnp.int32), jnp.zeros(len(spots), bool), jnp.asarray(allowed)
    items = wrong, present, by_place.reshape(SLOTS, -1), by_spot.reshape(SLOTS, -1)
    _, (category, spot) = tracing.scan(place_object, blank, items)
    pose = jnp.minimum((numbers[2] * (len(cells) * 4)).astype(jnp.int32), len(cells) * 4 - 1)
    return Start(category, spot, jnp.asarray(cells)[pose // 4], pose % 4)


def _bits(mask: jax.Array) -> jax.Array:
    """A bool array `[n]` as words of 32 bits, as `tables.words` makes them on the host."""
    count = -(-mask.shape[0] // 32)
    bits = jnp.pad(mask, (0, count * 32 - mask.shape[0])).reshape(count, 32).astype(jnp.uint32)
    return jnp.sum(bits << np.arange(32, dtype=np.uint32), axis=1, dtype=jnp.uint32)


@functools.cache
def _tasks() -> dict[str, Any]:
    return json.loads(TASKS.read_text())


def task(number: int, preferences: Preferences, tables: Tables) -> Start:
    """The start of a fixed task.

    **Arguments:** `number`, from 1 to 4.
    **Raises:** `ValueError` for another number, or an object that the preferences lack or have no correct place for.
    """
    names = list(_tasks())
    if str(number) not in names:
        raise ValueError(f"there is no task {number!r}{nearest(str(number), names)} (there are {', '.join(names)})")
    fixed = _tasks()[str(number)]
    category, spot = np.full(SLOTS, -1, np.int16), np.full(SLOTS, ABSENT, np.int16)
    lacking = [name for name, _, _ in fixed["objects"] if name not in preferences.objects]
    if lacking:
        raise ValueError(f"task {number} has the objects {', '.join(lacking)}, which the preferences lack")
    for slot, (name, receptacle, spot_index) in enumerate(fixed["objects"]):
        category[slot] = preferences.objects.index(name)
        spot[slot] = tables.spots.of_receptacle(KEYS.index(receptacle))[spot_index]
        if not preferences.correct[:, category[slot]].any():
            raise ValueError(f"task {number}: the preferences have no correct place in the apartment for {name}")
    y, x = fixed["cell"]
    if preferences.correct.T[category[category >= 0], tables.spots.receptacle[spot[category >= 0]]].all():
        raise ValueError(f"task {number}: by these preferences, no object is misplaced at the start")
    return Start(category, spot, np.int32(y * WIDTH + x), np.int32(fixed["heading"]))
