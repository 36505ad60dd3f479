"""Heads that read the hidden state of the last prompt token."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class ValueHead(nn.Module):
    """Two hidden layers and a scalar output; with sigmoids, GLAM's critic (glam reference, section 3.2).

    Computed in float32 for any input dtype; weights have flax's default initialisation (LeCun normal), biases are zero.
    Two sigmoid layers reduce variation a hundredfold, so that such a critic learns slowly; `relu` does not.
    """

    width: int = 1024
    """Units of each of the two layers."""
    activation: Literal["sigmoid", "relu", "tanh"] = "sigmoid"
    """Activation of the hidden layers."""
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "*b D"]) -> Float[Array, "*b"]:
        """The value of each state."""
        activate = getattr(nn, self.activation)
        x = hidden.astype(jnp.float32)
        for name in ("hidden_1", "hidden_2"):
            x = activate(nn.Dense(self.width, name=name, param_dtype=self.param_dtype)(x))
        return nn.Dense(1, name="value", param_dtype=self.param_dtype)(x)[..., 0]
