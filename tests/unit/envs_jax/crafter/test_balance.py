"""Daylight and the numbers of creatures that it asks for, beside the package's formulas in double precision."""

import math

import jax.numpy as jnp
import numpy as np

from envs_jax.crafter import constants as c
from envs_jax.crafter.balance import HEIGHT, LEFT, RULES, TOP, WIDTH, daylight_at, limits


def daylight(step):
    """The package's (`Env._update_time`)."""
    return 1 - abs(math.cos(math.pi * (step / 300 % 1 + 0.3))) ** 3


def test_daylight_of_every_step_of_an_episode():
    steps = np.arange(10_001)
    ours = np.asarray(daylight_at(jnp.asarray(steps)))
    np.testing.assert_allclose(ours, [daylight(t) for t in steps], atol=2e-6)
    assert ours.dtype == np.float32
    assert ours[60] == 1 and ours[210] == 0  # noon and midnight
    assert ours[150] < 0.5 < ours[120]


def test_creatures_wanted_are_the_packages_at_every_step():
    """Whole numbers of sums like 3.5 - 3 * light: rounding must not change one, at any step of an episode."""
    steps = np.arange(10_001)
    light = daylight_at(jnp.asarray(steps))
    found = {rule.kind: [np.asarray(x) for x in limits(rule, light)] for rule in RULES}
    exact = [daylight(t) for t in steps]
    zombies = [int(3.5 - 3 * x) for x in exact]
    np.testing.assert_array_equal(found[c.ZOMBIE], [zombies, zombies])
    np.testing.assert_array_equal(found[c.COW], [[1] * len(steps), [int(1.5 + x) for x in exact]])
    np.testing.assert_array_equal(found[c.SKELETON], [[1] * len(steps), [2] * len(steps)])
    assert set(zombies) == {0, 1, 2, 3}


def test_chunks_cover_the_world_once():
    seen = np.zeros((c.AREA, c.AREA), int)
    for left, top, width, height in zip(LEFT, TOP, WIDTH, HEIGHT):
        seen[left : left + width, top : top + height] += 1
    assert np.all(seen == 1) and len(WIDTH) == 36 and WIDTH[-1] == HEIGHT[-1] == 4
