"""Tokens in short arrays: taken from rows and put back, beside NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from llmrl_jax.multiturn.places import Places


def test_tokens_are_taken_and_put_back():
    rng = np.random.default_rng(0)
    mask = rng.random((5, 20)) < np.array([0.0, 0.2, 0.3, 0.1, 0.4])[:, None]
    part = mask & (rng.random(mask.shape) < 0.5)
    x = rng.normal(size=(*mask.shape, 3)).astype(np.float32)
    most = int(mask.sum(1).max())
    places, parts = Places.of(jnp.asarray(mask), most), Places.of(jnp.asarray(part), most)
    taken, indices = np.asarray(places.take(jnp.asarray(x))), np.asarray(parts.within(places))
    for row in range(len(mask)):
        count, inner = int(mask[row].sum()), int(part[row].sum())
        np.testing.assert_array_equal(taken[row, :count], x[row][mask[row]])
        np.testing.assert_array_equal(taken[row, indices[row, :inner]], x[row][part[row]])
    np.testing.assert_array_equal(places.spread(jnp.asarray(taken[..., 0])), np.where(mask, x[..., 0], 0))
    assert places.overflow == 0 and Places.of(jnp.asarray(mask), most - 2).overflow == 2
