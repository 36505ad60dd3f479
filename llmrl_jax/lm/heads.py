"""Heads that read the hidden state of the last prompt token."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class ValueHead(nn.Module):
    """Two layers and a number; with sigmoids, GLAM's critic (glam reference, section 3.2).

    float32 whatever comes in; the weights are flax's default (LeCun normal), the biases zero. Two sigmoids in a row
    pass on a hundredth of what varies, so that such a critic learns slowly; `relu` does not have that trouble.
    """

    width: int = 1024
    """Units of each of the two layers."""
    activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Between the layers."""
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b"]:
        """The value of each state."""
        activate = getattr(nn, self.activation)
        x = hidden.astype(jnp.float32)
        for name in ("hidden_1", "hidden_2"):
            x = activate(nn.Dense(self.width, name=name, param_dtype=self.param_dtype)(x))
        return nn.Dense(1, name="value", param_dtype=self.param_dtype)(x)[..., 0]
