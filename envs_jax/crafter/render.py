"""Pictures of what a player sees, on the device: the world around it by day, at night and asleep, and its items.

As crafter 1.8.3 draws them: 9 x 7 tiles of the world, two rows of items below, and a black border where the size is no
multiple of 9. Pixels are computed as words of 32 bits and split into bytes at the end, so that light and noise take a
few operations per pixel instead of per byte.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt8, UInt32

from envs_jax import tracing
from envs_jax.crafter import constants as c
from envs_jax.crafter.tiles import GRID, Tiles, tiles as tiles_of


COLUMNS, ROWS = c.VIEW
KINDS = len(c.SPRITES) + 1
NIGHT = (0, 16, 64)
"""The colour of the night: half of it in the dark."""
SLEEP = (0, 0, 16)
"""The colour of sleep."""
GRAY = 84
"""Side of a gray frame."""


def _rows(table: Any, ids: Int[Array, "h w"], unit: int) -> UInt32[Array, "y x"]:
    """Tiles side by side: for each row of pixels of each tile one gather of `unit` words."""
    height, width = ids.shape
    rows = ids[:, None, :] * unit + np.arange(unit, dtype=np.int32)[None, :, None]
    return jnp.asarray(table).reshape(-1, unit)[rows].reshape(height * unit, width * unit)


def _split(pixels: UInt32[Array, "y x"]) -> list[Int[Array, "y x"]]:
    """Red, green and blue as int32."""
    return [((pixels >> np.uint32(shift)) & np.uint32(255)).astype(jnp.int32) for shift in (0, 8, 16)]


def _join(channels: list[Int[Array, "y x"]]) -> UInt32[Array, "y x"]:
    red, green, blue = (channel.astype(jnp.uint32) for channel in channels)
    return red | green << np.uint32(8) | blue << np.uint32(16)


def _luma(channels: list[Int[Array, "y x"]]) -> Int[Array, "y x"]:
    """Brightness of integer colours, in Pillow's arithmetic (ITU-R 601-2)."""
    red, green, blue = channels
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@functools.cache
def _vignette(unit: int) -> np.ndarray:
    """The weight of the night's noise in each pixel: little in the middle, float32 `[7 unit, 9 unit]`."""
    x, y = np.linspace(-1, 1, COLUMNS * unit)[None, :], np.linspace(-1, 1, ROWS * unit)[:, None]
    return (1 - np.exp(-0.5 * (x**2 + y**2) / 0.5**2)).astype(np.float32)


def _noise(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "y x"]:
    """Uniform numbers from 32 to 127, by a hash of the pixel's number and 32 random bits.

    `jax.random.uniform` for each pixel would double the cost of an image at night."""
    x = jnp.arange(shape[0] * shape[1], dtype=jnp.uint32).reshape(shape) * np.uint32(0x9E3779B9) + jax.random.bits(
        key, dtype=jnp.uint32
    )
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    x = x ^ x >> np.uint32(16)
    return 32 + (x >> np.uint32(8)).astype(jnp.int32).astype(jnp.float32) * np.float32(95 / 2**24)


def _lit(
    pixels: UInt32[Array, "y x"],
    daylight: Float[Array, ""],
    sleeping: Bool[Array, ""],
    key: Key[Array, ""],
    unit: int,
) -> UInt32[Array, "y x"]:
    """The world in its light: noise below a daylight of 0.5, faded and blue as far as daylight is missing; gray and
    dark for a sleeper. Integer steps are cut off where the package does so."""
    dark = jnp.maximum(2 * (0.5 - daylight), 0) * jnp.asarray(_vignette(unit))
    noise = _noise(key, pixels.shape)
    clear = _split(pixels)
    noisy = [((1 - dark) * channel + dark * noise).astype(jnp.int32) for channel in clear]
    luma = _luma(noisy)
    lit = []
    for channel, night, tint in zip(clear, noisy, NIGHT):
        faded = (luma + np.float32(0.4) * (night - luma)).astype(jnp.int32)
        night_channel = np.float32(0.5) * faded + np.float32(0.5 * tint)
        lit.append((daylight * channel + (1 - daylight) * night_channel).astype(jnp.int32))
    gray = _luma(lit)
    asleep = [(gray + tint) >> 1 for tint in SLEEP]
    return _join([jnp.where(sleeping, a, b) for a, b in zip(asleep, lit)])


