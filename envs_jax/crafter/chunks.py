"""Cells and chunks: their numbers, the chunks that held an object, the ground that each chunk has."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from envs_jax.crafter import constants as c
from envs_jax.crafter.state import xy


def cell_index(cell: Int[Array, "2"]) -> Int[Array, ""]:
    """The number of a cell (x, y) inside the world."""
    return cell[0] * c.AREA + cell[1]


def chunk_of(cell: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """The chunk of a cell by number."""
    x, y = xy(cell)
    return (x * 43 >> 9) * c.CHUNKS + (y * 43 >> 9)  # x // 12 for x < 64, without a division


def chunk_bits(chunk: Int[Array, "*n"], selected: Bool[Array, "*n"]) -> tuple[UInt32[Array, "*n"], UInt32[Array, "*n"]]:
    """A chunk as bits of the two words of `State.touched`; no bit where `selected` is false."""
    bit = jnp.uint32(1) << (chunk % 32).astype(jnp.uint32)
    low = selected & (chunk < 32)
    return jnp.where(low, bit, 0).astype(jnp.uint32), jnp.where(selected & ~low, bit, 0).astype(jnp.uint32)


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
