"""Nearest neighbours where a device rounds the factors of matrix products, which is the default on GPUs and TPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.clevr.env import goal_vector
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.rl.gradient import traced_floats
from llmrl_jax.rl.novelty import neighbour_distance
from llmrl_jax.rl.offline import Context, Frozen
from llmrl_jax.rl.offline_data import ActionKind, Batch
from llmrl_jax.rl.prdc import PRDC, PRDCConfig
from tests.rounding import BITS, rounded


KINDS = sorted(BITS)
RANDOM = np.random.default_rng(0)
CLOSE = (1 + 0.05 * RANDOM.standard_normal((200, 12))).astype(np.float32)
"""Rows whose squares are 200 times as large as their squared distances."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounding_changes_an_ordinary_product(kind):
    x = jnp.asarray(CLOSE)
    error = jnp.abs(rounded(lambda x: x @ x.T, kind)(x) - x @ x.T).max()
    assert error > {"bfloat16": 0.01, "tensorfloat32": 0.001}[kind]
    looped = rounded(lambda x: jax.lax.scan(lambda c, row: (c, x @ row), 0, x)[1], kind)(x)
    np.testing.assert_allclose(looped, rounded(lambda x: x @ x.T, kind)(x), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_distances_of_apt(kind):
    found = rounded(lambda x: neighbour_distance(x, x, 12), kind)(jnp.asarray(CLOSE))
    wide = CLOSE.astype(np.float64)
    every = np.sort(np.linalg.norm(wide[:, None] - wide, axis=-1), axis=1)[:, :12]
    np.testing.assert_allclose(found[:, 1:], every[:, 1:], rtol=1e-3)
    assert float(found[:, 0].max()) < 5e-3, "of a row to itself"


@pytest.mark.parametrize("kind", KINDS)
def test_the_neighbour_of_prdc(kind):
    config = PRDCConfig(beta=2.0, block=64, hidden=(4,), batch_size=50)
    actions = RANDOM.uniform(-1, 1, (200, 2)).astype(np.float32)
    asked = (CLOSE[:50] + 0.01 * RANDOM.standard_normal((50, 12))).astype(np.float32)
    by_policy = np.zeros((50, 2), np.float32)
    no = jnp.zeros(200, bool)
    obs = {"vector": jnp.asarray(CLOSE)}
    data = Transitions(obs, jnp.asarray(actions), jnp.zeros(200), obs, no, no)
    frozen = Frozen((data,), (), jnp.zeros(12), jnp.ones(12), (jnp.int32(200),))
    context = Context(jax.random.key(0), traced_floats(config), jnp.int32(0), frozen)
    method = PRDC(config, ActionKind.box(-1.0, 1.0, 2))

    def look(x, action):
        rows = Batch(x, action, jnp.zeros(50), x, jnp.zeros(50, bool))
        return method.imitated_action(action, rows, context)

    found = np.asarray(rounded(look, kind)(jnp.asarray(asked), jnp.asarray(by_policy)))
    pairs, ours = (np.concatenate([2.0 * x, a], 1) for x, a in ((CLOSE, actions), (asked, by_policy)))
    nearest = np.linalg.norm(ours[:, None].astype(np.float64) - pairs, axis=-1).argmin(1)
    np.testing.assert_array_equal(found, actions[nearest])


@pytest.mark.parametrize("kind", KINDS)
def test_places_of_balls_are_exact(kind):
    """In CLEVR the place of a goal's ball is picked from all by a product with a one-hot row."""
    balls = jnp.asarray(RANDOM.uniform(-0.5, 0.5, 10), jnp.float32)
    goal = jnp.asarray([1, 2, 0, 4, -1, -1, -1, -1, -1, -1], jnp.int32)
    x = np.asarray(rounded(goal_vector, kind)(balls, goal))
    place = np.asarray(balls).reshape(5, 2)
    np.testing.assert_array_equal(x, np.asarray(goal_vector(balls, goal)))
    assert any(np.array_equal(x[i : i + 2], place[2] - place[4]) for i in range(len(x) - 1))