def _pixels(
    view: UInt8[Array, "9 7 2"],
    inventory: Int[Array, "16"],
    daylight: Float[Array, ""],
    sleeping: Bool[Array, ""],
    key: Key[Array, ""],
    tiles: Tiles,
) -> UInt32[Array, "size size"]:
    """The image, a word per pixel."""
    unit = tiles.unit
    cells = view[..., 0].astype(jnp.int32) * KINDS + view[..., 1]
    world = _rows(tiles.cells, cells.T, unit)
    # A loop of one turn, or of none in full daylight: its result is computed once, not again for each byte.
    dim = (daylight < 1) | sleeping
    _, world = tracing.while_loop(
        lambda carry: carry[0],
        lambda carry: (jnp.zeros_like(carry[0]), _lit(carry[1], daylight, sleeping, key, unit)),
        (dim, world),
    )
    item_ids = jnp.arange(len(c.ITEMS)) * (c.MAX_COUNT + 1) + inventory
    item_ids = jnp.pad(item_ids, (0, 2 * GRID - len(c.ITEMS))).reshape(2, GRID)
    drawn = jnp.concatenate([world, _rows(tiles.items, item_ids, unit)])
    before = (tiles.size - GRID * unit) // 2
    after = tiles.size - GRID * unit - before
    return jnp.pad(drawn, (before, after))


@functools.cache
def _resampling(size: int, side: int) -> tuple[np.ndarray, int]:
    """Weights of a bilinear resize between centres of pixels, as integers float32 `[side, size]`, and the sum of each
    row: 42 for 64 to 84 pixels."""
    offset = (2 * np.arange(side) + 1) * size - side  # in units of 1 / (2 side) from the centre of the first pixel
    step = 2 * side // np.gcd.reduce(np.append(offset, 2 * side))
    offset = offset * step // (2 * side)
    low, part = offset // step, offset % step
    weights = np.zeros((side, size), np.float32)
    for pixel, weight in ((low, step - part), (low + 1, part)):
        np.add.at(weights, (np.arange(side), np.clip(pixel, 0, size - 1)), weight)
    return weights, int(step)


def draw(
    view: UInt8[Array, "9 7 2"],
    inventory: Int[Array, "16"],
    daylight: Float[Array, ""],
    sleeping: Bool[Array, ""],
    key: Key[Array, ""],
    tiles: Tiles,
) -> UInt8[Array, "size size 3"]:
    """The image of an observation, inside jit.

    **Arguments:** `view`, uint8 `[9, 7, 2]` indexed `[x, y, plane]`: material and what is on it; `inventory`, counts in
    the order of `constants.ITEMS`; `daylight`, 0 to 1; `sleeping`; `key`, of the noise at night; `tiles`, see
    `envs_jax.crafter.tiles.tiles`.
    **Returns:** uint8 `[size, size, 3]`, 64 by default. With the package's textures and full daylight, its own image
    to the byte; at night, one from the same distribution.
    """
    pixels = _pixels(view, inventory, daylight, sleeping, key, tiles)
    return jax.lax.bitcast_convert_type(pixels, jnp.uint8)[..., :3]


def gray(
    view: UInt8[Array, "9 7 2"],
    inventory: Int[Array, "16"],
    daylight: Float[Array, ""],
    sleeping: Bool[Array, ""],
    key: Key[Array, ""],
    tiles: Tiles,
    side: int = GRAY,
) -> UInt8[Array, "side side"]:
    """The gray frame of ELLM's agent (2302.06692): the mean of the three colours, then a bilinear
    resize to 84 x 84, then cut off to integers; inside jit. Of tiles whose image has `side` pixels already, the mean.

    Pixels count as areas whose centres are aligned, as in OpenCV's `INTER_LINEAR`, which the published code calls. All
    numbers are integers, exact in float32. OpenCV's rounded weights put 0.08% of the bytes one lower, where the exact
    result is an integer.
    **Arguments:** as of `draw`; `side`, pixels per side. **Returns:** uint8 `[side, side]`.
    """
    pixels = _pixels(view, inventory, daylight, sleeping, key, tiles)
    red, green, blue = _split(pixels)
    if tiles.size == side:
        return ((red + green + blue) // 3).astype(jnp.uint8)
    weights, step = _resampling(tiles.size, side)
    total = (red + green + blue).astype(jnp.float32)
    exact = jax.lax.Precision.HIGHEST
    frame = jnp.matmul(weights, jnp.matmul(total, weights.T, precision=exact), precision=exact)
    return ((frame + 0.5) * np.float32(1 / (3 * step * step))).astype(jnp.uint8)


@functools.cache
def _program(textures: str, size: int) -> Any:
    return jax.jit(functools.partial(draw, tiles=tiles_of(textures, size)))


def picture(
    view: Any,
    inventory: Any,
    daylight: float = 1.0,
    sleeping: bool = False,
    *,
    key: Key[Array, ""] | None = None,
    unit: int = 32,
    textures: str = "own",
) -> np.ndarray:
    """A larger image for people, on the host.

    **Arguments:** `view`, `inventory`, `daylight`, `sleeping` and `key` as of `draw` (without a key, the noise of a
    night is always the same); `unit`, pixels per side of a tile; `textures`, `"own"` or `"crafter"`.
    **Returns:** uint8 `[9 unit, 9 unit, 3]`.
    """
    drawn = _program(textures, GRID * unit)(
        jnp.asarray(view),
        jnp.asarray(inventory),
        jnp.float32(daylight),
        jnp.asarray(sleeping, bool),
        jax.random.key(0) if key is None else key,
    )
    return np.asarray(drawn)
