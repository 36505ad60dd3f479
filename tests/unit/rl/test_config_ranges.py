"""Ratios of probabilities, and a network without layers. Bounds of options are those of `run/test_ranges.py`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.rl.novelty import RNDConfig
from llmrl_jax.rl.precision import RATIO_BOUNDS, ratio_error


def test_a_critic_of_novelty_needs_a_layer():
    with pytest.raises(ValueError, match="^rnd.critic_hidden.*empty"):
        RNDConfig(critic_hidden=())


def test_the_error_of_ratios_is_the_same_in_both_directions():
    """`|r - 1|` of a probability that fell stays below 1, whatever the bound."""
    for r in (1.5, 3.0, 20.0):
        up, down = (float(ratio_error(jnp.log(jnp.array([1.0, x])))) for x in (r, 1 / r))
        assert up == pytest.approx(r - 1, rel=1e-5) and down == pytest.approx(r - 1, rel=1e-5)
    assert float(ratio_error(jnp.log(jnp.array([1.0, 0.1])))) > RATIO_BOUNDS["bfloat16"]
    small = np.float32(3e-6)  # where the bound of float32 is, it is `|r - 1|`
    assert float(ratio_error(jnp.array([-small, 0.0]))) == pytest.approx(3e-6, rel=1e-3)
    assert np.isinf(ratio_error(jnp.array([0.0, -jnp.inf])))
