"""The operations of a layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm.attention import Source, attend


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("masks", [(5, 7), (2, 5, 7), (1, 5, 7), (2, 1, 7), None])
def test_attention_over_one_source_has_the_value_and_the_gradient_of_its_halves(dtype, masks):
    """Of one source the gradient is written out, of several it is derived; also where a query sees no key."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    query, key, value, weight = drawn(2, 5, 6, 4), drawn(2, 7, 3, 4), drawn(2, 7, 3, 4), drawn(2, 5, 6, 4)
    mask = None if masks is None else rng.random(masks) < 0.7
    if mask is not None:
        mask[..., -1, :] = False

    def source(key, value, part):
        own = None if mask is None else jnp.asarray(mask[..., part])
        return Source(key[:, part], value[:, part], own)

    def one(query, key, value):
        return jnp.sum(weight * attend(query, [source(key, value, slice(None))]))

    def halves(query, key, value):
        parts = [source(key, value, part) for part in (slice(None, 4), slice(4, None))]
        return jnp.sum(weight * attend(query, parts))

    found, wanted = (jax.value_and_grad(f, argnums=(0, 1, 2))(query, key, value) for f in (one, halves))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(np.float32(x), np.float32(y), atol=2e-6 if dtype == jnp.float32 else 0.06)
