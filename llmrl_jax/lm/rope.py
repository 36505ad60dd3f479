"""Rotary position embedding and its five frequency scalings, in float32 as in Hugging Face."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llmrl_jax.lm.config import LlamaConfig


def _plain(theta: float, dim: int) -> np.ndarray:
    # Correctly rounded powers, as in torch: one unit in the last place is 1e-4 radians at position 2,000.
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.float32(1.0) / np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)


def _llama3(config: LlamaConfig) -> np.ndarray:
    """Llama 3.1's scaling: long wavelengths multiplied by `factor`, short ones kept, interpolated between."""
    rope = config.rope
    inverse = _plain(rope.theta, config.size)
    old = rope.original(config.max_position_embeddings)
    wavelength = 2 * math.pi / inverse
    smooth = (old / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    interpolated = (1 - smooth) * inverse / rope.factor + smooth * inverse
    scaled = np.where(wavelength > old / rope.low_freq_factor, inverse / rope.factor, inverse)
    middle = (wavelength >= old / rope.high_freq_factor) & (wavelength <= old / rope.low_freq_factor)
    return np.where(middle, interpolated, scaled).astype(np.float32)


def _yarn(config: LlamaConfig) -> tuple[np.ndarray, float]:
    """YaRN (Peng et al. 2023): interpolate slow dimensions, keep fast ones, and sharpen attention by a factor."""
    rope, dim = config.rope, config.size
    old = rope.original(config.max_position_embeddings)

    def dimension(rotations: float) -> float:
        return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / ((high - low) or 0.001), 0, 1)
    extrapolated = _plain(rope.theta, dim)
    inverse = extrapolated / rope.factor * ramp + extrapolated * (1 - ramp)

    def sharpness(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    attention = rope.attention_factor
    if attention is None:
        has_mscales = rope.mscale and rope.mscale_all_dim
        attention = sharpness(rope.mscale) / sharpness(rope.mscale_all_dim) if has_mscales else sharpness(1.0)  # type: ignore[arg-type]
    return inverse.astype(np.float32), attention


def inverse_frequencies(config: LlamaConfig) -> tuple[np.ndarray, float]:
    """The angle per position of each pair of dimensions.

    **Returns:** `(float32 [head_dim / 2], factor)`, where `factor` multiplies cosines and sines (YaRN only).
    """
    rope = config.rope
    if rope.type == "llama3":
        return _llama3(config), 1.0
    if rope.type == "yarn":
        return _yarn(config)
    inverse = _plain(rope.theta, config.size)
    return (inverse / np.float32(rope.factor) if rope.type == "linear" else inverse), 1.0


def rotations(
    config: LlamaConfig, positions: Int[Array | np.ndarray, "*b s"]
) -> tuple[Float[Array, "*b s h"], Float[Array, "*b s h"]]:
    """Cosines and sines of the angles at `positions`; `h` is half of `head_dim`.

    Positions below 0 mark padding and count as 0. With `dynamic` (NTK-aware scaling) a row that is longer than the
    model's positions gets a larger base, from its own largest position, so that a row never depends on its batch.
    (`generate`, `score` and the server refuse longer rows, which only the model itself takes.)
    """
    positions = jnp.maximum(positions, 0)
    inverse, factor = inverse_frequencies(config)
    frequencies: Array = jnp.asarray(inverse)
    if config.rope.type == "dynamic":
        trained, scale, dim = config.max_position_embeddings, config.rope.factor, config.size
        length = jnp.maximum(positions.max(-1, keepdims=True) + 1, trained).astype(jnp.float32)
        stretch = (scale * length / trained - (scale - 1)) ** (dim / (dim - 2))
        exponent = np.arange(0, dim, 2, dtype=np.float32) / dim
        longer = 1.0 / (config.rope.theta * stretch) ** exponent
        frequencies = jnp.where(length > trained, longer, inverse)[..., None, :]
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: Float[Array, "*b s n d"], cos: Float[Array, "*#b s h"], sin: Float[Array, "*#b s h"]) -> jax.Array:
    """Rotate each pair `(x_i, x_{i + d/2})` by its angle; in float32, returned in the dtype of `x`."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
