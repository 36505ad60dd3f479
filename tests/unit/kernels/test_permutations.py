"""Random orders."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from llmrl_jax.kernels.permutations import PACKED_BELOW, permutations, permutations_reference


@pytest.mark.parametrize("n", [1, 2, 7, 1280, PACKED_BELOW, PACKED_BELOW + 1])
def test_each_row_is_an_order(n):
    orders = np.asarray(permutations(jax.random.key(0), 3, n))
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    if n < 100:  # above it some of the bits that packed words have tie
        np.testing.assert_array_equal(orders, permutations_reference(jax.random.key(0), 3, n))


def test_every_number_is_everywhere_equally_often():
    orders = np.asarray(permutations(jax.random.key(1), 20000, 4))
    for place in range(4):
        counts = np.bincount(orders[:, place], minlength=4)
        assert np.all(np.abs(counts - 5000) < 300)  # 5 standard deviations
    assert len({tuple(order) for order in orders.tolist()}) == 24


@pytest.mark.parametrize("n", [PACKED_BELOW, 2**20])
def test_batches_are_spread_over_the_whole_set(n):
    """The span of 16 uniform draws is on average 15/17 of the range; neighbours of an order are unrelated."""
    order = np.asarray(permutations(jax.random.key(2), 1, n))[0].astype(float)
    spans = np.ptp(order.reshape(-1, 16), axis=1) / n
    assert abs(spans.mean() - 15 / 17) < 5 * spans.std() / len(spans) ** 0.5
    # a uniform order has as many ascents as descents; ties put the smaller number first
    assert abs(np.mean(np.diff(order) > 0) - 0.5) < 5 * (n / 12) ** 0.5 / n + 0.004 / 2
    steps = np.abs(np.diff(order)) / n
    assert abs(steps.mean() - 1 / 3) < 5 * steps.std() / n**0.5


def test_too_many():
    with pytest.raises(ValueError, match="shuffle 2147483648"):
        permutations(jax.random.key(0), 1, 2**31)
