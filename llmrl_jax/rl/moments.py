"""Running means and variances on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class Moments:
    """The mean and variance of all samples so far, per entry."""

    mean: jax.Array
    var: jax.Array
    """Of the population: squared deviations over the count."""
    count: Float[Array, ""]

    @classmethod
    def start(cls, shape: tuple[int, ...] = ()) -> Moments:
        """Mean 0 and variance 1, with the weight of 1e-4 samples, so that the first real sample replaces them."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.float32(1e-4))

    def update(self, x: Float[Array, "..."]) -> Moments:
        """The moments with more samples (Chan, Golub and LeVeque, 1979): all axes of `x` before the last `mean.ndim`
        are sample axes."""
        samples = x.reshape(-1, *self.mean.shape)
        n = jnp.float32(samples.shape[0])
        mean, total = jnp.mean(samples, axis=0), self.count + n
        apart = mean - self.mean
        squares = self.var * self.count + jnp.var(samples, axis=0) * n + apart**2 * (self.count * n / total)
        return Moments(self.mean + apart * (n / total), squares / total, total)

    def normalize(self, x: jax.Array, clip: float | jax.Array) -> jax.Array:
        """Deviations from the mean in standard deviations, clipped to `[-clip, clip]`."""
        return jnp.clip((x - self.mean) / jnp.sqrt(self.var + 1e-8), -clip, clip)
