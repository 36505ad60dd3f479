"""Worlds of Crafter by the rules of the package crafter 1.8.3, generated on the device.

A world is a function of the seed of its noise and of uniform numbers. `generate` draws both from a key; `build` takes
them, so that a test can hand it those of the package. The package draws a uniform number only where a rule needs one;
here every cell has one for each rule. The law is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from envs_jax.batching import batched_as_single
from envs_jax.crafter import constants as c
from envs_jax.crafter.noise import Layer, permutation, sample, tiled, untiled
from envs_jax.crafter.state import word


LAYERS = {
    "start": Layer(3, 8),
    "water": Layer(15, 3),
    "fine water": Layer(5, 3),
    "mountain": Layer(15, 0),
    "fine mountain": Layer(5, 0),
    "cave": Layer(7, 6),
    "horizontal tunnel": Layer(3, 7, (2, 1), (1, 5)),
    "vertical tunnel": Layer(3, 7, (1, 2), (5, 1)),
    "coal": Layer(8, 1),
    "iron": Layer(6, 2),
    "lava": Layer(5, 6),
    "sand": Layer(9, 4),
    "tree": Layer(7, 5),
}
"""The noise that the rules ask for, by what it decides."""

START = (c.AREA // 2, c.AREA // 2)
"""The player's first cell (x, y)."""

BLOCK = 16
"""Worlds that are generated together: with more, what they need does not fit into a CPU's caches."""
PARTS = 8
"""Parts of the world whose cells are computed together."""

DRAWS = ("coal or tree", "iron", "diamond", "cow or skeleton", "zombie")
"""Uniform numbers per cell, one for each rule; rules of which a cell meets at most one share a number."""


class World(NamedTuple):
    """The start of an episode; see `envs_jax.crafter.state.State` for the fields."""

    material: UInt8[Array, "4096"]
    slots: UInt32[Array, " S"]
    used: Int[Array, ""]
    touched: UInt32[Array, "2"]
    room: UInt8[Array, "72"]
    lost: Int[Array, ""]
    """Creatures that found no slot."""


def generate(key: jax.Array, slots: int) -> World:
    """A random world. Under `vmap`, worlds are generated in blocks of `BLOCK`.

    **Arguments:** `key`, a typed PRNG key; `slots`, S, static: a world has 51 creatures on average and seldom over 75.
    """
    return _generator(slots)(key)


@functools.cache
def _generator(slots: int) -> Callable[[jax.Array], World]:
    def generate_one(key):
        noise_key, draw_key = jax.random.split(key)
        seed = jax.random.randint(noise_key, (), 0, 2**31 - 1, jnp.int32)
        draws = jax.random.uniform(draw_key, (len(DRAWS), c.CELLS), jnp.float32)
        return build(seed, draws, slots)

    def generate_batch(keys):
        count = keys.shape[0]
        steps = -(-count // BLOCK)
        size = -(-count // steps)
        # a block has every `steps`th world, so that rows that are split over devices stay where they are
        blocks = keys[np.arange(size * steps) % count] if size * steps > count else keys
        blocks = blocks.reshape(size, steps).swapaxes(0, 1)
        worlds = jax.lax.map(jax.vmap(generate_one), blocks)
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:count], worlds)

    return batched_as_single(generate_batch)


def build(seed: Int[Array, ""], draws: Float[Array, "5 4096"], slots: int) -> World:
    """The world of the package's noise for a seed, and of uniform numbers in [0, 1).

    **Arguments:** `seed`, from 0 to 2^31 - 2; `draws`, by `DRAWS` and by cell in the order of tiles, see `noise.tiled`;
    `slots`, S."""
    noise = sample(tuple(LAYERS.values()), permutation(seed))
    distance = jnp.asarray(_distance(), jnp.float32)
    # XLA computes what is cheap again for each of its uses, and all of this is cheap: a loop computes it once
    parts = [x.reshape(*x.shape[:-1], PARTS, -1) for x in (noise, draws, distance)]
    parts = [jnp.moveaxis(x, -2, 0) for x in parts]
    material, kind = (untiled(x.reshape(-1)) for x in jax.lax.map(lambda part: cells(*part), parts))
    words, used, lost = placed(kind, slots)
    start = np.arange(c.CELLS) == START[0] * c.AREA + START[1]
    occupied = jnp.pad(per_chunk((kind > 0) | start) > 0, (0, 64 - c.CHUNKS**2)).reshape(2, 32)
    return World(
        material=material,
        slots=words,
        used=used,
        touched=jnp.sum(occupied.astype(jnp.uint32) << np.arange(32, dtype=np.uint32), 1, dtype=jnp.uint32),
        room=jnp.concatenate([per_chunk(material == c.GRASS), per_chunk(material == c.PATH)]).astype(jnp.uint8),
        lost=lost,
    )


