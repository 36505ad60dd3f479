"""Gradient steps: clipping, Adam and microbatches by hand; small trees as one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, make_dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from llmrl_jax.kernels.flat_tree import FlatTree
from llmrl_jax.rl.gradient import (
    accumulate,
    apply_gradients,
    clip,
    clipped_adam,
    in_parts,
    linear_decay,
    traced_floats,
)


GRADS = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
"""Of global norm 5."""


def test_clipping_by_hand():
    for limit, scale in ((1.0, 0.2), (5.0, 1.0), (9.0, 1.0), (math.inf, 1.0)):
        clipped = clip(GRADS, jnp.float32(limit))
        np.testing.assert_allclose(clipped["a"], [3 * scale, 0], rtol=1e-6)
        np.testing.assert_allclose(clipped["b"], [[4 * scale]], rtol=1e-6)
    zeros = jax.tree.map(jnp.zeros_like, GRADS)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(clip(zeros, 1.0)))


def test_a_step_of_adam_by_hand():
    """The first direction of Adam is `g / (|g| + eps)`, whatever the decays are."""
    hparams = {"max_grad_norm": 1.0, "adam_b1": 0.9, "adam_b2": 0.99, "adam_eps": 0.2}
    params = jax.tree.map(jnp.ones_like, GRADS)
    optimizer = clipped_adam(hparams)
    state = optimizer.init(params)
    assert isinstance(state, optax.ScaleByAdamState)
    params, state, norm = apply_gradients(optimizer, params, GRADS, state, 0.5)
    assert float(norm) == pytest.approx(5)  # as given, before clipping to (0.6, 0, 0.8)
    np.testing.assert_allclose(params["a"], [1 - 0.5 * 0.6 / 0.8, 1], rtol=1e-5)
    np.testing.assert_allclose(params["b"], [[1 - 0.5 * 0.8 / 1.0]], rtol=1e-5)
    assert int(state.count) == 1


def test_parameters_keep_their_dtype():
    half = {"w": jnp.ones(2, jnp.bfloat16)}
    after, _, _ = apply_gradients(optax.identity(), half, half, optax.identity().init(half), jnp.float32(0.5))
    assert after["w"].dtype == jnp.bfloat16 and np.all(np.asarray(after["w"], np.float32) == 0.5)


def test_moments_of_bfloat16_parameters_are_float32():
    """A step of Adam is that of float32 parameters with the same gradients, rounded; moments keep small gradients."""
    hparams = {"max_grad_norm": jnp.float32(9.0), "adam_b1": jnp.float32(0.9), "adam_b2": jnp.float32(0.99)}
    optimizer, found = clipped_adam({**hparams, "adam_eps": jnp.float32(1e-5)}), []
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {name: x.astype(dtype) for name, x in GRADS.items()}
        tree = FlatTree(params)
        flat, state = tree.flatten(params), tree.flatten_moments(optimizer.init(params))
        for _ in range(2):
            flat, state, _ = apply_gradients(optimizer, flat, tree.flatten(params), state, jnp.float32(0.5))
        params, state = tree.restore(flat), tree.restore_moments(state)
        assert all(x.dtype == dtype for x in jax.tree.leaves(params))
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((state.mu, state.nu)))
        assert jax.tree.map(jnp.shape, state.mu) == jax.tree.map(jnp.shape, GRADS)
        found.append((params, state.mu, state.nu))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.astype(jnp.float32), rtol=2**-7), *found)


@pytest.mark.parametrize("axis", [0, 1])
def test_part_j_has_the_rows_j_and_j_plus_count(axis):
    x = jnp.arange(24).reshape(6, 4) if axis == 0 else jnp.arange(24).reshape(4, 6)
    parts = in_parts({"x": x}, 3, axis)["x"]
    assert parts.shape == ((3, 2, 4) if axis == 0 else (3, 4, 2))
    for j in range(3):
        np.testing.assert_array_equal(parts[j], np.take(x, [j, j + 3], axis))


def test_gradients_of_parts_add_up():
    rows, weights = jax.random.normal(jax.random.key(0), (6, 2)), jnp.array([1.0, -2.0])

    def loss(weights, rows):
        return jnp.sum((rows @ weights) ** 2)

    def part(rows):
        return jax.grad(loss)(weights, rows), loss(weights, rows)

    total, losses = accumulate(part, jnp.zeros(2), in_parts(rows, 3))
    np.testing.assert_allclose(total, jax.grad(loss)(weights, rows), rtol=1e-5)
    assert losses.shape == (3,)
    np.testing.assert_allclose(jnp.sum(losses), loss(weights, rows), rtol=1e-5)


def test_a_linear_schedule_ends_at_zero():
    assert [float(linear_decay(jnp.int32(i), 4)) for i in (0, 1, 4, 9)] == [1, 0.75, 0, 0]


@dataclass(frozen=True)
class Mixed:
    rate: float = 0.5
    count: int = 3
    limit: float = math.inf


def test_only_floats_are_traced():
    found = traced_floats(Mixed())
    assert set(found) == {"rate", "limit"} and all(x.dtype == jnp.float32 and x.shape == () for x in found.values())


@pytest.mark.parametrize("limit, traced", [(2.0, {"rate", "scale", "limit"}), (None, {"rate", "scale"})])
def test_annotations_are_resolved(limit, traced):
    """As in a module without `from __future__ import annotations`; an optional float may be none."""
    fields = [
        ("rate", float, 0.5),
        ("count", int, 3),
        ("limit", float | None, limit),
        ("scale", Annotated[float, "unit"], 2.0),
        ("flag", bool, True),
        ("schedule", str | None, "linear"),
    ]
    found = traced_floats(make_dataclass("Plain", fields, frozen=True)())
    assert set(found) == traced and all(x.dtype == jnp.float32 and x.shape == () for x in found.values())
    assert float(found["scale"]) == 2.0
