"""Trees as vectors, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from llmrl_jax.kernels.flat_tree import FlatTree


TREE = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}


def test_a_small_tree_is_one_vector_and_back():
    flat = FlatTree(TREE)
    np.testing.assert_array_equal(flat.flatten(TREE), [3, 0, 4])
    jax.tree.map(np.testing.assert_array_equal, flat.restore(flat.flatten(TREE)), TREE)
    moments = optax.scale_by_adam().init(TREE)
    assert flat.flatten_moments(moments).mu.shape == (3,)
    assert jax.tree.structure(flat.restore_moments(flat.flatten_moments(moments))) == jax.tree.structure(moments)


@pytest.mark.parametrize(
    ("tree", "allowed"),
    [
        (TREE, False),
        ({"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.bfloat16)}, True),
        ({"a": jax.ShapeDtypeStruct((100_001,), jnp.float32)}, True),
    ],
)
def test_other_trees_stay_as_they_are(tree, allowed):
    flat = FlatTree(tree, allowed=allowed)
    assert not flat.flattens and flat.flatten(tree) is tree and flat.restore(tree) is tree