def heights(noise: Mapping[str, Array], distance: Array) -> tuple[Array, Array, Array]:
    """The quantities that decide between grass, water and mountains.

    **Arguments:** `noise`, by the names of `LAYERS`, and `distance` to the player's first cell, float32 `[N]`.
    **Returns:** the nearness of the start in [0, 1], the amount of water and the height of the mountain, float32 `[N]`.
    """
    start = jax.nn.sigmoid(4 - distance + 2 * noise["start"])
    water = noise["water"] + 0.15 * noise["fine water"] + 0.1 - 2 * start
    mountain = (noise["mountain"] + 0.3 * noise["fine mountain"]) / 1.3 - (4 * start + 0.3 * water)
    return start, water, mountain


def cells(
    noise: Float[Array, "13 N"], draws: Float[Array, "5 N"], distance: Float[Array, " N"]
) -> tuple[UInt8[Array, " N"], UInt8[Array, " N"]]:
    """The material of some cells, and the kind of the creature that starts there, 0 for none.

    **Arguments:** `noise`, by layer of `LAYERS`; `draws`, by `DRAWS`; `distance` to the player's first cell."""
    named, draw = dict(zip(LAYERS, noise)), dict(zip(DRAWS, draws))
    material, tunnels = terrain(named, draw, distance)
    grass, path = material == c.GRASS, material == c.PATH
    kind = _first(
        ((distance > 3) & grass & (draw["cow or skeleton"] > 0.985), c.COW),
        ((distance > 10) & (grass | path | (material == c.SAND)) & (draw["zombie"] > 0.993), c.ZOMBIE),
        (path & tunnels & (draw["cow or skeleton"] > 0.95), c.SKELETON),
        default=0,
    )
    return material, kind


def terrain(
    noise: Mapping[str, Array], draw: Mapping[str, Array], distance: Array
) -> tuple[UInt8[Array, " N"], Bool[Array, " N"]]:
    """The material of some cells, and whether they were dug as a tunnel, where skeletons live."""
    start, water, mountain = heights(noise, distance)
    high = mountain > 0.3
    cave = (noise["cave"] > 0.15) & high
    tunnel = ~cave & ((noise["horizontal tunnel"] > 0.4) | (noise["vertical tunnel"] > 0.4))
    rock = _first(
        (cave | tunnel, c.PATH),
        ((noise["coal"] > 0) & (draw["coal or tree"] > 0.85), c.COAL),
        ((noise["iron"] > 0.4) & (draw["iron"] > 0.75), c.IRON),
        ((mountain > 0.18) & (draw["diamond"] > 0.994), c.DIAMOND),
        (high & (noise["lava"] > 0.35), c.LAVA),
        default=c.STONE,
    )
    near_start, rocky = start > 0.5, mountain > 0.15
    material = _first(
        (near_start, c.GRASS),
        (rocky, rock),
        ((0.25 < water) & (water <= 0.35) & (noise["sand"] > -0.2), c.SAND),
        (0.3 < water, c.WATER),
        ((noise["tree"] > 0) & (draw["coal or tree"] > 0.8), c.TREE),
        default=c.GRASS,
    )
    return material, ~near_start & rocky & tunnel


def _first(*rules: tuple[Array, Any], default: int) -> UInt8[Array, " N"]:
    """The value of the first rule that holds in a cell. (`jnp.select` searches for it with a reduction, which takes
    longer here than everything else together.)"""
    result: Any = jnp.uint8(default)
    for holds, value in reversed(rules):
        result = jnp.where(holds, jnp.asarray(value, jnp.uint8), result)
    return result


def placed(kind: UInt8[Array, "4096"], slots: int) -> tuple[UInt32[Array, " S"], Int[Array, ""], Int[Array, ""]]:
    """New creatures in slots, in the order in which the package creates them: that of cells.

    **Arguments:** `kind` of the creature of every cell, 0 for none; `slots`, S.
    **Returns:** the slots, how many are used, and how many creatures found none.
    """
    health = np.zeros(len(c.KINDS) + 1, np.uint32)
    health[list(c.HEALTH_OF)] = list(c.HEALTH_OF.values())
    words = word(np.arange(c.CELLS), kind, jnp.asarray(health)[kind])
    count = jnp.cumsum(kind > 0, dtype=jnp.int32)
    index = jnp.where(kind > 0, count - 1, slots)
    filled = jnp.zeros(slots, jnp.uint32).at[index].set(words, mode="drop")
    return filled, jnp.minimum(count[-1], slots), jnp.maximum(count[-1] - slots, 0)


def per_chunk(cells: Bool[Array, "4096"]) -> Int[Array, "36"]:
    """The number of cells of every chunk for which something holds, int32."""
    side = c.CHUNK * c.CHUNKS
    square = jnp.pad(cells.reshape(c.AREA, c.AREA), ((0, side - c.AREA),) * 2)
    shape = (c.CHUNKS, c.CHUNK, c.CHUNKS, c.CHUNK)
    return jnp.sum(square.reshape(shape), (1, 3), dtype=jnp.int32).reshape(-1)


def _distance() -> np.ndarray:
    """The distance of every cell to the player's first one, in the order of tiles; float64 `[4096]`."""
    x, y = np.divmod(tiled(np.arange(c.CELLS)), c.AREA)
    return np.sqrt((x - START[0]) ** 2 + (y - START[1]) ** 2)
