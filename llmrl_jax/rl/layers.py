"""Layers that flax lacks or that are faster here: convolutions, recurrences, and PyTorch's initial values."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from llmrl_jax.kernels.products import convolve


def uniform(fan_in: int) -> Callable:
    """Uniform within `1 / sqrt(fan_in)`: PyTorch's default initialisation of weights and biases."""
    bound = 1 / math.sqrt(fan_in)
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def unit_columns(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """A Gaussian kernel `[in, out]` in which the weights of every output have norm 1, as in BabyAI's networks."""
    kernel = jax.random.normal(key, shape, dtype)
    return kernel / jnp.linalg.norm(kernel, axis=0, keepdims=True)


def linear(inputs: int, outputs: int, name: str) -> nn.Dense:
    """A dense layer with PyTorch's initial values."""
    return nn.Dense(outputs, kernel_init=uniform(inputs), bias_init=uniform(inputs), name=name)


class Conv(nn.Module):
    """`convolve` plus a bias, with PyTorch's initial values unless others are given."""

    features: int
    size: int
    kernel_init: Callable | None = None
    bias_init: Callable | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*N H W C"]) -> Float[Array, "*N h w D"]:
        size, channels = self.size, x.shape[-1]
        draw = uniform(channels * size * size)
        kernel = self.param("kernel", self.kernel_init or draw, (size, size, channels, self.features))
        bias = self.param("bias", self.bias_init or draw, (self.features,))
        return convolve(x, kernel) + bias


class GRU(nn.Module):
    """The last state of a GRU over right-padded sequences, with PyTorch's equations and initial values.

    The inputs' contribution to the gates is one product over all positions; only the rest is sequential.
    """

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "B S E"], lengths: Int[Array, " B"]) -> Float[Array, "B D"]:
        """**Arguments:** `x`; `lengths`, the number of valid positions, from the left.
        **Returns:** the state after each row's last position; zeros for an empty row."""
        wide, draw = 3 * self.features, uniform(self.features)
        kernel = self.param("input_kernel", draw, (x.shape[-1], wide))
        bias = self.param("input_bias", draw, (wide,))
        inner_kernel = self.param("state_kernel", draw, (self.features, wide))
        inner_bias = self.param("state_bias", draw, (wide,))
        inputs = jnp.moveaxis(x @ kernel + bias, 1, 0)
        counts = jnp.arange(x.shape[1])[:, None] < lengths

        def step(state, at):
            given, count = at
            reset_in, update_in, new_in = jnp.split(given, 3, axis=-1)
            reset_of, update_of, new_of = jnp.split(state @ inner_kernel + inner_bias, 3, axis=-1)
            update = nn.sigmoid(update_in + update_of)
            new = nn.tanh(new_in + nn.sigmoid(reset_in + reset_of) * new_of)
            return jnp.where(count[:, None], (1 - update) * new + update * state, state), None

        return tracing.scan(step, jnp.zeros((x.shape[0], self.features)), (inputs, counts))[0]


class LSTM(nn.Module):
    """An LSTM along the leading axis, reset where an episode starts, with PyTorch's equations and initial values."""

    features: int
    truncate: int
    """Maximum number of steps of backpropagation through time: no gradient passes from one segment of `truncate` steps
    to the one before it."""

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "T B E"],
        carry: tuple[Float[Array, "B D"], Float[Array, "B D"]],
        first: Bool[Array, "T B"],
    ) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Float[Array, "T B D"]]:
        """**Arguments:** `x`; `carry`, the hidden state and the cell before the first step; `first`.
        **Returns:** the carry after the last step, and the hidden states."""
        wide, draw = 4 * self.features, uniform(self.features)
        kernel = self.param("input_kernel", draw, (x.shape[-1], wide))
        bias = self.param("input_bias", draw, (wide,))
        inner_kernel = self.param("state_kernel", draw, (self.features, wide))
        inner_bias = self.param("state_bias", draw, (wide,))

        def step(carry, at):
            given, first, cut = at
            carry = jax.tree.map(lambda s: jnp.where(first[:, None], 0.0, s), carry)
            hidden, cell = jax.tree.map(lambda s: jnp.where(cut, jax.lax.stop_gradient(s), s), carry)
            inlet, forget, new, outlet = jnp.split(given + hidden @ inner_kernel + inner_bias, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(inlet) * nn.tanh(new)
            hidden = nn.sigmoid(outlet) * nn.tanh(cell)
            return (hidden, cell), hidden

        cuts = jnp.arange(x.shape[0]) % self.truncate == 0
        return tracing.scan(step, carry, (x @ kernel + bias, first, cuts))
