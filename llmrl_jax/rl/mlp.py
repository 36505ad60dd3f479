"""Multilayer perceptrons as plain trees of arrays, and ensembles of them: the networks of the offline learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Float

from llmrl_jax.kernels.products import thin_matmul
from llmrl_jax.rl.layers import uniform


def init_mlp(key: jax.Array, inputs: int, hidden: Sequence[int], outputs: int) -> list[dict[str, jax.Array]]:
    """The layers of an MLP with PyTorch's initial values, each `{"kernel": [in, out], "bias": [out]}`."""
    sizes = [inputs, *hidden, outputs]
    layers = []
    for layer, fan_in, fan_out in zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:]):
        one, two = jax.random.split(layer)
        draw = uniform(fan_in)
        layers.append({"kernel": draw(one, (fan_in, fan_out)), "bias": draw(two, (fan_out,))})
    return layers


def mlp(layers: list[dict[str, jax.Array]], x: Float[Array, "*B n"], activation: str = "relu") -> Float[Array, "*B m"]:
    """The outputs of an MLP; `activation`, a name in `jax.nn`, follows every layer but the last."""
    for layer in layers[:-1]:
        x = getattr(jax.nn, activation)(x @ layer["kernel"] + layer["bias"])
    return thin_matmul(x, layers[-1]["kernel"]) + layers[-1]["bias"]


def beside(
    layers: list[dict[str, jax.Array]], x: Float[Array, "B n"], more: jax.Array, activation: str = "relu"
) -> jax.Array:
    """The outputs of an MLP for `x` and `more` side by side, without joining them.

    **Arguments:** `more`, `[B, d]`, or `[B, S, d]`: several for each row of `x`, whose part of the first layer is then
    computed once. **Returns:** `[B, m]` or `[B, S, m]`.
    """
    first, kernel = layers[0], layers[0]["kernel"]
    own = x @ kernel[: x.shape[-1]] + first["bias"]
    own = own[:, None] if more.ndim == 3 else own
    h = getattr(jax.nn, activation)(own + more @ kernel[x.shape[-1] :])
    outputs = mlp(layers[1:], h.reshape(-1, h.shape[-1]), activation)  # one axis of rows: XLA's fastest products
    return outputs.reshape(*more.shape[:-1], -1)


def init_ensemble(key: jax.Array, count: int, inputs: int, hidden: Sequence[int], outputs: int) -> Any:
    """`count` MLPs with different initial values: leaves `[count, ...]`."""
    return jax.vmap(lambda one: init_mlp(one, inputs, hidden, outputs))(jax.random.split(key, count))


def ensemble(layers: Any, x: Float[Array, "*B n"], activation: str = "relu") -> Float[Array, "K *B m"]:
    """The outputs of every member for the same inputs."""
    return jax.vmap(lambda one: mlp(one, x, activation))(layers)
