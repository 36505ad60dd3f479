"""Angles on the circle."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def wrap(angle: jax.Array) -> jax.Array:
    """The equivalent angle in `[-pi, pi]`, in radians."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))
