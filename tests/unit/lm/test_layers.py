"""The operations of a layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.lm.layers import Source, attend


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("each", [False, True])
def test_attention_over_one_source_has_the_value_and_the_gradient_of_its_halves(dtype, each):
    """Of one source the gradient is written out, of several it is derived."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), dtype)

    query, key, value, weight = drawn(2, 5, 6, 4), drawn(2, 7, 3, 4), drawn(2, 7, 3, 4), drawn(2, 5, 6, 4)
    mask = rng.random((2, 5, 7) if each else (5, 7)) < 0.7
    mask[..., 0] = mask[..., 5] = True

    def one(query, key, value):
        return jnp.sum(weight * attend(query, [Source(key, value, jnp.asarray(mask))]))

    def halves(query, key, value):
        cuts = (slice(None, 4), slice(4, None))
        return jnp.sum(
            weight * attend(query, [Source(key[:, c], value[:, c], jnp.asarray(mask[..., c])) for c in cuts])
        )

    found, wanted = (jax.value_and_grad(f, argnums=(0, 1, 2))(query, key, value) for f in (one, halves))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype == dtype
        np.testing.assert_allclose(np.float32(x), np.float32(y), atol=2e-6 if dtype == jnp.float32 else 0.06)
