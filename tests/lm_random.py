"""Random values for a model's collections, from numpy: nothing is compiled."""

from __future__ import annotations

import jax
import numpy as np


def random_variables(model, scale: float = 0.3, seed: int = 0):
    """`{"params", "lora"}` as the model declares them, norm weights about 1, the rest about 0, float32."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return np.asarray(mean + scale * rng.standard_normal(leaf.shape), np.float32)

    return jax.tree_util.tree_map_with_path(draw, model.abstract())
