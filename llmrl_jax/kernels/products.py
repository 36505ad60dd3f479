"""Small products of networks for which XLA's own form is slow on a CPU, and a part of a network's gradient there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


THIN = 8
"""Columns of a matrix up to which `thin_matmul` computes one matrix-vector product for each."""


def thin_matmul(x: Float[Array, "*b i"], kernel: Float[Array, "i o"]) -> Float[Array, "*b o"]:
    """`x @ kernel`, column by column if there are few: XLA's gradients of thin matrices are slow on a CPU."""
    if kernel.shape[-1] > THIN:
        return x @ kernel
    return jnp.stack([x @ kernel[:, i] for i in range(kernel.shape[-1])], axis=-1)


def convolution_reference(x: Float[Array, "N H W C"], kernel: Float[Array, "K K C D"]) -> Float[Array, "N h w D"]:
    """`convolve` by XLA's convolution."""
    border = [(1, 1), (1, 1)]
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), border, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolve(x: Float[Array, "*N H W C"], kernel: Float[Array, "K K C D"]) -> Float[Array, "*N h w D"]:
    """A convolution with stride 1 and zero padding of 1, as one matrix product of patches and weights.

    XLA's convolution is 85 times slower on a CPU if its gradient is computed in a loop, as in PPO. A kernel of size 3
    keeps the height and width; one of size 2 adds 1 to both.
    """
    size = kernel.shape[0]
    height, width = (n + 3 - size for n in x.shape[-3:-1])
    bordered = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
    shifted = [bordered[..., i : i + height, j : j + width, :] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])
