"""Random orders."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from llmrl_jax.rl.shuffle import permutations


@pytest.mark.parametrize("n", [1, 2, 7, 1280])
def test_each_row_is_an_order(n):
    orders = np.asarray(permutations(jax.random.key(0), 3, n))
    assert (np.sort(orders, axis=1) == np.arange(n)).all()


def test_every_number_is_everywhere_equally_often():
    orders = np.asarray(permutations(jax.random.key(1), 20000, 4))
    for place in range(4):
        counts = np.bincount(orders[:, place], minlength=4)
        assert np.all(np.abs(counts - 5000) < 300)  # 5 standard deviations
    assert len({tuple(order) for order in orders.tolist()}) == 24


def test_too_many():
    with pytest.raises(ValueError, match="16777217"):
        permutations(jax.random.key(0), 1, 2**24 + 1)
