"""A function of a batch as a function of one row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.batching import batched_as_single


SEEN: list[int] = []


@batched_as_single
def doubled(keys, parts, shift):
    """Twice each row plus a shift and a draw, by a loop up to the largest row of the batch."""
    SEEN.append(parts["n"].shape[0])
    draws = jax.vmap(jax.random.uniform)(keys)
    longest = jnp.max(parts["n"])
    total = jax.lax.fori_loop(0, longest, lambda i, x: x + jnp.where(i < parts["n"], 2, 0), jnp.zeros_like(parts["n"]))
    return {"sum": total + shift, "draw": draws}


KEYS = jax.random.split(jax.random.key(0), 6)
ROWS = np.arange(6, dtype=np.int32)


def expected(keys, rows):
    return {"sum": 2 * rows + 10, "draw": np.array([jax.random.uniform(key) for key in keys], np.float32)}


def assert_equal(found, wanted):
    for name, x in wanted.items():
        np.testing.assert_array_equal(np.asarray(found[name]).reshape(x.shape), x)


def test_one_row():
    found = doubled(KEYS[3], {"n": jnp.int32(3)}, jnp.int32(10))
    assert found["sum"].shape == ()
    assert_equal(found, {name: x[3] for name, x in expected(KEYS, ROWS).items()})


@pytest.mark.parametrize("lead", [(6,), (2, 3), (3, 1, 2)])
def test_nested_batches_become_one(lead):
    """Keys and arrays of any number of batch axes, and an argument without one."""
    function = lambda key, n: doubled(key, {"n": n}, jnp.int32(10))  # noqa: E731
    for _ in lead:
        function = jax.vmap(function)
    SEEN.clear()
    found = jax.jit(function)(KEYS.reshape(lead), jnp.asarray(ROWS).reshape(lead))
    assert found["sum"].shape == lead and SEEN[-1] == 6
    assert_equal(found, expected(KEYS, ROWS))


def test_inside_a_scan():
    def step(total, n):
        return total + jax.vmap(lambda key, n: doubled(key, {"n": n}, n)["sum"])(KEYS, n), None

    total, _ = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(6, jnp.int32), jnp.stack([jnp.asarray(ROWS)] * 2)))()
    np.testing.assert_array_equal(total, 2 * 3 * ROWS)
