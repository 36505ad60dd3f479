"""The step sizes of the prior, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmrl_jax.systems.glam.prior import PriorConfig, step_sizes


def test_step_sizes_by_hand():
    """Two of 20 updates rise to the whole one, which the third has; the last has none."""
    rate = step_sizes(PriorConfig(updates=20, learning_rate=3.0))
    fall = [3 * (1 + math.cos(math.pi * i / 17)) / 2 for i in range(18)]
    np.testing.assert_allclose([float(rate(i)) for i in range(20)], [1, 2, *fall], atol=1e-6)
    assert fall[0] == 3 and fall[-1] == 0


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_few_updates_learn_something(updates):
    rate = step_sizes(PriorConfig(updates=updates))
    assert float(rate(0)) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; above 0"), ({"learning_rate": math.inf}, "a finite number")],
)
def test_bad_settings(given, message):
    with pytest.raises(ValueError, match=message):
        PriorConfig(**given)
