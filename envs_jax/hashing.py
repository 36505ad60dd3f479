"""Hashes of numbers on the device."""

from __future__ import annotations

import jax
import numpy as np


def mixed_bits(x: jax.Array) -> jax.Array:
    """uint32 numbers, each with its bits mixed: a bijection, the finaliser of MurmurHash3 (Appleby, public domain)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
