"""Grids of codes as one-hot vectors, for networks that see symbols, and their products with a kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from envs_jax import spaces, tracing


def plane_sizes(space: spaces.Box) -> tuple[int, ...]:
    """The number of codes of each plane of a grid `[..., planes]`."""
    high = np.broadcast_to(np.asarray(space.high), space.shape).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in high)


def one_hots(grid: Any, sizes: tuple[int, ...]) -> list[Float[Array, "*S N"]]:
    """The planes of a grid `[..., planes]` as one-hot vectors, `[..., n]` each. **Arguments:** `sizes`, of
    `plane_sizes`."""
    return [jax.nn.one_hot(grid[..., i], n) for i, n in enumerate(sizes)]


@struct.dataclass
class Symbols:
    """A grid of codes and further numbers, which stand for one vector: the one-hot vectors of the grid's codes, plane
    after plane and cell after cell, and then the numbers."""

    grid: jax.Array
    """The codes, integers `[B, ..., planes]`; one that is not among its plane's is a vector of zeros."""
    numbers: jax.Array
    """float32 `[B, D]`."""
    sizes: tuple[int, ...] = struct.field(pytree_node=False)
    """The number of codes of each plane."""

    @property
    def width(self) -> int:
        """The length of the vector."""
        return self._cells * sum(self.sizes) + self.numbers.shape[-1]

    @property
    def _cells(self) -> int:
        return int(np.prod(self.grid.shape[1:-1]))

    def vector(self) -> Float[Array, "B width"]:
        """The vector itself."""
        planes = [x.reshape(x.shape[0], -1) for x in one_hots(self.grid, self.sizes)]
        return jnp.concatenate([*planes, self.numbers], axis=-1)

    def rows(self) -> Int[Array, "B K"]:
        """The places of the ones in the vector, int32, one for each cell and plane; `width` for a vector of zeros."""
        codes = self.grid.reshape(self.grid.shape[0], self._cells, -1).astype(jnp.int32)
        found, before = [], 0
        for i, n in enumerate(self.sizes):
            code = codes[..., i]
            place = before + n * np.arange(self._cells, dtype=np.int32) + code
            found.append(jnp.where((code >= 0) & (code < n), place, self.width))
            before += n * self._cells
        return jnp.concatenate(found, axis=-1)

    def product(self, kernel: Float[Array, "width F"]) -> Float[Array, "B F"]:
        """`vector() @ kernel`. On a CPU it is the sum of the rows of the kernel at the ones, which is several times
        faster, with a gradient that adds to these rows only; the sums differ by rounding. Elsewhere, where a product is
        fast and a hundred small operations in sequence are not, it is the product of matrices."""
        if tracing.platform() != "cpu":
            return self.vector() @ kernel
        return summed_rows(kernel, self.rows(), self.numbers)


@jax.custom_vjp
def summed_rows(
    kernel: Float[Array, "N F"], rows: Int[Array, "B K"], numbers: Float[Array, "B D"]
) -> Float[Array, "B F"]:
    """The sum of `K` rows of a kernel, plus the product of `numbers` with its last `D` rows.

    The rows are added one after the other: gathering all, `[B, K, F]`, takes 2 to 4 times as long on a CPU. So does the
    gradient, which otherwise scatters as many.

    **Arguments:** `kernel`; `rows`, of it, from 0; `N` adds nothing; `numbers`.
    """
    start = numbers @ kernel[kernel.shape[0] - numbers.shape[-1] :]

    def add(total, row):
        return total + kernel.at[row].get(mode="fill", fill_value=0), None

    return tracing.scan(add, start, rows.T, unroll=2)[0]


def _forward(kernel, rows, numbers):
    return summed_rows(kernel, rows, numbers), (kernel, rows, numbers)


def _backward(kept, gradient):
    kernel, rows, numbers = kept
    first = kernel.shape[0] - numbers.shape[-1]
    start = jnp.zeros(kernel.shape, gradient.dtype).at[first:].set(numbers.T @ gradient)

    def add(total, row):
        return total.at[row].add(gradient, mode="drop"), None

    of_kernel = tracing.scan(add, start, rows.T, unroll=2)[0].astype(kernel.dtype)
    of_kernel, of_numbers = tracing.cotangents(
        (of_kernel, (gradient @ kernel[first:].T).astype(numbers.dtype)), (kernel, numbers)
    )
    return of_kernel, None, of_numbers


summed_rows.defvjp(_forward, _backward)
