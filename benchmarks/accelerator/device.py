"""What the device reaches in the two simplest programs: a product of matrices, and a pass over memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.accelerator.record import Case, Measured, Settings, clocked
from benchmarks.accelerator.shapes import dtype


TIMES = 10
"""Products, or passes, per call: the time of the call itself is then small."""


def products(size: int) -> Measured:
    """`TIMES` products of square matrices of random numbers, one after the other."""
    first, second = jax.random.normal(jax.random.key(0), (2, size, size)).astype(dtype())
    second /= size**0.5  # numbers keep their size

    def chain(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, TIMES, lambda _, x: x @ y, x)

    times, took, *_ = clocked(chain, first, second)
    return Measured(times, took, TIMES, "products", flop=2.0 * size**3 * TIMES, flop_formula="2 n^3 per product")


def passes(numbers: int) -> Measured:
    """`TIMES` passes that read an array and write another of its size."""
    x = jnp.zeros(numbers, dtype())
    times, took, *_ = clocked(lambda x: jax.lax.fori_loop(0, TIMES, lambda _, x: x + 1, x), x)
    bytes_ = 2.0 * x.nbytes * TIMES
    return Measured(times, took, TIMES, "passes", bytes=bytes_, bytes_formula="bytes read plus bytes written")


def cases(settings: Settings) -> Iterator[Case]:
    """Matrix products and copies."""
    size, numbers = (128, 1 << 16) if settings.tiny else (8192, 1 << 30)
    shape = {"dtype": dtype().name}
    yield Case(f"products of {size} x {size} matrices", shape | {"n": size}, partial(products, size), expected=5)
    yield Case(f"passes over {numbers:,} numbers", shape | {"numbers": numbers}, partial(passes, numbers), expected=5)
